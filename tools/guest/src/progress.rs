//! Progress display: a moving line on a terminal, plain lines elsewhere.
//!
//! Everything goes to standard error; nothing here is a result.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// One slow thing in progress.
#[derive(Debug)]
pub struct Progress {
    title: String,
    started: Instant,
    display: Display,
}

#[derive(Debug)]
enum Display {
    Spinner(ProgressBar),
    Lines,
    /// One of several, of which no terminal shows the details.
    None,
}

impl Progress {
    /// Begins to show `title`.
    #[must_use]
    pub fn start(title: impl Into<String>) -> Self {
        let title = title.into();
        let display = if std::io::stderr().is_terminal() {
            Display::Spinner(spinner(ProgressBar::new_spinner(), &title))
        } else {
            eprintln!("{title} ...");
            Display::Lines
        };
        Self::new(title, display)
    }

    fn new(title: String, display: Display) -> Self {
        Self {
            title,
            started: Instant::now(),
            display,
        }
    }

    /// Says what is being done now.
    pub fn now(&self, doing: &str) {
        match &self.display {
            Display::Spinner(spinner) => spinner.set_message(doing.to_owned()),
            Display::Lines => eprintln!(
                "{}: {doing} ({:.0} s)",
                self.title,
                self.started.elapsed().as_secs_f64()
            ),
            Display::None => {}
        }
    }
}

fn spinner(bar: ProgressBar, title: &str) -> ProgressBar {
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} ({elapsed}) {msg}") {
        bar.set_style(style);
    }
    bar.set_prefix(title.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Display::Spinner(spinner) = &self.display {
            spinner.finish_and_clear();
        }
    }
}

/// Several slow things at a time: on a terminal a bar that counts those that are done, and a line for each that is not;
/// elsewhere a line for each that is done.
#[derive(Debug)]
pub(crate) struct Board {
    /// On a terminal.
    bars: Option<(MultiProgress, ProgressBar)>,
}

impl Board {
    pub(crate) fn start(count: usize) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let bars = MultiProgress::new();
            let total = bars.add(ProgressBar::new(count as u64));
            if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len} ({elapsed})")
            {
                total.set_style(style);
            }
            total.enable_steady_tick(Duration::from_secs(1));
            (bars, total)
        });
        Self { bars }
    }

    /// One of them begins.
    pub(crate) fn task(&self, title: String) -> Progress {
        let display = match &self.bars {
            Some((bars, total)) => {
                let bar = bars.insert_before(total, ProgressBar::new_spinner());
                Display::Spinner(spinner(bar, &title))
            }
            None => Display::None,
        };
        Progress::new(title, display)
    }

    /// One of them has ended.
    pub(crate) fn done(&self, line: &str) {
        match &self.bars {
            Some((bars, total)) => {
                total.inc(1);
                // The terminal may be gone: then there is nothing to be shown.
                let _ = bars.println(line);
            }
            None => eprintln!("{line}"),
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        if let Some((_, total)) = &self.bars {
            total.finish_and_clear();
        }
    }
}
