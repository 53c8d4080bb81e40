//! The state that only mirrors have among jobs: they become ready, and have two ends.

use block::MirrorMode;

/// The state that only a mirror has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MirrorJob {
    /// Guests' writes wait for the target.
    pub is_write_blocking: bool,
    /// The target was almost the same once.
    pub is_ready: bool,
    /// It is about to end, and how.
    pub end: Option<MirrorEnd>,
    pub unlocked_writes: UnlockedWrites,
}

/// Writes to a target whose blocks guests write in part, that hold no lock of their range: that was not known when they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnlockedWrites {
    /// There may be some.
    #[default]
    Possible,
    /// Those that have begun are waited for. `others_possible`: more may have begun since.
    Ending { others_possible: bool },
    /// There are none any more.
    Ended,
}

/// The end of a mirror that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MirrorEnd {
    /// Guests go over to the target.
    SwitchOver,
    /// The target is a copy as of that moment.
    Copy,
}

impl MirrorJob {
    /// Notes that the target was prepared for the blocks of more guests, whose writes under way hold no lock.
    pub fn note_new_block_modes(&mut self) {
        self.unlocked_writes = match self.unlocked_writes {
            UnlockedWrites::Ending { .. } => UnlockedWrites::Ending {
                others_possible: true,
            },
            UnlockedWrites::Possible | UnlockedWrites::Ended => UnlockedWrites::Possible,
        };
    }

    /// The filter on routes to the source until the end begins.
    pub fn initial_mode(self) -> MirrorMode {
        match self.is_write_blocking {
            true => MirrorMode::Write,
            false => MirrorMode::Mark,
        }
    }
}
