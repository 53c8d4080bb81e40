//! State of the `blockplane top` view that its keys change: the order of exports, scrolling, pause.

use std::time::Duration;

use super::terminal::Key;
use crate::operator::interval_load::ExportLoad;

/// The order of the exports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortOrder {
    /// In the order in which exports were created.
    #[default]
    Created,
    Iops,
    Data,
    Latency,
}

/// The user's choices, and the state of the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ViewState {
    pub sort: SortOrder,
    /// Whether queues and units are shown.
    pub shows_queues: bool,
    pub paused: bool,
    /// Lines of exports that are scrolled out above the screen.
    pub scroll: usize,
    /// How long the daemon has not answered.
    pub unanswered_for: Duration,
}

impl SortOrder {
    const ALL: [SortOrder; 4] = [
        SortOrder::Created,
        SortOrder::Iops,
        SortOrder::Data,
        SortOrder::Latency,
    ];

    /// The order `by` steps to the right of this one, or to the left.
    pub fn step_clamped(self, by: isize) -> SortOrder {
        let at = SortOrder::ALL
            .iter()
            .position(|sort| *sort == self)
            .unwrap_or(0);
        SortOrder::ALL[at.saturating_add_signed(by).min(SortOrder::ALL.len() - 1)]
    }

    /// The value by which exports are sorted, the highest first.
    pub fn sort_value(self, export: &ExportLoad) -> f64 {
        match self {
            SortOrder::Created => 0.0,
            SortOrder::Iops => export.load.reads_and_writes() as f64,
            SortOrder::Data => export.load.read_and_written_bytes() as f64,
            SortOrder::Latency => export.load.latency.percentile(99.0).unwrap_or(0.0),
        }
    }

    /// The order as the screen names it.
    pub fn name(self) -> &'static str {
        match self {
            SortOrder::Created => "by creation",
            SortOrder::Iops => "by IOPS",
            SortOrder::Data => "by MB/s",
            SortOrder::Latency => "by p99",
        }
    }
}

impl ViewState {
    /// Applies a key; [`Key::Quit`] changes nothing.
    pub fn apply_key(&mut self, key: Key) {
        match key {
            Key::Quit => {}
            Key::Pause => self.paused = !self.paused,
            Key::Queues => self.shows_queues = !self.shows_queues,
            Key::Left => self.sort = self.sort.step_clamped(-1),
            Key::Right => self.sort = self.sort.step_clamped(1),
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Down => self.scroll = self.scroll.saturating_add(1),
        }
    }
}
