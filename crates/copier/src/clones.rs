//! The first pass of a copy: large parts of data are cloned, one at a time, unless the kernel says that it cannot clone between these
//! files. What is left is copied afterwards, also parts of which the clone has failed otherwise.
//!
//! A clone takes no reading and no writing, so it does not follow the pace of copies beside guests: the sooner the job is done, the fewer
//! writes have to copy before. But the kernel locks both files for it, and waits for all requests to them before. So each clone costs a
//! guest about one request's time, however long it is, and small parts are not worth it. Between two clones guests have the disk as
//! long as the last one took. Parts grow as long as the kernel has little work with them, which depends on the number of extents.

use block::MAX_COPY_PIECE_BYTES;
use iothread::Errno;

use crate::plan::{Part, PartKind, PartLimits};
use crate::{Copier, InFlight};

/// Less is copied at once.
const MIN_BYTES: u64 = MAX_COPY_PIECE_BYTES;
/// As much as holes are searched in at once.
const MAX_BYTES: u64 = 64 * MAX_COPY_PIECE_BYTES;
/// Parts become larger if the kernel works less on one, and smaller if it works four times as long.
const FAST_NS: u64 = 500_000;
const FACTOR: u64 = 4;

/// The size of the next part, and the time at which it may begin.
pub(super) struct ClonePass {
    bytes: u64,
    began_ns: u64,
    /// A part has ended since the last turn.
    has_ended: bool,
    next_part_at_ns: u64,
}

impl ClonePass {
    pub fn new() -> Self {
        ClonePass {
            bytes: MIN_BYTES,
            began_ns: 0,
            has_ended: false,
            next_part_at_ns: 0,
        }
    }

    /// Adapts the size after a part on which the kernel has worked so long.
    fn end_part(&mut self, work_ns: u64) {
        self.has_ended = true;
        let bytes = match work_ns {
            ..FAST_NS => self.bytes * FACTOR,
            _ if work_ns >= FAST_NS * FACTOR => self.bytes / FACTOR,
            _ => self.bytes,
        };
        self.bytes = bytes.clamp(MIN_BYTES, MAX_BYTES);
    }

    /// The copier has a turn.
    pub fn note_turn(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.has_ended) {
            self.next_part_at_ns = now_ns + now_ns.saturating_sub(self.began_ns);
        }
    }

    /// The time before which no part may begin, on the loop's clock.
    pub fn next_part_at_ns(&self) -> u64 {
        self.next_part_at_ns
    }
}

impl Copier {
    /// Ends the pass if the disks allow no clones, or the limit of a user no parts that are large enough.
    pub(super) fn end_clone_pass_if_impossible(&mut self) {
        if !self.copy.may_clone() || self.pace.within_limit(MIN_BYTES) < MIN_BYTES {
            self.clones = None;
        }
    }

    /// The most bytes of the next part.
    pub(super) fn part_limits(&mut self) -> PartLimits {
        let chunk = self.pace.chunk_bytes(self.copy.guest_waits());
        let pass = self.clones.as_ref();
        PartLimits {
            data: pass.map_or(chunk, |pass| self.pace.within_limit(pass.bytes)),
            hole: chunk,
        }
    }

    /// Whether a part is left to the passes that copy.
    pub(super) fn is_copied_later(&self, part: &Part) -> bool {
        self.clones.is_some()
            && match part.kind {
                PartKind::Data => part.len() < MIN_BYTES,
                PartKind::Hole => true,
                PartKind::SharedHole => false,
            }
    }

    pub(super) fn has_clone_in_flight(&self) -> bool {
        let mut all = self.in_flight.iter().flatten();
        all.any(|(one, _)| matches!(one, InFlight::Clone))
    }

    pub(super) fn on_clone_begins(&mut self, bytes: u64) {
        self.pace.count_clone(bytes, self.now_ns);
        if let Some(pass) = &mut self.clones {
            pass.began_ns = self.now_ns;
        }
    }

    /// A part has been cloned, or could not be: then it is still pending, and the copy of it shows an error of a disk, and of which.
    pub(super) fn on_clone_ended(&mut self, result: Result<(), Errno>) {
        let work_ns = self.copy.take_clone_work_ns();
        match (result, &mut self.clones) {
            (Ok(()), Some(pass)) => pass.end_part(work_ns),
            (Err(errno), Some(pass)) if !is_never_cloned(errno) => pass.has_ended = true,
            _ => self.clones = None,
        }
    }
}

/// Whether the error says that these files cannot share extents: the file system, or two of them, or their blocks exclude it.
fn is_never_cloned(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_while_the_kernel_has_little_work_and_shrink_when_it_has_much() {
        let mut pass = ClonePass::new();
        let sizes = [0; 5].map(|work_ns| {
            pass.end_part(work_ns);
            pass.bytes
        });
        assert_eq!((sizes[0], sizes[4]), (FACTOR * MIN_BYTES, MAX_BYTES));
        pass.end_part(FAST_NS);
        assert_eq!(pass.bytes, MAX_BYTES, "between both");
        pass.end_part(FAST_NS * FACTOR);
        assert_eq!(pass.bytes, MAX_BYTES / FACTOR);
        (0..9).for_each(|_| pass.end_part(FAST_NS * FACTOR));
        assert_eq!(pass.bytes, MIN_BYTES);
    }

    #[test]
    fn only_files_that_cannot_share_extents_end_the_pass() {
        for errno in [Errno::NOMEM, Errno::NOSPC, Errno::IO, Errno::AGAIN] {
            assert!(!is_never_cloned(errno), "{errno:?}");
        }
        for errno in [Errno::OPNOTSUPP, Errno::XDEV, Errno::INVAL] {
            assert!(is_never_cloned(errno), "{errno:?}");
        }
    }

    #[test]
    fn guests_have_the_disk_between_two_parts_as_long_as_the_first_one_took() {
        let mut pass = ClonePass::new();
        pass.note_turn(1000);
        assert_eq!(pass.next_part_at_ns(), 0);
        pass.began_ns = 1000;
        pass.note_turn(1100);
        pass.end_part(0);
        pass.note_turn(1500);
        pass.note_turn(1600);
        assert_eq!(pass.next_part_at_ns(), 2000);
    }
}
