//! Layout of the `blockplane top` screen as lines of text.

use std::time::Duration;

use commands::printable_in_line;

use super::rows::{Row, export_and_queue_rows};
use super::view_state::ViewState;
use crate::operator::interval_load::{DaemonLoad, IntervalLoad, IothreadLoad};
use crate::operator::units::format_rate;

/// The size of the screen; `None`: unlimited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScreenSize {
    pub columns: Option<usize>,
    pub rows: Option<usize>,
}

/// The highlighting of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineStyle {
    Plain,
    Heading,
    Total,
}

/// A line of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StyledLine {
    pub text: String,
    pub style: LineStyle,
}

/// Width of a bar for a whole processor.
const BAR_WIDTH: usize = 20;
/// Least width of the column of names, with which a line has 80 columns.
const NAME_WIDTH: usize = 14;
/// Greatest width of the column of names.
const MAX_NAME_WIDTH: usize = 256;
/// Width of the columns after the names.
const FIGURES_WIDTH: usize = 65;
/// The screen warns of a daemon that has not answered for this long.
const WARN_AFTER: Duration = Duration::from_secs(2);

/// All lines of the screen, with as many exports as fit.
pub(super) fn layout_screen(
    title: &str,
    rates: &DaemonLoad,
    view: &ViewState,
    size: ScreenSize,
) -> Vec<StyledLine> {
    let disks = export_and_queue_rows(rates, view);
    let name_width = name_width(rates, &disks, size.columns);
    let mut lines = vec![
        styled_line(LineStyle::Plain, status_line_text(title, rates, view)),
        styled_line(LineStyle::Plain, String::new()),
        styled_line(LineStyle::Heading, load_line_heading(name_width)),
    ];
    let mut thread_lines = vec![
        styled_line(LineStyle::Plain, String::new()),
        styled_line(LineStyle::Heading, iothread_heading(name_width)),
    ];
    let threads = rates.iothreads.iter();
    thread_lines.extend(
        threads
            .map(|thread| styled_line(LineStyle::Plain, iothread_text(name_width, rates, thread))),
    );
    let fixed_rows = lines.len() + 1 + thread_lines.len();
    let visible_rows = size
        .rows
        .map_or(disks.len(), |rows| rows.saturating_sub(fixed_rows).max(1));
    let scroll = view.scroll.min(disks.len().saturating_sub(visible_rows));
    let disks = disks.iter().skip(scroll).take(visible_rows);
    lines.extend(disks.map(|row| {
        let text = match row {
            Row::Load(name, load) => load_line_text(name_width, name, rates, load),
            Row::Disk(text) => truncate_name(text, size.columns.unwrap_or(MAX_NAME_WIDTH)),
        };
        styled_line(LineStyle::Plain, text)
    }));
    let total = load_line_text(name_width, "all", rates, &rates.total_load());
    lines.push(styled_line(LineStyle::Total, total));
    lines.extend(thread_lines);
    lines.truncate(size.rows.unwrap_or(usize::MAX));
    lines
}

/// The length of the longest name, limited by the screen.
fn name_width(rates: &DaemonLoad, disks: &[Row<'_>], columns: Option<usize>) -> usize {
    let disks = disks.iter().filter_map(|row| match row {
        Row::Load(name, _) => Some(name),
        Row::Disk(_) => None,
    });
    let names = disks.chain(rates.iothreads.iter().map(|thread| &thread.id));
    let longest = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let limit = columns.map_or(MAX_NAME_WIDTH, |columns| {
        columns.saturating_sub(FIGURES_WIDTH)
    });
    longest.min(limit).clamp(NAME_WIDTH, MAX_NAME_WIDTH)
}

/// A line of the screen with its highlighting.
fn styled_line(style: LineStyle, text: String) -> StyledLine {
    StyledLine { text, style }
}

/// The first line: numbers of exports, the interval, the order, and what is unusual.
fn status_line_text(title: &str, rates: &DaemonLoad, view: &ViewState) -> String {
    let connected = rates
        .exports
        .iter()
        .filter(|export| export.connected)
        .count();
    let exports = match rates.exports.len() {
        1 => "1 export".to_owned(),
        count => format!("{count} exports"),
    };
    let mut state = String::new();
    if view.unanswered_for >= WARN_AFTER {
        state.push_str(&format!(
            "NO ANSWER FOR {} s; ",
            view.unanswered_for.as_secs()
        ));
    }
    if view.paused {
        state.push_str("PAUSED; ");
    }
    // The state comes first: a terminal may be too narrow for the rest.
    format!(
        "{state}{title}: {exports}, {connected} connected; {:.2} s; {}",
        rates.elapsed.as_secs_f64(),
        view.sort.name(),
    )
}

/// The heading of the columns of [`load_line_text`].
fn load_line_heading(name_width: usize) -> String {
    format!(
        "{:<name_width$} {:>8}{:>8}{:>8}{:>8}{:>9}{:>9}{:>7}{:>7}",
        "EXPORT", "IOPS", "READ/s", "WRITE/s", "MB/s", "p50 us", "p99 us", "BATCH", "DEPTH"
    )
}

/// The line of an export, queue or unit.
fn load_line_text(
    name_width: usize,
    name: &str,
    rates: &DaemonLoad,
    load: &IntervalLoad,
) -> String {
    let rate = |count| format_rate(rates.per_second(count));
    let us = |percent| {
        load.latency
            .percentile(percent)
            .map_or("-".to_owned(), |ns| format_rate(ns / 1e3))
    };
    format!(
        "{:<name_width$} {:>8}{:>8}{:>8}{:>8}{:>9}{:>9}{:>7}{:>7}",
        truncate_name(name, name_width),
        rate(load.reads_and_writes()),
        rate(load.counters.reads),
        rate(load.counters.writes),
        format_rate(rates.per_second(load.read_and_written_bytes()) / 1e6),
        us(50.0),
        us(99.0),
        mean_batch_text(load.mean_requests_per_turn()),
        load.depth,
    )
}

/// A mean batch size as text.
fn mean_batch_text(mean: Option<f64>) -> String {
    mean.map_or("-".to_owned(), |mean| format!("{mean:.1}"))
}

/// The heading of the columns of [`iothread_text`].
fn iothread_heading(name_width: usize) -> String {
    format!(
        "{:<name_width$} {:>8}  {:<BAR_WIDTH$}{:>10}{:>7}{:>9}{:>8}",
        "IOTHREAD", "CPU", "", "REQ/s", "BATCH", "POLL HIT", "SLEEP/s"
    )
}

/// The line of an iothread.
fn iothread_text(name_width: usize, rates: &DaemonLoad, thread: &IothreadLoad) -> String {
    let percent = |value: f64| format!("{value:.0} %");
    format!(
        "{:<name_width$} {:>8}  {:<BAR_WIDTH$}{:>10}{:>7}{:>9}{:>8}",
        truncate_name(&thread.id, name_width),
        percent(thread.cpu_percent),
        cpu_bar(thread.cpu_percent),
        format_rate(rates.per_second(thread.submitted)),
        mean_batch_text(thread.mean_batch),
        thread.poll_hits_percent.map_or("-".to_owned(), percent),
        format_rate(rates.per_second(thread.sleeps)),
    )
}

/// A bar for the share of a processor.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the width"
)]
fn cpu_bar(percent: f64) -> String {
    let filled = (percent / 100.0 * BAR_WIDTH as f64)
        .round()
        .clamp(0.0, BAR_WIDTH as f64);
    "|".repeat(filled as usize)
}

/// A name with control characters escaped, in at most `width` characters; `~` replaces the rest.
fn truncate_name(name: &str, width: usize) -> String {
    let name = printable_in_line(name);
    if name.chars().count() <= width {
        return name;
    }
    let kept: String = name.chars().take(width - 1).collect();
    kept + "~"
}

#[cfg(test)]
mod tests {
    use super::super::view_state::SortOrder;
    use super::*;
    use crate::operator::testing::two_samples;

    /// The lines of the screen for two samples of the same daemon.
    fn shown(view: &ViewState, rows: Option<usize>) -> Vec<String> {
        let [before, now] = two_samples();
        let size = ScreenSize {
            rows,
            ..ScreenSize::default()
        };
        let lines = layout_screen("top", &DaemonLoad::between(&before, &now), view, size);
        lines
            .into_iter()
            .map(|line| line.text.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn screen_fits_into_80_columns() {
        let expected = "\
top: 2 exports, 1 connected; 2.00 s; by creation

EXPORT             IOPS  READ/s WRITE/s    MB/s   p50 us   p99 us  BATCH  DEPTH
idle                  0       0       0       0        -        -      -      0
busy             60,000  45,000  15,000   245.8     98.0    195.8    4.0     32
all              60,000  45,000  15,000   245.8     98.0    195.8    4.0     32

IOTHREAD            CPU                           REQ/s  BATCH POLL HIT SLEEP/s
io0                50 %  ||||||||||              50,000   12.5     75 %    5.00";
        assert_eq!(shown(&ViewState::default(), None).join("\n"), expected);
        let all = ViewState {
            shows_queues: true,
            ..ViewState::default()
        };
        let mut widths = shown(&all, None)
            .into_iter()
            .map(|line| line.chars().count());
        assert!(widths.all(|width| width <= 80));
    }

    /// The name of the only export as a screen of this width shows it.
    fn shown_name(id: &str, columns: Option<usize>) -> String {
        let [before, mut now] = two_samples();
        now.exports.truncate(1);
        now.exports[0].id = id.to_owned();
        let size = ScreenSize {
            columns,
            ..ScreenSize::default()
        };
        let load = DaemonLoad::between(&before, &now);
        let lines = layout_screen("top", &load, &ViewState::default(), size);
        assert!(lines[0].text.starts_with("top: 1 export, "));
        let most = columns.unwrap_or(usize::MAX);
        assert!(lines.iter().all(|line| line.text.chars().count() <= most));
        lines[3].text.split(' ').next().unwrap().to_owned()
    }

    #[test]
    fn names_use_the_width_of_the_terminal_and_are_cut_and_escaped() {
        let id = "a-name-of-30-characters-long!!";
        assert_eq!(shown_name(id, None), id);
        assert_eq!(shown_name(id, Some(200)), id);
        assert_eq!(shown_name(id, Some(90)), "a-name-of-30-characters-~");
        assert_eq!(shown_name(id, Some(80)), "a-name-of-30-c~");
        assert_eq!(shown_name("a\u{1b}[2J\nb", None), "a\\u{1b}[2J\\nb");
        let cut = shown_name(&"x".repeat(100_000), None);
        assert_eq!(cut, "x".repeat(MAX_NAME_WIDTH - 1) + "~");
    }

    #[test]
    fn screen_warns_of_a_daemon_that_does_not_answer() {
        let summary = |seconds| {
            let view = ViewState {
                unanswered_for: Duration::from_secs(seconds),
                ..ViewState::default()
            };
            shown(&view, None).remove(0)
        };
        assert!(!summary(1).contains("NO ANSWER"));
        assert!(summary(5).starts_with("NO ANSWER FOR 5 s; top: 2 exports"));
    }

    #[test]
    fn screen_shows_queues_in_the_chosen_order() {
        let view = ViewState {
            shows_queues: true,
            sort: SortOrder::Created.step_clamped(1),
            ..ViewState::default()
        };
        let lines = shown(&view, None);
        let expected = [
            ("busy", "4.0"),
            ("  0 io0", "4.0"),
            ("  1 io1", "4.0"),
            ("idle", "-"),
        ];
        for (line, (name, batch)) in lines[3..7].iter().zip(expected) {
            assert_eq!(line[..15].trim_end(), name);
            assert_eq!(line.split_whitespace().rev().nth(1), Some(batch));
        }
        assert_eq!(SortOrder::Created.step_clamped(-1), SortOrder::Created);
        assert_eq!(SortOrder::Latency.step_clamped(1), SortOrder::Latency);
    }

    #[test]
    fn exports_that_do_not_fit_are_scrolled_to() {
        let names = |scroll: usize| {
            let view = ViewState {
                scroll,
                ..ViewState::default()
            };
            let lines = shown(&view, Some(8));
            assert_eq!(lines.len(), 8);
            lines[3].split(' ').next().unwrap().to_owned()
        };
        assert_eq!([names(0), names(1), names(9)], ["idle", "busy", "busy"]);
        assert_eq!(shown(&ViewState::default(), Some(2)).len(), 2);
    }
}
