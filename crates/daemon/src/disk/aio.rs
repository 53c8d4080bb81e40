//! Chooses the I/O backend of each disk by [`block::AioProbe`]; remembers what the host was found to support, and which choices
//! were logged, so that each is logged once.

use std::path::Path;

use block::{Aio, AioChoice, AioProbe};
use options::AioMode;

/// The choices so far, and what the host was found to support.
#[derive(Clone, Default)]
pub(crate) struct AioChoices {
    probe: AioProbe,
    logged: Vec<AioChoice>,
}

impl AioChoices {
    /// Merges the results of a copy that a job has used.
    pub fn add_results_of_copy(&mut self, copy: Self) {
        self.probe.merge(copy.probe);
        for choice in copy.logged {
            if !self.logged.contains(&choice) {
                self.logged.push(choice);
            }
        }
    }

    /// Chooses the backend for the disk at `path`, with or without direct I/O.
    pub fn choose_and_log_if_new(
        &mut self,
        wanted: Option<AioMode>,
        path: &Path,
        direct: bool,
    ) -> Aio {
        let wanted = wanted.map(|mode| match mode {
            AioMode::Threads => Aio::Threads,
            AioMode::Native => Aio::Native,
            AioMode::IoUring => Aio::IoUring,
        });
        let choice = self.probe.choose(wanted, path, direct);
        if !self.logged.contains(&choice) {
            log_choice_unless_as_configured(wanted, &choice);
            self.logged.push(choice.clone());
        }
        choice.aio
    }
}

/// Logs the choice, and why the wanted backend is not used if it is another one.
fn log_choice_unless_as_configured(wanted: Option<Aio>, choice: &AioChoice) {
    let AioChoice {
        aio,
        why,
        is_fallback,
    } = choice;
    match wanted {
        Some(wanted) if *is_fallback => {
            tracing::warn!("aio={wanted} is not available: {why}; using aio={aio} instead");
        }
        Some(_) => {}
        None => tracing::info!("aio={aio}: {why}"),
    }
}
