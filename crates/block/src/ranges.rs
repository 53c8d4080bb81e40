//! Discards and zeroes that the ring carries: which of them can go that way, and what happens after
//! the kernel has answered.
//!
//! The ring makes the first attempt only. Where the file or device says that it cannot, a worker
//! does it all as it does without a ring, and the next ones go to workers at once.

use std::sync::atomic::{AtomicU8, Ordering};

use engine::Errno;
use engine::uring::RangeOp;

use crate::discard::whole_blocks;
use crate::job::Job;
use crate::node::{FdBacking, Node};
use crate::request::{Op, Request};

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE;

/// What is to be done in the place of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// A worker does it.
    Worker,
    /// Nothing: no whole block is in it.
    Nothing,
    /// The ring does it, to so many bytes from an offset in the backing.
    Ring(RangeOp, u64, u64),
}

/// What a backing was found not to do in a ring. (Several iothreads may find out.)
#[derive(Default)]
pub(crate) struct Unable(AtomicU8);

impl Unable {
    fn bit(op: RangeOp) -> u8 {
        match op {
            RangeOp::Fallocate { mode: PUNCH_HOLE } => 1,
            RangeOp::Fallocate { .. } => 2,
            RangeOp::DiscardDevice => 4,
            RangeOp::Flush => 0,
        }
    }

    fn contains(&self, op: RangeOp) -> bool {
        self.0.load(Ordering::Relaxed) & Self::bit(op) != 0
    }

    fn insert(&self, op: RangeOp) {
        self.0.fetch_or(Self::bit(op), Ordering::Relaxed);
    }
}

/// Who does a discard or a write of zeroes.
pub(crate) fn range(node: &Node, backing: &FdBacking, request: &Request) -> Range {
    // Small writes that rewrite their neighbours are kept away under a lock that blocks.
    if request.len == 0 || backing.block_mode.partial() {
        return Range::Worker;
    }
    let offset = request.offset + node.base();
    let (op, offset, len) = match (request.op, backing.device_block) {
        (Op::Discard, None) => (RangeOp::Fallocate { mode: PUNCH_HOLE }, offset, request.len),
        (Op::Discard, Some(block)) => {
            let whole = whole_blocks(offset, request.len, block);
            if whole.is_empty() {
                return Range::Nothing;
            }
            (RangeOp::DiscardDevice, whole.start, whole.end - whole.start)
        }
        (Op::WriteZeroes { unmap }, None) => {
            let mode = if unmap && node.unmap() {
                PUNCH_HOLE
            } else {
                ZERO_RANGE
            };
            (RangeOp::Fallocate { mode }, offset, request.len)
        }
        _ => return Range::Worker,
    };
    if backing.unable.contains(op) {
        Range::Worker
    } else {
        Range::Ring(op, offset, len)
    }
}

/// A request whose range the ring has.
struct Under {
    job: Job,
    op: RangeOp,
}

/// The requests whose ranges the ring has, by the tokens that it was given.
#[derive(Default)]
pub(crate) struct Ranges {
    under_way: Vec<Option<Under>>,
    free: Vec<u32>,
}

/// How it goes on after a completion.
pub(crate) enum After {
    /// The request is done.
    Done(u64, Result<(), Errno>),
    /// It has to be made stable; the ring does that under the same token.
    Flush(Job),
    /// A worker does it all.
    Worker(Job),
}

impl Ranges {
    /// Keeps a request; the token for the ring.
    pub fn keep(&mut self, job: Job, op: RangeOp) -> u64 {
        let under = Some(Under { job, op });
        if let Some(place) = self.free.pop() {
            self.under_way[place as usize] = under;
            return place.into();
        }
        self.under_way.push(under);
        self.under_way.len() as u64 - 1
    }

    /// The ring has answered.
    pub fn answered(&mut self, token: u64, result: Result<(), Errno>) -> Option<After> {
        let place = u32::try_from(token).ok()?;
        let Under { job, op } = self.under_way.get_mut(place as usize)?.take()?;
        self.free.push(place);
        let after = match result {
            Ok(()) if op != RangeOp::Flush && job.must_be_stable() => After::Flush(job),
            // A kernel without the operation calls it invalid, like one that does not like the range:
            // the worker's attempt tells.
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL)
                if op != RangeOp::Flush =>
            {
                if let Some(backing) = job.backing() {
                    backing.unable.insert(op);
                }
                After::Worker(job)
            }
            // Somebody uses the same pages of the page cache: the ioctl waits for them.
            Err(Errno::BUSY) if op == RangeOp::DiscardDevice => After::Worker(job),
            result => After::Done(job.token(), result),
        };
        Some(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Aio, FileOptions, Locking, NodeOptions};
    use std::sync::Arc;

    fn node(folder: &tempfile::TempDir) -> Arc<Node> {
        let path = folder.path().join("disk");
        std::fs::write(&path, [0; 8192]).unwrap();
        let options = FileOptions {
            path,
            direct: false,
            no_flush: false,
            unmap: true,
            aio: Aio::IoUring,
            aio_max_batch: 0,
            locking: Locking::Off,
        };
        Node::open("disk", false, &NodeOptions::File(options)).unwrap()
    }

    fn request(op: Op, fua: bool) -> Request {
        Request {
            op,
            fua,
            offset: 512,
            len: 4096,
            iov: std::ptr::null_mut(),
            iov_count: 0,
            token: 77,
        }
    }

    /// What is kept for the ring, answered like this; what comes after it.
    fn answered(node: &Node, request: Request, result: Result<(), Errno>) -> After {
        let crate::node::Backing::Fd(backing) = &*node.backing else {
            panic!("a file")
        };
        let Range::Ring(op, 512, 4096) = range(node, backing, &request) else {
            panic!("not for the ring")
        };
        let mut ranges = Ranges::default();
        // SAFETY: no segments.
        let token = ranges.keep(unsafe { Job::new(node, request) }, op);
        let after = ranges.answered(token, result).unwrap();
        assert!(ranges.answered(token, result).is_none(), "answered twice");
        after
    }

    #[test]
    fn an_answer_ends_the_request_or_goes_on_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let node = node(&folder);
        let zeroes = |unmap| Op::WriteZeroes { unmap };
        for op in [Op::Discard, zeroes(true), zeroes(false)] {
            let done = answered(&node, request(op, false), Ok(()));
            assert!(matches!(done, After::Done(77, Ok(()))));
            let failed = answered(&node, request(op, true), Err(Errno::IO));
            assert!(matches!(failed, After::Done(77, Err(Errno::IO))));
        }
        let stable = answered(&node, request(zeroes(false), true), Ok(()));
        assert!(matches!(stable, After::Flush(_)));
    }

    #[test]
    fn what_a_file_cannot_is_done_by_workers_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let node = node(&folder);
        let crate::node::Backing::Fd(backing) = &*node.backing else {
            panic!("a file")
        };
        let zeroes = request(Op::WriteZeroes { unmap: false }, false);
        let after = answered(&node, zeroes, Err(Errno::OPNOTSUPP));
        assert!(matches!(after, After::Worker(_)));
        assert_eq!(range(&node, backing, &zeroes), Range::Worker);
        // Another operation is another question.
        let punch = request(Op::WriteZeroes { unmap: true }, false);
        assert!(matches!(range(&node, backing, &punch), Range::Ring(..)));
        let nothing = Request { len: 0, ..punch };
        assert_eq!(range(&node, backing, &nothing), Range::Worker);
    }
}
