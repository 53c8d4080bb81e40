//! `blockplane top`: load of each disk and iothread, refreshed once per interval.

mod on_demand_sampler;
mod rows;
mod screen;
mod svg;
mod terminal;
mod view_state;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use commands::{signals, time};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::interval_load::DaemonLoad;
use crate::operator::monitor_args::MonitorArgs;
use crate::operator::output::print_and_flush;
use crate::operator::sample::Sample;
use on_demand_sampler::OnDemandSampler;
use screen::{LineStyle, ScreenSize, StyledLine};
use terminal::{Key, Terminal};
use view_state::ViewState;

/// The command line of `blockplane top`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: MonitorArgs,
    /// Length of an interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
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

/// Parses the length of an interval: at least 100 ms, which is enough for a reply.
fn parse_interval(text: &str) -> std::result::Result<Duration, String> {
    time::parse_at_least_ms(100, text)
}

/// Shows the load until a key or signal ends it.
///
/// # Errors
/// [`Error::Disconnected`] when the daemon ends; errors of [`Sample::take`].
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let mut client = options.monitor.connect()?;
    if options.once {
        return sample_and_print_once(options, &mut client, out);
    }
    signals::record_termination_signals();
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    match if is_dumb || !is_terminal {
        print_intervals(options, &mut client, out)
    } else {
        run_interactive(options, client)
    } {
        // Ctrl-C is the usual way to end it.
        Err(Error::Interrupted) => Ok(()),
        done => done,
    }
}

/// What the options show before any key is pressed.
fn initial_view(options: &Options) -> ViewState {
    ViewState {
        shows_queues: options.queues,
        ..ViewState::default()
    }
}

/// What the first line of the screen begins with.
fn title_with_socket_path(options: &Options) -> String {
    format!("blockplane top {}", options.monitor.socket.display())
}

/// Lays out all rows, for output that does not scroll; names are truncated only for a terminal.
fn layout_all_rows(options: &Options, rates: &DaemonLoad) -> Vec<StyledLine> {
    let size = ScreenSize {
        columns: terminal::stdout_window_size().map(|(columns, _)| columns),
        rows: None,
    };
    screen::layout_screen(
        &title_with_socket_path(options),
        rates,
        &initial_view(options),
        size,
    )
}

/// The lines as one text, without their styles.
fn lines_to_text(lines: &[StyledLine]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.text.trim_end()).collect();
    lines.join("\n")
}

/// Prints one interval, for `--once`.
fn sample_and_print_once(
    options: &Options,
    client: &mut Client,
    out: &mut impl Write,
) -> Result<()> {
    let before = Sample::take(client)?;
    std::thread::sleep(options.interval);
    let rates = DaemonLoad::between(&before, &Sample::take(client)?);
    let lines = layout_all_rows(options, &rates);
    if let Some(path) = &options.svg {
        let written = std::fs::write(path, svg::to_svg(&lines));
        written.map_err(Error::io(format!(
            "write the picture to {}",
            path.display()
        )))?;
    }
    let text = if options.json {
        format!("{:#}", rates.to_json())
    } else {
        lines_to_text(&lines)
    };
    print_and_flush(out, &text)
}

/// Prints a block of lines per interval, for output that is no capable terminal.
fn print_intervals(options: &Options, client: &mut Client, out: &mut impl Write) -> Result<()> {
    let mut before = Sample::take(client)?;
    while signals::sleep_unless_terminated(options.interval) {
        let now = Sample::take(client)?;
        let lines = layout_all_rows(options, &DaemonLoad::between(&before, &now));
        print_and_flush(out, &format!("{}\n", lines_to_text(&lines)))?;
        before = now;
    }
    Err(Error::Interrupted)
}

/// Draws on a terminal and handles keys.
fn run_interactive(options: &Options, mut client: Client) -> Result<()> {
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut view = initial_view(options);
    let mut before = Sample::take(&mut client)?;
    let mut rates = DaemonLoad::between(&before, &before);
    let mut next_sample_at = Instant::now() + options.interval;
    let mut sampler = OnDemandSampler::start(client)?;
    signals::record_terminal_signals();
    let mut terminal = Terminal::open()?;
    loop {
        view.unanswered_for = sampler.pending_request_age().unwrap_or_default();
        draw_screen(
            &mut terminal,
            &title_with_socket_path(options),
            &rates,
            &view,
            has_colour,
        )?;
        let left = next_sample_at.saturating_duration_since(Instant::now());
        let wait = match sampler.pending_request_age() {
            None => left.min(signals::POLL_INTERVAL),
            Some(_) => signals::POLL_INTERVAL,
        };
        for key in terminal.wait_for_keys(sampler.ready_fd(), wait)? {
            if key == Key::Quit {
                return Ok(());
            }
            view.apply_key(key);
        }
        if signals::termination_requested() {
            return Err(Error::Interrupted);
        }
        let was_suspended = signals::take_suspend_request();
        if was_suspended {
            terminal.leave_drawing_mode();
            signals::suspend();
        }
        if signals::take_resumption() || was_suspended {
            terminal.enter_drawing_mode()?;
        }
        if let Some(sample) = sampler.take_sample_if_arrived() {
            let now = sample?;
            if !view.paused {
                rates = DaemonLoad::between(&before, &now);
            }
            before = now;
            next_sample_at = Instant::now() + options.interval;
        }
        if Instant::now() >= next_sample_at && sampler.pending_request_age().is_none() {
            sampler.request_sample();
        }
    }
}

/// Lays out the screen and draws it, with the keys in the last line.
fn draw_screen(
    terminal: &mut Terminal,
    title: &str,
    rates: &DaemonLoad,
    view: &ViewState,
    has_colour: bool,
) -> Result<()> {
    let (columns, rows) = terminal.size_or_default();
    let size = ScreenSize {
        columns: Some(columns),
        rows: Some(rows.saturating_sub(1)),
    };
    let mut lines = screen::layout_screen(title, rates, view, size);
    let keys = "q quit  space pause  tab queues  left/right sort  up/down scroll";
    lines.push(StyledLine {
        text: keys.to_owned(),
        style: LineStyle::Heading,
    });
    terminal.draw_if_changed(truncate_and_style_lines(&lines, columns, has_colour))
}

/// The lines truncated to the terminal's width, with headings and totals highlighted.
fn truncate_and_style_lines(lines: &[StyledLine], columns: usize, has_colour: bool) -> String {
    let lines = lines.iter().map(|line| {
        let text: String = line
            .text
            .chars()
            .filter(|c| !c.is_control())
            .take(columns)
            .collect();
        match line.style {
            LineStyle::Heading if has_colour => format!("\x1b[1;36m{text}\x1b[0m"),
            LineStyle::Total if has_colour => format!("\x1b[1m{text}\x1b[0m"),
            _ => text,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}
