//! `blockplane top`: load of each disk and iothread, refreshed once per interval.

mod sampler;
mod screen;
mod svg;
mod terminal;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use commands::{signals, time};

use crate::operator::cli::{Monitor, print};
use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::rates::Rates;
use crate::operator::sample::Sample;
use sampler::Sampler;
use screen::{Line, Room, Style, View};
use terminal::{Key, Terminal};

/// The command line of `blockplane top`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: Monitor,
    /// Length of an interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Show one interval and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, for scripts; of the queues those that a front-end has used
    #[arg(long, requires = "once")]
    pub json: bool,
    /// Show each running queue, with the iothread that it runs on, and each SCSI unit
    #[arg(long)]
    pub queues: bool,
    /// Also draw the screen as a picture in this file
    #[arg(long, value_name = "FILE", requires = "once")]
    pub svg: Option<PathBuf>,
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    time::at_least_ms(100, text)
}

/// Shows the load until a key or signal ends it.
///
/// # Errors
/// [`Error::Disconnected`] when the daemon ends; errors of [`Sample::take`].
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let mut client = options.monitor.connect()?;
    if options.once {
        return once(options, &mut client, out);
    }
    signals::handle_termination();
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    match if dumb || !is_terminal {
        print_intervals(options, &mut client, out)
    } else {
        interactive(options, client)
    } {
        // Ctrl-C is the usual way to end it.
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

/// The lines without styles; names are truncated only for a terminal.
fn plain_lines(options: &Options, rates: &Rates) -> Vec<Line> {
    let room = Room {
        columns: terminal::size().map(|(columns, _)| columns),
        rows: None,
    };
    screen::lines(&title(options), rates, &view(options), room)
}

fn text(lines: &[Line]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.text.trim_end()).collect();
    lines.join("\n")
}

fn once(options: &Options, client: &mut Client, out: &mut impl Write) -> Result<()> {
    let before = Sample::take(client)?;
    std::thread::sleep(options.interval);
    let rates = Rates::between(&before, &Sample::take(client)?);
    let lines = plain_lines(options, &rates);
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
        text(&lines)
    };
    print(out, &text)
}

/// Prints a block of lines per interval, for output that is no capable terminal.
fn print_intervals(options: &Options, client: &mut Client, out: &mut impl Write) -> Result<()> {
    let mut before = Sample::take(client)?;
    while signals::sleep(options.interval) {
        let now = Sample::take(client)?;
        let lines = plain_lines(options, &Rates::between(&before, &now));
        print(out, &format!("{}\n", text(&lines)))?;
        before = now;
    }
    Err(Error::Interrupted)
}

/// Draws on a terminal and handles keys.
fn interactive(options: &Options, mut client: Client) -> Result<()> {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut view = view(options);
    let mut before = Sample::take(&mut client)?;
    let mut rates = Rates::between(&before, &before);
    let mut due = Instant::now() + options.interval;
    let mut sampler = Sampler::start(client)?;
    signals::handle_terminal();
    let mut terminal = Terminal::open()?;
    loop {
        view.waited = sampler.waited().unwrap_or_default();
        draw(&mut terminal, &title(options), &rates, &view, colour)?;
        let left = due.saturating_duration_since(Instant::now());
        let wait = match sampler.waited() {
            None => left.min(signals::POLL_INTERVAL),
            Some(_) => signals::POLL_INTERVAL,
        };
        for key in terminal.keys(sampler.ready(), wait)? {
            if key == Key::Quit {
                return Ok(());
            }
            view.press(key);
        }
        if signals::termination_requested() {
            return Err(Error::Interrupted);
        }
        let stopped = signals::take_suspend_request();
        if stopped {
            terminal.leave();
            signals::suspend();
        }
        if signals::take_resumed() || stopped {
            terminal.enter()?;
        }
        if let Some(sample) = sampler.take() {
            let now = sample?;
            if !view.paused {
                rates = Rates::between(&before, &now);
            }
            before = now;
            due = Instant::now() + options.interval;
        }
        if Instant::now() >= due && sampler.waited().is_none() {
            sampler.request();
        }
    }
}

fn draw(
    terminal: &mut Terminal,
    title: &str,
    rates: &Rates,
    view: &View,
    colour: bool,
) -> Result<()> {
    let (columns, rows) = terminal.size();
    let room = Room {
        columns: Some(columns),
        rows: Some(rows.saturating_sub(1)),
    };
    let mut lines = screen::lines(title, rates, view, room);
    let help = "q quit  space pause  tab queues  left/right sort  up/down scroll";
    lines.push(Line {
        text: help.to_owned(),
        style: Style::Heading,
    });
    terminal.draw(styled(&lines, columns, colour))
}

/// The lines truncated to the terminal's width, with headings and totals highlighted.
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
