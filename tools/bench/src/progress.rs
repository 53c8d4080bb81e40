//! Shows that a measurement is alive. Everything goes to standard error; nothing here is a result.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A measurement in progress; gone when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// Begins to show `title`, which takes `steps`: a bar on a terminal, one line elsewhere.
    #[must_use]
    pub fn start(title: &str, steps: usize) -> Self {
        if !std::io::stderr().is_terminal() {
            eprintln!("{title} ...");
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(steps as u64);
        let template = "{prefix} {bar:30} {pos}/{len} ({elapsed}, {eta} left) {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// Says what is being done now.
    pub fn now(&self, doing: impl Into<String>) {
        self.0.set_message(doing.into());
    }

    /// One step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
