//! Shows that something slow is alive: a moving line on a terminal, plain lines elsewhere.
//!
//! Everything goes to standard error; nothing here is a result.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// One slow thing in progress.
#[derive(Debug)]
pub struct Progress {
    title: String,
    started: Instant,
    spinner: Option<ProgressBar>,
}

impl Progress {
    /// Begins to show `title`.
    #[must_use]
    pub fn start(title: impl Into<String>) -> Self {
        let title = title.into();
        let spinner = std::io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} ({elapsed}) {msg}")
            {
                spinner.set_style(style);
            }
            spinner.set_prefix(title.clone());
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        if spinner.is_none() {
            eprintln!("{title} ...");
        }
        Self {
            title,
            started: Instant::now(),
            spinner,
        }
    }

    /// Says what is being done now.
    pub fn now(&self, doing: &str) {
        match &self.spinner {
            Some(spinner) => spinner.set_message(doing.to_owned()),
            None => eprintln!(
                "{}: {doing} ({:.0} s)",
                self.title,
                self.started.elapsed().as_secs_f64()
            ),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
