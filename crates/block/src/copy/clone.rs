//! Copying of a part by cloning, where both disks are files of one file system that can share extents.
//!
//! The kernel does all of it: nothing may need the data on their way. So there is nothing but windows and dirty bitmaps in front of
//! both files. The target frees what it had there before, so that takes its option `discard=unmap`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Errno, Op, Request};

use super::{BlockCopy, CopyRoutes};
use crate::disk_file::clone::CloneRange;
use crate::route::task::TaskContext;
use crate::route::{FileTarget, OpHandler, Route};

impl CopyRoutes {
    /// The parts of files that are source and target, if nothing between needs the data.
    fn files(&self) -> Option<(&FileTarget, &FileTarget)> {
        let source = file_behind_marks(&self.source, Op::Read)?;
        let target = file_behind_marks(&self.target, Op::Write)?;
        let frees_space = self.target.disk.as_ref()?.unmap;
        frees_space.then_some((source, target))
    }
}

/// The part of a file that an operation of a route leads to, if it only sets marks on its way.
fn file_behind_marks(route: &Route, op: Op) -> Option<&FileTarget> {
    match route.handler(op) {
        #[cfg(feature = "simulation")]
        OpHandler::File(target) if target.file.simulated.is_some() => None,
        OpHandler::File(target) => target.file.device_block.is_none().then_some(target),
        OpHandler::Marked(marked) => file_behind_marks(&marked.below, op),
        _ => None,
    }
}

/// Clones what is pending in a range, which is locked.
///
/// # Errors
/// [`Errno::OPNOTSUPP`]: the routes exclude it. Others are the kernel's. What is not cloned is pending.
pub(crate) async fn clone_pending(
    cx: &TaskContext,
    copy: &Arc<BlockCopy>,
    routes: &CopyRoutes,
    range: Range<u64>,
) -> Result<(), Errno> {
    let (source, target) = routes.files().ok_or(Errno::OPNOTSUPP)?;
    let mut from = range.start;
    while let Some(piece) = copy.begin_next_piece(from..range.end, u64::MAX) {
        from = piece.end;
        let len = piece.end - piece.start;
        copy.note_write_to_target(&piece);
        let write = Request::without_data(Op::Write, piece.start, len, 0);
        // There are no gates.
        cx.wait_at_gates_and_add_marks(&routes.target, write).await;
        let cloned = cx.clone_on_worker(CloneRange {
            source: source.file.clone(),
            source_offset: source.base + piece.start,
            target: target.file.clone(),
            target_offset: target.base + piece.start,
            len,
            work_ns: copy.clone_work_ns.clone(),
        });
        let cloned = cloned.await;
        copy.end_piece(piece, cloned.is_ok());
        cloned?;
    }
    Ok(())
}

impl BlockCopy {
    /// Notes whether the copier's routes allow to clone.
    pub(crate) fn check_routes_for_cloning(&self, routes: &CopyRoutes) {
        let may_clone = routes.files().is_some();
        self.may_clone.store(may_clone, Ordering::Relaxed);
    }

    /// Whether the copier, which has been attached, may try to clone.
    #[must_use]
    pub fn may_clone(&self) -> bool {
        self.may_clone.load(Ordering::Relaxed)
    }

    /// The processor time that the kernel has taken for clones since the last call of this, in nanoseconds.
    #[must_use]
    pub fn take_clone_work_ns(&self) -> u64 {
        self.clone_work_ns.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::node::AttachContext;
    use crate::testing::filter;
    use crate::{Aio, DetectZeroes, Node, ThrottleGroup, ThrottleLimits, testing};

    const BYTES: usize = 1 << 16;

    /// The first bytes of the nodes in their files, if one can be cloned to the other.
    fn first_bytes(source: &Arc<Node>, target: &Arc<Node>) -> Option<(u64, u64)> {
        let mut io = testing::io();
        let mut watch = |_: std::os::fd::BorrowedFd<'_>| Ok(());
        let mut cx = AttachContext::new(&mut io, &mut watch);
        let (source, target) = (cx.attach_route(source), cx.attach_route(target));
        let routes = CopyRoutes { source, target };
        let (source, target) = routes.files()?;
        Some((source.base, target.base))
    }

    fn file() -> Arc<Node> {
        let file = tempfile::NamedTempFile::new().unwrap();
        testing::file(file.path(), &[7; BYTES], Aio::Threads)
    }

    fn window(below: &Arc<Node>, offset: u64, unmap: bool) -> Arc<Node> {
        Node::new_window("window", below, offset, None, false, unmap).unwrap()
    }

    #[test]
    fn files_are_cloned_through_windows_where_the_target_frees_space() {
        let [source, target] = [file(), file()];
        assert_eq!(first_bytes(&source, &target), Some((0, 0)));
        let (from, to) = (window(&source, 4096, false), window(&target, 8192, true));
        let inner = window(&from, 512, false);
        assert_eq!(first_bytes(&inner, &to), Some((4608, 8192)));
        let keeps_space = window(&target, 0, false);
        assert_eq!(first_bytes(&source, &keeps_space), None);
    }

    #[test]
    fn nothing_is_cloned_past_a_node_that_needs_the_data_or_counts_requests() {
        let [source, target] = [file(), file()];
        let group = ThrottleGroup::new("group", ThrottleLimits::default());
        let throttled = |below| Node::new_throttle("throttled", below, &group, false, true);
        for (source, target) in [
            (&throttled(&source), &target),
            (&source, &throttled(&target)),
            (&filter(&source, []), &target),
            (&source, &filter(&target, [])),
            (&testing::null(), &target),
            (&source, &testing::null()),
        ] {
            assert_eq!(first_bytes(source, target), None);
        }
        target.set_detect_zeroes(DetectZeroes::Unmap);
        assert_eq!(first_bytes(&source, &target), None);
    }
}
