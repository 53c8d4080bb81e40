//! Driver `blkdebug`: a node in front of another one, which lets some requests fail, wait, or do less than
//! they say.
//!
//! A filter has no engine of its own. What it lets pass goes to whatever carries the node below; what it holds
//! back is kept here, by the clock of the loop's timers; of what is cut short the rest is a worker's. Nodes without
//! a filter do not come here.

use std::sync::Arc;

use engine::{Completion, Full};

use crate::engines::Engines;
use crate::faults::{Fate, Faults, Hold, Verdict};
use crate::held::{Due, Held, NEVER_NS};
use crate::job::{Job, Work};
use crate::node::{Backing, Node};
use crate::null::now_ns;
use crate::request::{Op, Request};

/// What stands behind a filter node.
pub(crate) struct Filter {
    pub below: Arc<Node>,
    pub faults: Arc<Faults>,
}

impl Engines {
    /// The requests of the queue at this place, which is the upper half of their tokens, are not held back any longer:
    /// it wants to end. Until [`may_hold`](Self::may_hold) none is.
    #[cold]
    pub fn hold_no_more(&mut self, place: u32) {
        self.not_held.push(place);
        self.null.waiting.release_place(place);
    }

    /// The queue at this place has ended.
    #[cold]
    pub fn may_hold(&mut self, place: u32) {
        self.not_held.retain(|not_held| *not_held != place);
    }

    /// # Safety
    /// As for [`submit`](Self::submit).
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn submit_filtered(
        &mut self,
        node: &Node,
        filter: &Filter,
        request: Request,
    ) -> Result<(), Full> {
        let op = match request.op {
            Op::Discard if !node.unmap() => return self.null.complete(request.token),
            Op::WriteZeroes { unmap } => Op::WriteZeroes {
                unmap: unmap && node.unmap(),
            },
            op => op,
        };
        let offset = request.offset + node.base();
        let request = Request {
            op,
            offset,
            ..request
        };
        let Verdict {
            mut hold,
            fate,
            edition,
        } = filter.faults.judge(&request);
        if self
            .not_held
            .iter()
            .any(|place| u64::from(*place) == request.token >> 32)
        {
            hold = Hold::For(0);
        }
        let deadline_ns = match hold {
            // SAFETY: our caller promises the same.
            Hold::For(0) => return unsafe { self.meet_fate(&filter.below, request, fate) },
            Hold::For(ns) => now_ns().saturating_add(ns).min(NEVER_NS - 1),
            Hold::UntilReleased => NEVER_NS,
        };
        let held = Held {
            below: filter.below.clone(),
            request,
            fate,
            faults: filter.faults.clone(),
            edition,
        };
        self.null
            .waiting
            .push(deadline_ns, Due::Held(Box::new(held)));
        Ok(())
    }

    /// # Safety
    /// As for [`submit`](Self::submit), of a request to `below`.
    unsafe fn meet_fate(
        &mut self,
        below: &Arc<Node>,
        request: Request,
        fate: Fate,
    ) -> Result<(), Full> {
        match fate {
            // SAFETY: our caller promises the same.
            Fate::Carry => unsafe { self.submit(below, request) },
            Fate::Fail(errno) => self.null.end(request.token, Err(errno)),
            Fate::Part(bytes, result) => {
                let bytes = bytes.min(request.len);
                if bytes == 0 {
                    return self.null.end(request.token, result);
                }
                let (disk, offset) = lowest(below, request.offset);
                let part = Request {
                    offset,
                    len: bytes,
                    ..request
                };
                // SAFETY: our caller vouches for all that a job is promised.
                let job = unsafe { Job::new(disk, part) };
                self.pool.push(Work::Part(job, result));
                Ok(())
            }
        }
    }

    /// What waited long enough, or is released, goes on.
    #[cold]
    #[inline(never)]
    pub(crate) fn reap_waiting(&mut self, out: &mut Vec<Completion>) {
        self.null.waiting.look_for_released();
        let now_ns = now_ns();
        while let Some(due) = self.null.waiting.take_due(now_ns) {
            match due {
                Due::Done(token) => out.push(Completion {
                    token,
                    result: Ok(()),
                }),
                Due::Held(held) => {
                    // SAFETY: who submitted it keeps its promise until it completes.
                    let taken = unsafe { self.meet_fate(&held.below, held.request, held.fate) };
                    if taken == Err(Full) {
                        // As soon as something has completed. Nobody else was promised that place.
                        self.null.waiting.push(0, Due::Held(held));
                        break;
                    }
                }
            }
        }
    }
}

/// The disk under filters, whose own rules are not asked any more.
fn lowest(node: &Arc<Node>, offset: u64) -> (&Arc<Node>, u64) {
    match &*node.backing {
        Backing::Filter(filter) => lowest(&filter.below, offset + node.base()),
        Backing::Fd(_) | Backing::Null(_) => (node, offset),
    }
}
