//! Marks: byte ranges that may have changed on a disk, which requests set in a dirty bitmap for a copy of the disk.
//!
//! A request that changes data sets its mark when it has ended, even if it failed, and before its source gets the
//! completion. So an acknowledged write is never without a mark, and a copy that clears a mark and then reads finds the
//! changed data. A request of a task sets its mark when the task is complete.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use engine::Request;

use crate::route::{OpHandler, Route};

/// The receiver of marks, which several iothreads call.
pub(crate) trait MarkReceiver: Send + Sync {
    /// Notes that these bytes of the node may have changed.
    fn mark_range_as_changed(&self, bytes: Range<u64>);
}

/// A route whose requests set marks.
pub(crate) struct MarkedRoute {
    mark: Arc<dyn MarkReceiver>,
    /// Where the route begins in the node that is marked, in bytes.
    base: u64,
    pub below: Route,
}

impl MarkedRoute {
    /// A route that sets a mark for each request that changes data.
    pub fn mark_changes(mark: Arc<dyn MarkReceiver>, below: Route) -> Route {
        let marked = Rc::new(MarkedRoute {
            mark,
            base: 0,
            below: below.clone(),
        });
        below.with_changes_by(|| OpHandler::Marked(marked.clone()))
    }

    /// The marked route as a window that begins at `offset` sees it; `below` is the window's route.
    pub fn shifted(&self, offset: u64, below: Route) -> Self {
        MarkedRoute {
            mark: self.mark.clone(),
            base: self.base + offset,
            below,
        }
    }

    /// The mark that a request sets when it has ended.
    pub fn make_pending_mark(&self, request: &Request) -> PendingMark {
        let start = self.base + request.offset;
        PendingMark {
            mark: self.mark.clone(),
            bytes: start..start + request.len,
        }
    }
}

/// The mark of a request in flight. It is set when this is dropped: when the request has ended.
pub(crate) struct PendingMark {
    mark: Arc<dyn MarkReceiver>,
    bytes: Range<u64>,
}

impl Drop for PendingMark {
    fn drop(&mut self) {
        self.mark.mark_range_as_changed(self.bytes.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use engine::{Errno, Op};

    use super::*;
    use crate::testing::{attached, fault, filter, run_until_completed, submit, window};
    use crate::{Aio, FaultAction, Node, testing};

    const LEN: usize = 1 << 16;

    /// Marks in the order in which they were set: first byte and end.
    #[derive(Default)]
    struct Marks(Mutex<Vec<(u64, u64)>>);

    impl MarkReceiver for Marks {
        fn mark_range_as_changed(&self, bytes: Range<u64>) {
            self.0.lock().unwrap().push((bytes.start, bytes.end));
        }
    }

    impl Marks {
        fn take(&self) -> Vec<(u64, u64)> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn marked(below: &Arc<Node>, marks: &Arc<Marks>) -> Arc<Node> {
        let marks = marks.clone();
        Node::with_changed_routes_for_test("marked", below, move |below| {
            MarkedRoute::mark_changes(marks.clone(), below)
        })
    }

    /// A filter with one rule for writes.
    fn filter_of_writes(below: &Arc<Node>, action: FaultAction) -> Arc<Node> {
        filter(below, [fault(Some(Op::Write), action)])
    }

    fn file() -> Arc<Node> {
        let file = tempfile::NamedTempFile::new().unwrap();
        testing::file(file.path(), &[7; LEN], Aio::Threads)
    }

    fn failing_write(node: &Arc<Node>, offset: u64) {
        let (mut io, disk) = attached(node);
        submit(&mut io, &disk, (Op::Write, offset), vec![1; 4096], 1);
        let done = run_until_completed(&mut io, 1);
        assert!(done[0].result.is_err(), "{done:?}");
    }

    /// By each backend, through a window, and below a task.
    #[test]
    fn a_change_sets_its_mark_when_it_has_ended_and_before_its_completion() {
        let folder = tempfile::tempdir().unwrap();
        for aio in [Aio::Threads, Aio::IoUring] {
            let file = testing::file(&folder.path().join("disk"), &[7; LEN], aio);
            let marks = Arc::new(Marks::default());
            let below = marked(&file, &marks);
            let window = window(&below, 8192);
            let task = filter_of_writes(&window, FaultAction::Delay(1));
            for (node, base) in [(&below, 0), (&window, 8192), (&task, 8192)] {
                let (mut io, disk) = attached(node);
                for op in [Op::Write, Op::WriteZeroes { unmap: false }, Op::Discard] {
                    submit(&mut io, &disk, (op, 4096), vec![1; 4096], 1);
                    io.poll_tasks_and_submit();
                    assert_eq!(marks.take(), [], "{op:?}: it is under way");
                    let done = run_until_completed(&mut io, 1);
                    assert_eq!((done[0].token, done[0].result), (1, Ok(())), "{op:?}");
                    assert_eq!(marks.take(), [(base + 4096, base + 8192)], "{op:?}");
                }
                submit(&mut io, &disk, (Op::Read, 0), vec![0; 4096], 2);
                submit(&mut io, &disk, (Op::Flush, 0), Vec::new(), 3);
                run_until_completed(&mut io, 2);
                assert_eq!(marks.take(), [], "nothing has changed");
                io.detach(disk);
            }
        }
    }

    /// A filter above that lets it do less, one below that lets it fail, and another mark.
    #[test]
    fn a_change_that_fails_sets_its_mark() {
        let (inner, outer) = (Arc::new(Marks::default()), Arc::new(Marks::default()));
        let short = FaultAction::Short(512, Errno::IO);
        for node in [
            filter_of_writes(&file(), FaultAction::Error(Errno::IO)),
            filter_of_writes(&marked(&file(), &inner), short),
        ] {
            failing_write(&marked(&node, &outer), 0);
            assert_eq!(outer.take(), [(0, 4096)]);
        }
        assert_eq!(inner.take(), [(0, 512)]);
    }

    /// One filter cuts a write short, and one below it has a window onto what is marked, or is a window's.
    #[test]
    fn a_change_that_is_cut_short_above_another_filter_sets_its_mark() {
        let marks = Arc::new(Marks::default());
        let part = window(&marked(&file(), &marks), 8192);
        let below = filter_of_writes(&part, FaultAction::Delay(1));
        for (below, base) in [(window(&below, 8192), 16384), (below, 8192)] {
            let short = filter_of_writes(&below, FaultAction::Short(512, Errno::IO));
            failing_write(&short, 4096);
            assert_eq!(marks.take(), [(base + 4096, base + 4608)]);
        }
    }
}
