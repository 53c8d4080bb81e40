//! Discards and write-zeroes by a ring: the async task that tries the ring first, and then a worker thread.
//!
//! The ring makes the first attempt. Where the file or device does not support the operation, a worker carries it out, as
//! without a ring, and later requests of that kind go to workers at once.

use std::rc::Rc;

use engine::uring::File;
use engine::{Errno, Op, Request};

use crate::disk_file::discard::whole_blocks;
use crate::route::task::{LocalFuture, RingRequest, TaskContext, TaskNode};
use crate::route::{Carrier, FileTarget};

/// How a discard or write-zeroes is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeOpDispatch {
    Worker,
    /// Not at all: it contains no whole block.
    Nothing,
    /// By the ring: operation, offset in the file, bytes.
    Ring(Op, u64, u64),
}

/// The async task for discards and write-zeroes of one file on one route.
pub(crate) struct RingRangeTask {
    pub target: FileTarget,
}

impl RingRangeTask {
    /// Chooses how a request is carried out. Discards on a device are reduced to whole blocks.
    fn choose_dispatch(&self, request: &Request) -> RangeOpDispatch {
        let backing = &self.target.file;
        // Excluding small writes, which rewrite whole blocks, takes a lock that blocks.
        if request.len == 0 || backing.block_mode.has_partial_blocks() {
            return RangeOpDispatch::Worker;
        }
        let Request {
            op, offset, len, ..
        } = self.target.to_file_request(request);
        let (op, offset, len) = match (op, backing.device_block) {
            // For a file the two are the same.
            (Op::Discard, None) => (Op::WriteZeroes { unmap: true }, offset, len),
            (Op::Discard, Some(block)) => {
                let whole = whole_blocks(offset, len, block);
                if whole.is_empty() {
                    return RangeOpDispatch::Nothing;
                }
                (Op::Discard, whole.start, whole.end - whole.start)
            }
            (Op::WriteZeroes { .. }, None) => (op, offset, len),
            _ => return RangeOpDispatch::Worker,
        };
        if backing.unsupported.contains(op) {
            RangeOpDispatch::Worker
        } else {
            RangeOpDispatch::Ring(op, offset, len)
        }
    }

    /// Carries a request out by the ring, or by a worker if the ring refuses.
    async fn run_on_ring_or_worker(
        &self,
        cx: &TaskContext,
        file: File,
        request: Request,
    ) -> Result<(), Errno> {
        let (op, offset, len) = match self.choose_dispatch(&request) {
            RangeOpDispatch::Nothing => return Ok(()),
            RangeOpDispatch::Worker => return cx.run_on_worker(&self.target, request).await,
            RangeOpDispatch::Ring(op, offset, len) => (op, offset, len),
        };
        let backing = &self.target.file;
        let ring = |op, offset, len| {
            cx.run_on_ring(RingRequest {
                request: Request {
                    op,
                    fua: false,
                    offset,
                    len,
                    ..request
                },
                name: file,
                file_index: backing.id.as_index(),
            })
        };
        match ring(op, offset, len).await {
            Ok(()) if request.fua && !backing.no_flush => ring(Op::Flush, 0, 0).await,
            // A kernel without the operation returns EINVAL, as for a range that it refuses: the worker's attempt tells
            // them apart.
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
                backing.unsupported.insert(op);
                cx.run_on_worker(&self.target, request).await
            }
            // Another user of the page cache has the same pages; the worker's ioctl waits for them.
            Err(Errno::BUSY) if op == Op::Discard => cx.run_on_worker(&self.target, request).await,
            result => result,
        }
    }
}

impl TaskNode for RingRangeTask {
    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        Box::pin(async move {
            match self.target.carrier {
                Carrier::Ring(file) => self.run_on_ring_or_worker(&cx, file, request).await,
                Carrier::Native | Carrier::Workers => cx.run_on_worker(&self.target, request).await,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::task::{BackendRequest, Executor};
    use crate::testing;
    use engine::Completion;
    use std::sync::Arc;

    fn ranges(folder: &tempfile::TempDir) -> Rc<RingRangeTask> {
        let ring = Carrier::Ring(File::Descriptor(-1));
        let target = testing::target(&folder.path().join("disk"), ring);
        Rc::new(RingRangeTask { target })
    }

    fn request(op: Op, fua: bool) -> Request {
        Request {
            fua,
            ..Request::without_data(op, 512, 4096, 77)
        }
    }

    /// Runs a request: the operations that it submits, each completed with the next of `results`, and its own result.
    fn run_with(
        ranges: &Rc<RingRangeTask>,
        request: Request,
        results: &[Result<(), Errno>],
    ) -> (Vec<&'static str>, Result<(), Errno>) {
        let mut tasks = Executor::new(Arc::new(|| ()));
        tasks.spawn(ranges.clone(), request, 0);
        let (mut submitted, mut out) = (Vec::new(), Vec::new());
        for result in results.iter().copied().map(Some).chain([None]) {
            tasks.poll_due_and_woken();
            tasks.take_completed(&mut out);
            let Some(outgoing) = tasks.pop_outgoing() else {
                break;
            };
            let (name, token) = match &outgoing {
                BackendRequest::Ring(RingRequest { request, .. }) => {
                    let name = match request.op {
                        Op::WriteZeroes { unmap: true } => "punch",
                        Op::WriteZeroes { unmap: false } => "zero",
                        Op::Flush => "flush",
                        other => panic!("{other:?} by the ring"),
                    };
                    (name, request.token)
                }
                BackendRequest::Worker(_, request) => ("worker", request.token),
                _ => panic!("neither the ring nor a worker"),
            };
            submitted.push(name);
            let result = result.expect("as many as are submitted");
            let mut done = vec![Completion { token, result }];
            tasks.dispatch_io_completions(&mut done);
            assert_eq!(done, [], "it was the task's");
        }
        assert!(tasks.pop_outgoing().is_none());
        let [Completion { token: 77, result }] = out[..] else {
            panic!("not complete: {out:?}");
        };
        (submitted, result)
    }

    #[test]
    fn the_ring_carries_ranges_and_fua_flushes_after_success() {
        let folder = tempfile::tempdir().unwrap();
        let ranges = ranges(&folder);
        let zeroes = |unmap| Op::WriteZeroes { unmap };
        for (op, name) in [
            (Op::Discard, "punch"),
            (zeroes(true), "punch"),
            (zeroes(false), "zero"),
        ] {
            let done = run_with(&ranges, request(op, false), &[Ok(())]);
            assert_eq!(done, (vec![name], Ok(())));
            let failed = run_with(&ranges, request(op, true), &[Err(Errno::IO)]);
            assert_eq!(failed, (vec![name], Err(Errno::IO)));
        }
        let stable = run_with(&ranges, request(zeroes(false), true), &[Ok(()), Ok(())]);
        assert_eq!(stable, (vec!["zero", "flush"], Ok(())));
        let unstable = [Ok(()), Err(Errno::IO)];
        let failed = run_with(&ranges, request(zeroes(false), true), &unstable);
        assert_eq!(failed, (vec!["zero", "flush"], Err(Errno::IO)));
    }
}
