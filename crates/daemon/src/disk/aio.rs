//! Choice of the backend for each disk: as configured or as this host allows, logged once.

use std::path::Path;

use block::{Aio, AioChoice, AioProbe};
use options::AioMode;

/// The choices so far.
#[derive(Clone, Default)]
pub(crate) struct AioChoices {
    probe: AioProbe,
    said: Vec<AioChoice>,
}

impl AioChoices {
    /// What a copy of it has found out since.
    pub fn learn(&mut self, copy: Self) {
        self.probe.learn(copy.probe);
        for choice in copy.said {
            if !self.said.contains(&choice) {
                self.said.push(choice);
            }
        }
    }

    /// For the disk at `path`, with or without direct I/O.
    pub fn choose(&mut self, wanted: Option<AioMode>, path: &Path, direct: bool) -> Aio {
        let wanted = wanted.map(|mode| match mode {
            AioMode::Threads => Aio::Threads,
            AioMode::Native => Aio::Native,
            AioMode::IoUring => Aio::IoUring,
        });
        let choice = self.probe.choose(wanted, path, direct);
        if !self.said.contains(&choice) {
            say(wanted, &choice);
            self.said.push(choice.clone());
        }
        choice.aio
    }
}

fn say(wanted: Option<Aio>, choice: &AioChoice) {
    let AioChoice { aio, why, instead } = choice;
    match wanted {
        Some(wanted) if *instead => {
            tracing::warn!("aio={wanted} cannot be had: {why}; aio={aio} is used instead");
        }
        Some(_) => {}
        None => tracing::info!("aio={aio}: {why}"),
    }
}
