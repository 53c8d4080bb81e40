//! The parts that a copier copies next: ranges that are pending, cut at the holes of the source.
//!
//! A hole that is found after the moment of the copy was there at the moment, wherever the copy is still pending when the range is
//! locked: a guest that writes there, or discards, has the range copied with the range locked.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use block::{BlockCopy, COPY_CLUSTER_BYTES, Node};

/// Bytes in which holes are searched at once.
const WINDOW_BYTES: u64 = 64 << 20;
/// The most pieces of a disk in one search.
const MAX_PIECES: usize = 1024;

/// The content of a part, at the source and at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// Data.
    Data,
    /// A hole of the source.
    Hole,
    /// A hole of both.
    SharedHole,
}

/// A part to copy: whole clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub kind: PartKind,
    pub range: Range<u64>,
}

impl Part {
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The most bytes of the next part, by its content.
#[derive(Clone, Copy)]
pub(super) struct PartLimits {
    pub data: u64,
    pub hole: u64,
}

/// A search for holes, with its result.
#[derive(Clone)]
pub(super) struct Query {
    window: Range<u64>,
    found: Arc<Mutex<FoundParts>>,
}

/// The result of a search.
#[derive(Default)]
struct FoundParts {
    parts: Vec<Part>,
    /// There is data from the window's end up to this byte, or the disk's end.
    data_until: u64,
}

impl Query {
    /// Searches the holes. This waits for the disks.
    pub fn find_holes(&self, source: &Node, target: &Node) {
        let mut parts = Vec::new();
        let (source_parts, data_until) = parts_of(source, &self.window, PartKind::Hole);
        for part in source_parts {
            match part.kind {
                PartKind::Hole => {
                    let (target_parts, _) = parts_of(target, &part.range, PartKind::SharedHole);
                    // What is data there has to be zeroed.
                    parts.extend(target_parts.into_iter().map(|part| match part.kind {
                        PartKind::Data => Part {
                            kind: PartKind::Hole,
                            ..part
                        },
                        _ => part,
                    }));
                }
                _ => parts.push(part),
            }
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        *found = FoundParts { parts, data_until };
    }
}

/// The data of a disk in a range, and its holes as parts of kind `hole`, in whole clusters. Together they are the range. An error
/// means data: if the disk fails, reading shows that. With it, the cluster up to which there is data behind the range.
fn parts_of(node: &Node, range: &Range<u64>, hole: PartKind) -> (Vec<Part>, u64) {
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |kind, range: Range<u64>| {
        if !range.is_empty() {
            parts.push(Part { kind, range });
        }
    };
    let pieces = node.allocations(range.start, range.end - range.start, MAX_PIECES);
    let (mut at, mut data_from) = (range.start, range.start);
    let mut data_until = range.end;
    for piece in pieces.unwrap_or_default() {
        let end = (at + piece.len).min(range.end);
        if piece.allocated {
            data_until = data_until.max(at + piece.len);
        } else {
            let start = at.next_multiple_of(COPY_CLUSTER_BYTES);
            let whole_end = match end == range.end {
                true => end,
                false => end / COPY_CLUSTER_BYTES * COPY_CLUSTER_BYTES,
            };
            if start < whole_end {
                add(PartKind::Data, data_from..start);
                add(hole, start..whole_end);
                data_from = whole_end;
            }
        }
        at = end;
    }
    add(PartKind::Data, data_from..range.end);
    (parts, data_until.next_multiple_of(COPY_CLUSTER_BYTES))
}

/// The parts that a copier copies next.
#[derive(Default)]
pub(super) struct CopyPlan {
    /// Where the next search begins.
    cursor: u64,
    /// The last search has found data from there up to this byte. A search through data is slow on some file systems.
    data_until: u64,
    parts: VecDeque<Part>,
}

impl CopyPlan {
    /// The next part: pending, and within the limits if the target is written.
    pub fn next_part(&mut self, copy: &BlockCopy, limits: PartLimits) -> Option<Part> {
        let known_data = self.cursor..self.data_until.min(copy.size());
        if self.parts.is_empty() && !known_data.is_empty() {
            self.cursor = known_data.end;
            self.parts.push_back(Part {
                kind: PartKind::Data,
                range: known_data,
            });
        }
        while let Some(first) = self.parts.front_mut() {
            let Some(pending) = copy.next_pending(first.range.clone()) else {
                self.parts.pop_front();
                continue;
            };
            let most = match first.kind {
                PartKind::Data => limits.data,
                PartKind::Hole => limits.hole,
                PartKind::SharedHole => pending.end - pending.start,
            };
            let end = pending.end.min(pending.start + most);
            first.range.start = end;
            let kind = first.kind;
            return Some(Part {
                kind,
                range: pending.start..end,
            });
        }
        None
    }

    /// The search in the next range that is pending, if there is one.
    pub fn next_query(&mut self, copy: &BlockCopy) -> Option<Query> {
        let next = copy.next_pending(self.cursor..copy.size())?;
        let window = next.start..copy.size().min(next.start + WINDOW_BYTES);
        self.cursor = window.end;
        Some(Query {
            window,
            found: Arc::default(),
        })
    }

    /// The next part without a search for holes: what was a hole when it was searched may be data since, if guests change what is
    /// pending.
    pub fn next_part_as_data(&mut self, copy: &BlockCopy, limits: PartLimits) -> Option<Part> {
        // Most of the time nothing is pending, and a search through a large disk takes its time.
        while !copy.seems_done() {
            if let Some(part) = self.next_part(copy, limits) {
                return Some(part);
            }
            let Query { window, .. } = self.next_query(copy)?;
            self.parts.push_back(Part {
                kind: PartKind::Data,
                range: window,
            });
        }
        None
    }

    /// Adds the parts that a search has found.
    pub fn add_parts_of(&mut self, query: &Query) {
        let mut found = query.found.lock().unwrap_or_else(PoisonError::into_inner);
        self.parts.extend(found.parts.drain(..));
        self.data_until = found.data_until;
    }

    /// Begins at the start of the disk.
    pub fn begin_again(&mut self) {
        (self.cursor, self.data_until) = (0, 0);
    }

    /// The same where something is pending. False: nothing is.
    pub fn begin_again_if_pending(&mut self, copy: &BlockCopy) -> bool {
        self.begin_again();
        copy.next_pending(0..copy.size()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use block::CopyExtent;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A copy of a disk of so many bytes, of which everything is pending.
    fn copy_of_all(size: u64) -> Arc<BlockCopy> {
        let (moment, all) = (Arc::default(), CopyExtent::All);
        let copy = BlockCopy::new(size, COPY_CLUSTER_BYTES, moment, all, |_| ());
        copy.expect("there is memory")
    }

    fn limits(bytes: u64) -> PartLimits {
        let (data, hole) = (bytes, bytes);
        PartLimits { data, hole }
    }

    #[test]
    fn parts_that_write_to_the_target_are_as_long_as_the_pace_allows() {
        let copy = copy_of_all(64 * MIB);
        for (kind, expected) in [
            (PartKind::Data, 0..MIB),
            (PartKind::Hole, 0..MIB),
            (PartKind::SharedHole, 0..64 * MIB),
        ] {
            let mut plan = CopyPlan::default();
            let range = 0..64 * MIB;
            plan.parts.push_back(Part { kind, range });
            let next = plan.next_part(&copy, limits(MIB)).map(|part| part.range);
            assert_eq!(next, Some(expected), "{kind:?}");
        }
    }

    #[test]
    fn known_data_behind_a_window_is_not_searched_again() {
        let size = 256 * MIB;
        let copy = copy_of_all(size);
        let limits = limits(size);
        let mut plan = CopyPlan::default();
        let query = plan.next_query(&copy).expect("all is pending");
        *query.found.lock().unwrap() = FoundParts {
            parts: Vec::new(),
            data_until: 128 * MIB,
        };
        plan.add_parts_of(&query);
        let known = plan.next_part(&copy, limits).map(|part| part.range);
        assert_eq!(known, Some(WINDOW_BYTES..128 * MIB));
        assert_eq!(plan.next_part(&copy, limits), None);
        let next = plan.next_query(&copy).expect("more is pending");
        assert_eq!(next.window.start, 128 * MIB);
        plan.begin_again();
        assert_eq!(plan.next_part(&copy, limits), None);
    }
}
