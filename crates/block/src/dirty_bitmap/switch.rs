//! Changes of bitmaps: any number of them, of any nodes, at one moment; all of them or none.

use std::sync::Arc;

use super::recorder::{
    BitmapUse, NamedBitmap, NodeBitmaps, NodeBitmapsState, StoppedRecorders, find,
};
use super::saved::save_list;
use super::{BitmapBits, BitmapError, BitmapMemory, MAX_NAME_BYTES, SaveKind};
use crate::sync::MutexGuard;

/// A change of one bitmap.
pub struct BitmapAction {
    /// The node of the bitmap.
    pub node: Arc<NodeBitmaps>,
    /// The bitmap's name.
    pub bitmap: String,
    /// What changes.
    pub change: BitmapChange,
}

/// What changes in a bitmap.
pub enum BitmapChange {
    /// It is created, without dirty bits.
    Add {
        /// Bytes of the node.
        size: u64,
        /// Bytes for which there is one bit.
        granularity: u64,
        /// Whether it records.
        enabled: bool,
        /// Whether it outlives the daemon.
        persistent: bool,
    },
    /// It is removed.
    Remove,
    /// All of it becomes clean.
    Clear,
    /// It begins to record, or stops.
    Enable(bool),
    /// It gets the dirty bits of others, too.
    Merge(Vec<(Arc<NodeBitmaps>, String)>),
    /// A job begins to use the bitmap, which later actions cannot change any more: changes from now on are recorded in a successor
    /// as well, also if the bitmap does not record. It ends with the [use](BitmapUse).
    BeginSuccessor,
    /// Nothing changes, and none of the actions is carried out.
    Abort,
}

/// A node whose bitmaps are locked, with its list of bitmaps as it will be.
struct StagedNode<'a> {
    node: &'a Arc<NodeBitmaps>,
    /// Dropped before the lock: copies count as users.
    list: Vec<NamedBitmap>,
    state: MutexGuard<'a, NodeBitmapsState>,
}

/// A merge that is carried out when no bits are set.
struct StagedMerge {
    target: Arc<BitmapBits>,
    source: Arc<BitmapBits>,
}

/// How many lists have a bitmap while a switch is prepared: that of the node, and the new one.
const LIST_COPIES: usize = 2;

/// Carries out these changes at one moment, in this order: no recorder sets bits meanwhile, so each request is recorded before
/// all of them, or after all of them.
///
/// Bitmaps that record from now on miss requests of routes without [recorders](NodeBitmaps::let_new_routes_record).
///
/// Returns the uses by jobs that have begun, in the order of their actions.
///
/// # Errors
/// [`BitmapError`] of the first action that is not possible. Nothing has changed then.
pub fn switch(actions: &[BitmapAction]) -> Result<Vec<BitmapUse>, BitmapError> {
    switch_with(actions, || ())
}

/// As [`switch`]. `at_moment` is called while the bitmaps are switched, if all actions are possible: no write to the nodes is
/// answered from before the call until they have been. It must not wait.
///
/// # Errors
/// As for [`switch`].
pub fn switch_with(
    actions: &[BitmapAction],
    at_moment: impl FnOnce(),
) -> Result<Vec<BitmapUse>, BitmapError> {
    // Dropped after the locks, which their end takes.
    let mut uses = Vec::new();
    let mut staged = lock_nodes(actions);
    let merges = stage_all(&mut staged, actions, &mut uses)?;
    let recorders: Vec<_> = staged
        .iter()
        .map(|staged| staged.state.live_recorders())
        .collect();
    let mut stopped: Vec<_> = recorders
        .iter()
        .map(|recorders| StoppedRecorders::stop(recorders))
        .collect();
    at_moment();
    for StagedMerge { target, source } in &merges {
        target.merge(source);
    }
    for (staged, stopped) in staged.iter_mut().zip(&mut stopped) {
        let mut list = std::mem::take(&mut staged.list);
        list.retain(|bitmap| !bitmap.removed);
        for bitmap in &mut list {
            let begins = |begun: &BitmapUse| begun.is_of(staged.node, &bitmap.name);
            if uses.iter().any(begins) {
                bitmap.note_dirty_bytes_at_begin();
            }
        }
        staged.state.list = list;
        stopped.record_in_bitmaps_of(&staged.state);
    }
    Ok(uses)
}

/// Saved bitmaps of a node.
pub type SavedOfNode = (Arc<NodeBitmaps>, Vec<u8>);

/// What would be saved of the nodes of these changes if they were carried out now: nothing changes.
///
/// # Errors
/// As for [`switch`].
pub fn preview_saved(
    actions: &[BitmapAction],
    kind: SaveKind,
) -> Result<Vec<SavedOfNode>, BitmapError> {
    // As in `switch`.
    let mut uses = Vec::new();
    let mut staged = lock_nodes(actions);
    stage_all(&mut staged, actions, &mut uses)?;
    let saved = staged.iter_mut().map(|staged| {
        staged.list.retain(|bitmap| !bitmap.removed);
        (staged.node.clone(), save_list(&staged.list, kind))
    });
    Ok(saved.collect())
}

/// Locks the nodes of the actions, in the order of their addresses.
fn lock_nodes(actions: &[BitmapAction]) -> Vec<StagedNode<'_>> {
    let mut nodes: Vec<&Arc<NodeBitmaps>> = Vec::new();
    for action in actions {
        nodes.push(&action.node);
        if let BitmapChange::Merge(sources) = &action.change {
            nodes.extend(sources.iter().map(|(node, _)| node));
        }
    }
    nodes.sort_by_key(|node| Arc::as_ptr(node).addr());
    nodes.dedup_by_key(|node| Arc::as_ptr(node));
    let staged = nodes.into_iter().map(|node| {
        let state = node.lock_state();
        let list = state.list.clone();
        StagedNode { node, list, state }
    });
    staged.collect()
}

/// The new list of bitmaps of a node.
fn list_of<'a>(
    staged: &'a mut [StagedNode<'_>],
    node: &Arc<NodeBitmaps>,
) -> &'a mut Vec<NamedBitmap> {
    let mut nodes = staged.iter_mut();
    let found = nodes.find(|staged| Arc::ptr_eq(staged.node, node));
    let Some(found) = found else {
        unreachable!("the nodes of all actions are locked");
    };
    &mut found.list
}

/// Carries out all actions in the new lists, but for the merges that this returns.
fn stage_all(
    staged: &mut [StagedNode<'_>],
    actions: &[BitmapAction],
    uses: &mut Vec<BitmapUse>,
) -> Result<Vec<StagedMerge>, BitmapError> {
    let (mut merges, mut memory) = (Vec::new(), BitmapMemory::default());
    for action in actions {
        stage(staged, action, &mut memory, &mut merges, uses)?;
    }
    Ok(merges)
}

/// Carries out an action in the new lists.
fn stage(
    staged: &mut [StagedNode<'_>],
    action: &BitmapAction,
    memory: &mut BitmapMemory,
    merges: &mut Vec<StagedMerge>,
    uses: &mut Vec<BitmapUse>,
) -> Result<(), BitmapError> {
    let name = &action.bitmap;
    let list = list_of(staged, &action.node);
    match &action.change {
        BitmapChange::Add {
            size,
            granularity,
            enabled,
            persistent,
        } => {
            check_name_is_new(list, name)?;
            memory.count(*size, *granularity)?;
            let bits = BitmapBits::new(*size, *granularity)?;
            list.insert(0, NamedBitmap::new(name, bits, *enabled, *persistent));
        }
        BitmapChange::Remove => find_unused(list, name)?.removed = true,
        BitmapChange::Clear => {
            let bitmap = find_usable(list, name)?;
            let (size, granularity) = (bitmap.bits.size(), bitmap.bits.granularity());
            memory.count(size, granularity)?;
            bitmap.bits = Arc::new(BitmapBits::new(size, granularity)?);
        }
        BitmapChange::Enable(enabled) => find_usable(list, name)?.enabled = *enabled,
        BitmapChange::Merge(sources) => {
            let target = find_usable(list, name)?.bits.clone();
            for (node, name) in sources {
                let source = find_usable(list_of(staged, node), name)?.bits.clone();
                if source.size() != target.size() {
                    return Err(BitmapError::Sizes {
                        target: target.size(),
                        other: source.size(),
                    });
                }
                let target = target.clone();
                merges.push(StagedMerge { target, source });
            }
        }
        BitmapChange::BeginSuccessor => {
            let bitmap = find_usable(list, name)?;
            let (size, granularity) = (bitmap.bits.size(), bitmap.bits.granularity());
            memory.count(size, granularity)?;
            bitmap.successor = Some(Arc::new(BitmapBits::new(size, granularity)?));
            uses.push(BitmapUse::new(&action.node, bitmap));
        }
        BitmapChange::Abort => return Err(BitmapError::Aborted),
    }
    Ok(())
}

/// Checks the name of a new bitmap.
fn check_name_is_new(list: &[NamedBitmap], name: &str) -> Result<(), BitmapError> {
    match name.len() {
        0 => Err(BitmapError::EmptyName),
        len if len > MAX_NAME_BYTES => Err(BitmapError::LongName(name.to_owned())),
        _ if find(list, name).is_ok() => Err(BitmapError::Exists(name.to_owned())),
        _ => Ok(()),
    }
}

/// The bitmap of this name, which is not in use.
fn find_unused<'a>(
    list: &'a mut [NamedBitmap],
    name: &str,
) -> Result<&'a mut NamedBitmap, BitmapError> {
    find(list, name)?.check_not_busy(LIST_COPIES)?;
    let mut bitmaps = list.iter_mut();
    let found = bitmaps.find(|bitmap| bitmap.name == name);
    found.ok_or_else(|| BitmapError::NotFound(name.to_owned()))
}

/// The bitmap of this name, which is not in use and has missed no changes.
fn find_usable<'a>(
    list: &'a mut [NamedBitmap],
    name: &str,
) -> Result<&'a mut NamedBitmap, BitmapError> {
    let bitmap = find_unused(list, name)?;
    bitmap.check_consistent()?;
    Ok(bitmap)
}
