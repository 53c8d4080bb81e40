//! Writes that are under way when the bitmaps of a transaction are switched, which is the moment of its backups.
//!
//! Such a write may be in the backups, but it is recorded when it ends, by the bitmaps that record then. So a bitmap that the transaction
//! has disabled, or merged others into, would lack it, and so would an increment that a client pulls by that bitmap. Therefore an
//! additional bitmap of the node records until all such writes have ended, and is merged into it.

use std::sync::Arc;

use block::Node;
use block::dirty_bitmap::{
    BitmapAction, BitmapChange, BitmapError, BitmapStatus, DEFAULT_GRANULARITY, switch,
};

use super::backup::JobPlan;

/// Name of the additional bitmaps, unless a client has given it to another one.
const NAME: &str = "#under-way";

/// Bitmaps that may stop to record in a transaction with backups.
pub(super) struct WritesUnderWay {
    bitmaps: Vec<(Arc<Node>, String)>,
    name_of_additional: String,
}

impl WritesUnderWay {
    /// Finds the bitmaps of the backups' sources among the changes, to which it adds those of additional bitmaps.
    pub fn add_bitmaps(changes: &mut Vec<(Arc<Node>, BitmapAction)>, backups: &[JobPlan]) -> Self {
        let is_of_source = |node: &Node| {
            let mut sources = backups.iter().map(|backup| &backup.source);
            sources.any(|source| source.is_on_same_path_as(node))
        };
        let may_stop = |action: &BitmapAction| {
            matches!(
                action.change,
                BitmapChange::Enable(false) | BitmapChange::Merge(_)
            )
        };
        let bitmaps = changes.iter();
        let bitmaps = bitmaps.filter(|(node, action)| may_stop(action) && is_of_source(node));
        let bitmaps = bitmaps.map(|(node, action)| (node.clone(), action.bitmap.clone()));
        let mut found = WritesUnderWay {
            bitmaps: bitmaps.collect(),
            name_of_additional: String::new(),
        };
        found.name_of_additional = unused_name(&found.nodes(), changes);
        for node in found.nodes() {
            let add = BitmapChange::Add {
                size: node.size(),
                granularity: DEFAULT_GRANULARITY,
                enabled: true,
                persistent: false,
            };
            changes.push((
                node.clone(),
                action_of(node, &found.name_of_additional, add),
            ));
        }
        found
    }

    /// Merges the additional bitmaps into those that no longer record, and removes them, also if that fails. All writes have ended.
    pub fn merge_and_remove_bitmaps(&self) -> Result<(), BitmapError> {
        let stopped = self.bitmaps.iter().filter(|(node, name)| {
            let has_stopped = |bitmap: &BitmapStatus| {
                bitmap.name == *name && !(bitmap.recording || bitmap.busy || bitmap.inconsistent)
            };
            node.bitmaps().statuses().iter().any(has_stopped)
        });
        let merges = stopped.map(|(node, name)| {
            let additional = vec![(node.bitmaps().clone(), self.name_of_additional.clone())];
            action_of(node, name, BitmapChange::Merge(additional))
        });
        let removals = self.nodes().into_iter();
        let removals =
            removals.map(|node| action_of(node, &self.name_of_additional, BitmapChange::Remove));
        let merged = switch(&merges.collect::<Vec<_>>());
        let removed = switch(&removals.collect::<Vec<_>>());
        merged.and(removed).map(drop)
    }

    /// The nodes of the bitmaps.
    fn nodes(&self) -> Vec<&Arc<Node>> {
        let mut nodes: Vec<&Arc<Node>> = self.bitmaps.iter().map(|(node, _)| node).collect();
        nodes.sort_by_key(|node| Arc::as_ptr(node).addr());
        nodes.dedup_by_key(|node| Arc::as_ptr(node));
        nodes
    }
}

/// A name that neither a bitmap of the nodes has nor one of the changes.
fn unused_name(nodes: &[&Arc<Node>], changes: &[(Arc<Node>, BitmapAction)]) -> String {
    let is_used = |name: &String| {
        let mut statuses = nodes.iter().flat_map(|node| node.bitmaps().statuses());
        changes.iter().any(|(_, action)| action.bitmap == *name)
            || statuses.any(|bitmap| bitmap.name == *name)
    };
    let mut name = NAME.to_owned();
    while is_used(&name) {
        name.push('#');
    }
    name
}

fn action_of(node: &Arc<Node>, bitmap: &str, change: BitmapChange) -> BitmapAction {
    BitmapAction {
        node: node.bitmaps().clone(),
        bitmap: bitmap.to_owned(),
        change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::null_disk;

    const BYTES: u64 = 1 << 20;

    #[test]
    fn additional_bitmap_is_removed_also_if_it_cannot_be_merged() {
        for size_of_bitmap in [BYTES, BYTES / 2] {
            let node = null_disk();
            let add = |name: &str, size, enabled| {
                let add = BitmapChange::Add {
                    size,
                    granularity: DEFAULT_GRANULARITY,
                    enabled,
                    persistent: false,
                };
                action_of(&node, name, add)
            };
            switch(&[add("b", size_of_bitmap, false), add(NAME, BYTES, true)]).unwrap();
            let under_way = WritesUnderWay {
                bitmaps: vec![(node.clone(), "b".to_owned())],
                name_of_additional: NAME.to_owned(),
            };
            let merged = under_way.merge_and_remove_bitmaps();
            assert_eq!(merged.is_ok(), size_of_bitmap == BYTES, "{merged:?}");
            let left = node.bitmaps().statuses();
            let left: Vec<&str> = left.iter().map(|bitmap| &*bitmap.name).collect();
            assert_eq!(left, ["b"]);
        }
    }

    #[test]
    fn name_of_the_additional_bitmap_is_that_of_no_other() {
        let node = null_disk();
        let add = BitmapChange::Add {
            size: BYTES,
            granularity: DEFAULT_GRANULARITY,
            enabled: false,
            persistent: false,
        };
        assert_eq!(unused_name(&[&node], &[]), "#under-way");
        let changes = [(node.clone(), action_of(&node, "#under-way", add))];
        assert_eq!(unused_name(&[&node], &changes), "#under-way#");
        let [(_, add)] = changes;
        switch(&[add]).unwrap();
        assert_eq!(unused_name(&[&node], &[]), "#under-way#");
    }
}
