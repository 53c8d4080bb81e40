//! What `top` shows, as lines of text.

use crate::rates::{Export, Load, Rates, Thread};

/// What the lines are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// In the order in which exports were made.
    #[default]
    Made,
    Iops,
    Data,
    Latency,
}

/// What whoever looks has chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub sort: Sort,
    pub queues: bool,
    pub paused: bool,
    /// So many lines of exports are above what is seen.
    pub skipped: usize,
}

/// How a line is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Heading,
    Total,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub text: String,
    pub style: Style,
}

const BAR_WIDTH: usize = 20;

impl Sort {
    const ALL: [Sort; 4] = [Sort::Made, Sort::Iops, Sort::Data, Sort::Latency];

    /// The next one to the right or left.
    pub fn step(self, by: isize) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[at.saturating_add_signed(by).min(Sort::ALL.len() - 1)]
    }

    fn value(self, export: &Export) -> f64 {
        match self {
            Sort::Made => 0.0,
            Sort::Iops => export.load.operations() as f64,
            Sort::Data => export.load.bytes() as f64,
            Sort::Latency => export.load.latency.percentile(99.0).unwrap_or(0.0),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Made => "as they were made",
            Sort::Iops => "by IOPS",
            Sort::Data => "by MB/s",
            Sort::Latency => "by p99",
        }
    }
}

/// All lines; exports only as many as there is room for in `rows`, if that is said.
pub(super) fn lines(title: &str, rates: &Rates, view: &View, rows: Option<usize>) -> Vec<Line> {
    let mut lines = vec![line(Style::Plain, summary(title, rates, view))];
    let mut below = vec![
        line(Style::Plain, String::new()),
        line(Style::Heading, thread_heading()),
    ];
    below.extend(
        rates
            .iothreads
            .iter()
            .map(|thread| line(Style::Plain, thread_line(rates, thread))),
    );
    lines.push(line(Style::Plain, String::new()));
    lines.push(line(Style::Heading, heading()));
    let disks = disk_lines(rates, view);
    let fixed = lines.len() + 1 + below.len();
    let room = rows.map_or(disks.len(), |rows| rows.saturating_sub(fixed).max(1));
    let skipped = view.skipped.min(disks.len().saturating_sub(room));
    lines.extend(
        disks
            .into_iter()
            .skip(skipped)
            .take(room)
            .map(|text| line(Style::Plain, text)),
    );
    lines.push(line(Style::Total, load_line("all", rates, &rates.total())));
    lines.extend(below);
    lines.truncate(rows.unwrap_or(usize::MAX));
    lines
}

fn line(style: Style, text: String) -> Line {
    Line { text, style }
}

fn summary(title: &str, rates: &Rates, view: &View) -> String {
    let connected = rates
        .exports
        .iter()
        .filter(|export| export.connected)
        .count();
    format!(
        "{title}: {} exports, {connected} connected; {:.2} s; {}{}",
        rates.exports.len(),
        rates.time.as_secs_f64(),
        view.sort.name(),
        if view.paused { "; PAUSED" } else { "" },
    )
}

fn disk_lines(rates: &Rates, view: &View) -> Vec<String> {
    let mut exports: Vec<&Export> = rates.exports.iter().collect();
    exports.sort_by(|a, b| view.sort.value(b).total_cmp(&view.sort.value(a)));
    let mut lines = Vec::new();
    for export in exports {
        lines.push(load_line(&export.id, rates, &export.load));
        if view.queues {
            let running = export.queues.iter().filter(|queue| queue.running);
            lines.extend(running.map(|queue| {
                let name = format!("  {} {}", queue.index, queue.iothread);
                load_line(&name, rates, &queue.load)
            }));
        }
    }
    lines
}

fn heading() -> String {
    format!(
        "{:<15}{:>9}{:>9}{:>9}{:>10}{:>10}{:>10}{:>7}",
        "EXPORT", "IOPS", "READ/s", "WRITE/s", "MB/s", "p50 us", "p99 us", "DEPTH"
    )
}

fn load_line(name: &str, rates: &Rates, load: &Load) -> String {
    let rate = |count| short(rates.per_second(count));
    let us = |percent| {
        load.latency
            .percentile(percent)
            .map_or("-".to_owned(), |ns| short(ns / 1e3))
    };
    format!(
        "{:<15}{:>9}{:>9}{:>9}{:>10}{:>10}{:>10}{:>7}",
        clipped(name, 14),
        rate(load.operations()),
        rate(load.counters.reads),
        rate(load.counters.writes),
        short(rates.per_second(load.bytes()) / 1e6),
        us(50.0),
        us(99.0),
        load.depth,
    )
}

fn thread_heading() -> String {
    format!(
        "{:<15}{:>8}  {:<BAR_WIDTH$}{:>10}{:>7}{:>9}{:>8}",
        "IOTHREAD", "CPU", "", "REQ/s", "BATCH", "POLL HIT", "SLEEP/s"
    )
}

fn thread_line(rates: &Rates, thread: &Thread) -> String {
    let percent = |value: f64| format!("{value:.0} %");
    format!(
        "{:<15}{:>8}  {:<BAR_WIDTH$}{:>10}{:>7}{:>9}{:>8}",
        clipped(&thread.id, 14),
        percent(thread.cpu_percent),
        bar(thread.cpu_percent),
        short(rates.per_second(thread.submitted)),
        thread
            .batch
            .map_or("-".to_owned(), |batch| format!("{batch:.1}")),
        thread.poll_hits_percent.map_or("-".to_owned(), percent),
        short(rates.per_second(thread.sleeps)),
    )
}

/// So much of a processor.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the width"
)]
fn bar(percent: f64) -> String {
    let filled = (percent / 100.0 * BAR_WIDTH as f64)
        .round()
        .clamp(0.0, BAR_WIDTH as f64);
    "|".repeat(filled as usize)
}

/// At least three digits that matter, in at most seven characters: `12,345`, `0.53`, `1.02M`.
fn short(value: f64) -> String {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate, far below 2^64"
    )]
    let whole = value.round() as u64;
    match value {
        0.0 => "0".to_owned(),
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 999.5 => format!("{value:.1}"),
        _ if value < 999_999.5 => crate::units::shown_count(whole),
        _ if value < 9.995e6 => format!("{:.2}M", value / 1e6),
        _ => format!("{:.1}M", value / 1e6),
    }
}

fn clipped(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    let kept: String = name.chars().take(width - 1).collect();
    kept + "~"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::two_samples;

    fn shown(view: &View, rows: Option<usize>) -> Vec<String> {
        let [before, now] = two_samples();
        let lines = lines("top", &Rates::between(&before, &now), view, rows);
        lines
            .into_iter()
            .map(|line| line.text.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn everything_stands_in_80_columns() {
        let expected = "\
top: 2 exports, 1 connected; 2.00 s; as they were made

EXPORT              IOPS   READ/s  WRITE/s      MB/s    p50 us    p99 us  DEPTH
idle                   0        0        0         0         -         -      0
busy              60,000   45,000   15,000     245.8      98.0     195.8     32
all               60,000   45,000   15,000     245.8      98.0     195.8     32

IOTHREAD            CPU                           REQ/s  BATCH POLL HIT SLEEP/s
io0                50 %  ||||||||||              50,000   12.5     75 %    5.00";
        assert_eq!(shown(&View::default(), None).join("\n"), expected);
        let all = View {
            queues: true,
            ..View::default()
        };
        assert!(
            shown(&all, None)
                .iter()
                .all(|line| line.chars().count() <= 80)
        );
    }

    #[test]
    fn queues_are_shown_and_the_order_changed() {
        let view = View {
            queues: true,
            sort: Sort::Made.step(1),
            ..View::default()
        };
        let lines = shown(&view, None);
        let names: Vec<&str> = lines[3..7]
            .iter()
            .map(|line| line[..15].trim_end())
            .collect();
        assert_eq!(names, ["busy", "  0 io0", "  1 io1", "idle"]);
        assert_eq!(Sort::Made.step(-1), Sort::Made);
        assert_eq!(Sort::Latency.step(1), Sort::Latency);
    }

    #[test]
    fn what_does_not_fit_is_scrolled_to() {
        let names = |skipped: usize| {
            let view = View {
                skipped,
                ..View::default()
            };
            let lines = shown(&view, Some(8));
            assert_eq!(lines.len(), 8);
            lines[3].split(' ').next().unwrap().to_owned()
        };
        assert_eq!([names(0), names(1), names(9)], ["idle", "busy", "busy"]);
        assert_eq!(shown(&View::default(), Some(2)).len(), 2);
    }

    #[test]
    fn numbers_stay_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.50"),
            (12.34, "12.3"),
            (999.9, "1,000"),
            (999_999.4, "999,999"),
            (999_999.6, "1.00M"),
            (1_234_567.0, "1.23M"),
            (12_345_678.0, "12.3M"),
            (123_456_789.0, "123.5M"),
        ] {
            assert_eq!(short(value), text);
            // A blank stays between two columns, the narrowest of which has eight.
            assert!(text.len() <= 7, "{text}");
        }
        assert_eq!(clipped("a-long-name-of-a-disk", 14), "a-long-name-o~");
    }
}
