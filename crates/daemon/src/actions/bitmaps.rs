//! Changes of dirty bitmaps while guests use their nodes.
//!
//! Routes of nodes whose bitmaps do not record know nothing of bitmaps. So before the first bitmap of a node records, the queues
//! of its exports get new routes, and what they had submitted by the old ones is waited for: an answered command means that every
//! write from then on is recorded. Then all bitmaps of a command are switched at one moment. When the last bitmap of a node
//! has stopped to record, the queues get plain routes again.

use std::sync::Arc;

use block::Node;
use block::dirty_bitmap::{self, BitmapAction, BitmapChange, BitmapUse, SaveKind};

use super::users::{NodeUser, check_no_export_draining, reattach_users, users_of_node};
use crate::disk::bitmap_file::BitmapFile;
use crate::error::BoxError;
use crate::state::DaemonObjects;

/// Changes of bitmaps that were checked as far as the state allows.
pub(crate) struct BitmapPlan {
    actions: Vec<BitmapAction>,
    nodes: Vec<AffectedNode>,
    /// Files of persistent bitmaps, which may be others afterwards.
    files: Vec<(Arc<Node>, Arc<BitmapFile>)>,
}

/// A node whose bitmaps change, with its users.
struct AffectedNode {
    node: Arc<Node>,
    /// A bitmap begins to record, unless an earlier or later action prevents that.
    begins: bool,
    users: Vec<NodeUser>,
}

/// Plans changes of bitmaps of these nodes: `nodes` has those of the actions, in their order.
pub(crate) fn plan(
    objects: &DaemonObjects,
    nodes: &[Arc<Node>],
    actions: Vec<BitmapAction>,
) -> Result<BitmapPlan, BoxError> {
    let mut affected: Vec<AffectedNode> = Vec::new();
    for (node, action) in nodes.iter().zip(&actions) {
        let is_new = matches!(action.change, BitmapChange::Add { .. });
        if is_new && node.snapshot_target().is_some() {
            return Err(format!(
                "Node '{}' is a snapshot, and never changes: add the bitmap to the node that its backup copies",
                node.name()
            )
            .into());
        }
        let begins = matches!(
            action.change,
            BitmapChange::Add { enabled: true, .. }
                | BitmapChange::Enable(true)
                | BitmapChange::BeginSuccessor
        );
        let mut known = affected.iter_mut();
        if let Some(known) = known.find(|known| Arc::ptr_eq(&known.node, node)) {
            known.begins |= begins;
            continue;
        }
        affected.push(AffectedNode {
            node: node.clone(),
            begins,
            users: Vec::new(),
        });
    }
    for affected in &mut affected {
        if affected.begins_to_record() {
            check_no_export_draining(objects, &affected.node)?;
            objects.check_not_written_by_job(&affected.node)?;
        }
        affected.users = users_of_node(objects, &affected.node);
    }
    let opened = affected
        .iter()
        .filter_map(|affected| objects.find_node(affected.node.name()));
    let files = opened.filter_map(|open| Some((open.node.clone(), open.bitmap_file.clone()?)));
    Ok(BitmapPlan {
        files: files.collect(),
        actions,
        nodes: affected,
    })
}

impl BitmapPlan {
    /// Whether queues get new routes, which waits for requests in flight, or files are written.
    pub fn may_wait(&self) -> bool {
        !self.files.is_empty()
            || self.nodes.iter().any(|affected| {
                let records = affected.node.bitmaps().new_routes_record();
                // The last bitmap that records may be removed.
                !affected.users.is_empty() && (records || affected.begins)
            })
    }

    /// The nodes whose routes do not record, and will.
    pub fn nodes_that_begin_to_record(&self) -> impl Iterator<Item = &Arc<Node>> {
        let nodes = self
            .nodes
            .iter()
            .filter(|affected| affected.begins_to_record());
        nodes.map(|affected| &affected.node)
    }

    /// The nodes whose bitmaps change.
    pub fn affected_nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.iter().map(|affected| &affected.node)
    }

    /// Saves which persistent bitmaps there will be, and carries it out: all of it or nothing. This waits for requests in flight if
    /// it [may](Self::may_wait). `at_moment` is called [as the bitmaps are switched](dirty_bitmap::switch_with), and `then`
    /// afterwards, before routes stop to record, with the uses by jobs that have begun.
    pub fn carry_out<T>(
        &self,
        at_moment: impl FnOnce(),
        then: impl FnOnce(Vec<BitmapUse>) -> Result<T, BoxError>,
    ) -> Result<T, BoxError> {
        for affected in self.nodes.iter().filter(|affected| affected.begins) {
            affected.let_routes_record(true);
        }
        let done = self.save_files_of_future().and_then(|()| {
            let switched = dirty_bitmap::switch_with(&self.actions, at_moment);
            switched.map_err(BoxError::from).and_then(then)
        });
        if done.is_err() {
            self.save_files_of_present();
        }
        for affected in &self.nodes {
            if !affected.node.bitmaps().has_recording() {
                affected.let_routes_record(false);
            }
        }
        done
    }

    /// Saves the lists of persistent bitmaps as they will be. Their bits will not be up to date as long as the nodes are in use.
    fn save_files_of_future(&self) -> Result<(), BoxError> {
        if self.files.is_empty() {
            return Ok(());
        }
        for (bitmaps, saved) in dirty_bitmap::preview_saved(&self.actions, SaveKind::InUse)? {
            let mut files = self.files.iter();
            if let Some((_, file)) = files.find(|(node, _)| Arc::ptr_eq(node.bitmaps(), &bitmaps)) {
                file.replace(&saved)?;
            }
        }
        Ok(())
    }

    /// Saves the lists as they are, after a change was not carried out.
    fn save_files_of_present(&self) {
        for (node, file) in &self.files {
            if let Err(error) = file.save_in_use(node) {
                tracing::warn!(
                    node = node.name(),
                    error,
                    "the bitmap-file may list other bitmaps than the node has until it is written again"
                );
            }
        }
    }
}

impl AffectedNode {
    fn begins_to_record(&self) -> bool {
        self.begins && !self.node.bitmaps().new_routes_record()
    }

    /// Gives all users new routes, which record or do not, and waits for requests on the old ones.
    fn let_routes_record(&self, records: bool) {
        let bitmaps = self.node.bitmaps();
        if bitmaps.new_routes_record() == records {
            return;
        }
        bitmaps.let_new_routes_record(records);
        reattach_users(&self.users);
    }
}
