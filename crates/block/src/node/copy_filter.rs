//! The filter of a job in front of a node that it copies: part of all routes that are made meanwhile.

use std::sync::{Arc, Mutex, PoisonError};

use super::{AttachContext, Node};
use crate::copy::{
    BlockCopy, MirrorMode, add_copy_before_write, add_mirror_filter, add_mirror_marks,
};
use crate::route::Route;

/// The filter, if there is one.
#[derive(Default)]
pub(super) struct CopyFilterSlot(Mutex<Option<CopyFilter>>);

/// A filter.
#[derive(Clone)]
struct CopyFilter {
    copy: Arc<BlockCopy>,
    target: Arc<Node>,
    kind: FilterKind,
}

#[derive(Clone, Copy)]
enum FilterKind {
    CopyBeforeWrite,
    Mirror(MirrorMode),
}

impl CopyFilterSlot {
    /// The route of a source to the node, which `below` is without the filter.
    pub fn add_to_route(&self, below: Route, cx: &mut AttachContext<'_>) -> Route {
        let Some(CopyFilter { copy, target, kind }) = self.get() else {
            return below;
        };
        match kind {
            FilterKind::CopyBeforeWrite => {
                let target = cx.attach_target(&copy, &target);
                add_copy_before_write(copy, below, target)
            }
            FilterKind::Mirror(MirrorMode::Mark) => add_mirror_marks(copy, below),
            FilterKind::Mirror(mode) => {
                let target = cx.attach_target(&copy, &target);
                add_mirror_filter(copy, mode, below, target)
            }
        }
    }

    /// The target of a mirror, if its guests use that alone.
    pub fn node_of_all_requests(&self) -> Option<Arc<Node>> {
        let CopyFilter { copy, target, .. } = self.get()?;
        copy.has_switched_over().then_some(target)
    }

    /// The target of a mirror, if all that guests write goes there as well.
    pub fn node_written_as_well(&self) -> Option<Arc<Node>> {
        let filter = self.get()?;
        let is_finishing = matches!(filter.kind, FilterKind::Mirror(MirrorMode::Finish));
        (is_finishing && filter.copy.writes_to_target()).then_some(filter.target)
    }

    /// The copy of what guests change, with its target.
    pub fn copy_of_changes(&self) -> Option<(Arc<BlockCopy>, Arc<Node>)> {
        let CopyFilter { copy, target, kind } = self.get()?;
        let is_current = copy.is_of_changes() && !copy.is_over();
        (is_current && matches!(kind, FilterKind::CopyBeforeWrite)).then_some((copy, target))
    }

    fn get(&self) -> Option<CopyFilter> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone()
    }

    fn set(&self, filter: Option<CopyFilter>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = filter;
    }
}

impl Node {
    /// Gives routes that are made from now on a filter that copies to `target` before a write. The copy is right only if all
    /// routes that requests use have it: replace those that exist, and wait for their requests.
    pub fn set_copy_before_write(&self, copy: &Arc<BlockCopy>, target: &Arc<Node>) {
        self.set_copy_filter(copy, target, FilterKind::CopyBeforeWrite);
    }

    /// Gives routes that are made from now on the part of a [mirror](BlockCopy::new_mirror) to `target`. The same holds.
    pub fn set_mirror(&self, copy: &Arc<BlockCopy>, target: &Arc<Node>, mode: MirrorMode) {
        self.set_copy_filter(copy, target, FilterKind::Mirror(mode));
    }

    fn set_copy_filter(&self, copy: &Arc<BlockCopy>, target: &Arc<Node>, kind: FilterKind) {
        if let Some(export) = target.underlying_nbd() {
            copy.group_requests_to(export);
        }
        self.copy_filter.set(Some(CopyFilter {
            copy: copy.clone(),
            target: target.clone(),
            kind,
        }));
    }

    /// The running backup that copies only what guests change, with its target.
    pub(crate) fn copy_of_changes(&self) -> Option<(Arc<BlockCopy>, Arc<Node>)> {
        self.copy_filter.copy_of_changes()
    }

    /// Gives routes that are made from now on no filter of a job.
    pub fn remove_copy_filter(&self) {
        self.copy_filter.set(None);
    }
}
