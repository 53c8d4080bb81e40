//! `blockplane top`: what each disk does now.

mod screen;
mod svg;
mod terminal;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cli::{Monitor, print};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::rates::Rates;
use crate::sample::Sample;
use crate::{signals, units};
use screen::{Line, Style, View};
use terminal::{Key, Terminal};

/// A daemon answers at once, unless it is busy opening a disk.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// What to show.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: Monitor,
    /// Figures are those of the last so long
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Show one interval and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, for scripts
    #[arg(long, requires = "once")]
    pub json: bool,
    /// Show each running queue, with the iothread that it runs on
    #[arg(long)]
    pub queues: bool,
    /// Draw a picture of it in this file as well
    #[arg(long, value_name = "FILE", requires = "once")]
    pub svg: Option<PathBuf>,
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    match units::time(text) {
        Ok(time) if time < Duration::from_millis(100) => {
            Err("at least 100ms is expected".to_owned())
        }
        time => time,
    }
}

/// Looks and shows until it is told to end.
///
/// # Errors
/// [`Error::Gone`] when the daemon ends; what [`Sample::take`] says.
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let mut client = Client::connect(&options.monitor.socket, Some(ANSWERED_WITHIN))?;
    if options.once {
        return once(options, &mut client, out);
    }
    signals::notice();
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    match if dumb || !is_terminal {
        blocks(options, &mut client, out)
    } else {
        live(options, &mut client)
    } {
        // Ctrl-C is how it is ended.
        Err(Error::Interrupted) => Ok(()),
        done => done,
    }
}

fn view(options: &Options) -> View {
    View {
        queues: options.queues,
        ..View::default()
    }
}

fn title(options: &Options) -> String {
    format!("blockplane top {}", options.monitor.socket.display())
}

fn plain(lines: &[Line]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.text.trim_end()).collect();
    lines.join("\n")
}

fn once(options: &Options, client: &mut Client, out: &mut impl Write) -> Result<()> {
    let before = Sample::take(client)?;
    std::thread::sleep(options.interval);
    let rates = Rates::between(&before, &Sample::take(client)?);
    let lines = screen::lines(&title(options), &rates, &view(options), None);
    if let Some(path) = &options.svg {
        let written = std::fs::write(path, svg::draw(&lines));
        written.map_err(Error::io(format!(
            "write the picture to {}",
            path.display()
        )))?;
    }
    let text = if options.json {
        format!("{:#}", rates.json())
    } else {
        plain(&lines)
    };
    print(out, &text)
}

/// One block of lines after the other, for what cannot be drawn on.
fn blocks(options: &Options, client: &mut Client, out: &mut impl Write) -> Result<()> {
    let mut before = Sample::take(client)?;
    loop {
        // A signal ends the sleep of this thread only by way of the flag.
        let until = Instant::now() + options.interval;
        while Instant::now() < until {
            if signals::end_asked() {
                return Err(Error::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        let now = Sample::take(client)?;
        let lines = screen::lines(
            &title(options),
            &Rates::between(&before, &now),
            &view(options),
            None,
        );
        print(out, &format!("{}\n", plain(&lines)))?;
        before = now;
    }
}

/// On a terminal, with keys.
fn live(options: &Options, client: &mut Client) -> Result<()> {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut view = view(options);
    let mut before = Sample::take(client)?;
    let mut rates = Rates::between(&before, &before);
    let mut next = Instant::now() + options.interval;
    let terminal = Terminal::open()?;
    loop {
        let (columns, rows) = terminal.size();
        let mut lines = screen::lines(&title(options), &rates, &view, Some(rows.saturating_sub(1)));
        let help = "q quit  space pause  tab queues  left/right sort  up/down scroll";
        lines.push(Line {
            text: help.to_owned(),
            style: Style::Heading,
        });
        terminal.draw(&styled(&lines, columns, colour))?;
        match terminal.key(next.saturating_duration_since(Instant::now()))? {
            _ if signals::end_asked() => return Err(Error::Interrupted),
            Some(Key::Quit) => return Ok(()),
            Some(Key::Pause) => view.paused = !view.paused,
            Some(Key::Queues) => view.queues = !view.queues,
            Some(Key::Left) => view.sort = view.sort.step(-1),
            Some(Key::Right) => view.sort = view.sort.step(1),
            Some(Key::Up) => view.skipped = view.skipped.saturating_sub(1),
            Some(Key::Down) => view.skipped = view.skipped.saturating_add(1),
            None => {}
        }
        if Instant::now() >= next {
            let now = Sample::take(client)?;
            if !view.paused {
                rates = Rates::between(&before, &now);
            }
            before = now;
            next = Instant::now() + options.interval;
        }
    }
}

/// Cut to the terminal's width, headings and totals told from the rest.
fn styled(lines: &[Line], columns: usize, colour: bool) -> String {
    let lines = lines.iter().map(|line| {
        let text: String = line
            .text
            .chars()
            .filter(|c| !c.is_control())
            .take(columns)
            .collect();
        match line.style {
            Style::Heading if colour => format!("\x1b[1;36m{text}\x1b[0m"),
            Style::Total if colour => format!("\x1b[1m{text}\x1b[0m"),
            _ => text,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}
