//! Throttle groups in the daemon's state: adds them, changes their limits, finds them for nodes that are opened, and removes them
//! when no node is a member.

use std::sync::Arc;

use block::{LimitKind, RateLimit, ThrottleGroup, ThrottleLimits};
use options::{BlockdevOptions, NodeRef, ThrottleGroupOptions};

use super::DaemonObjects;
use super::node::OpenNode;
use crate::error::BoxError;

/// A throttle group with its present options.
pub(crate) struct ThrottleGroupObject {
    pub options: ThrottleGroupOptions,
    /// Commands that open nodes have copies.
    group: Arc<GroupForNewNodes>,
}

/// A group as new members find it. Copies are counted apart from those of the group, which members have.
struct GroupForNewNodes(Arc<ThrottleGroup>);

impl ThrottleGroupObject {
    /// Changes the limits, also for requests that wait.
    pub fn apply_options(&mut self, options: ThrottleGroupOptions) {
        self.group.0.set_limits(to_block_limits(&options));
        self.options = options;
    }
}

/// The groups of nodes that a command opens, on any thread. They cannot be removed meanwhile.
#[derive(Clone)]
pub(crate) struct GroupsOfNewNodes(Vec<Arc<GroupForNewNodes>>);

impl GroupsOfNewNodes {
    /// Finds the groups of a node and of those that are defined inside it.
    pub fn find(options: &BlockdevOptions, objects: &DaemonObjects) -> Result<Self, BoxError> {
        let mut found = Vec::new();
        let mut next = Some(options);
        while let Some(options) = next {
            if let Some(id) = options.driver.throttle_group() {
                let group = objects.find_throttle_group(id);
                let group = group.ok_or_else(|| format!("Throttle group '{id}' does not exist"))?;
                found.push(group.group.clone());
            }
            next = match options.driver.child_with_key() {
                Some((_, NodeRef::Inline(inside))) => Some(inside),
                _ => None,
            };
        }
        Ok(GroupsOfNewNodes(found))
    }

    /// The group of this id, which one of the nodes names.
    pub fn group(&self, id: &str) -> &Arc<ThrottleGroup> {
        let group = self.0.iter().find(|group| group.0.name() == id);
        let group = group.unwrap_or_else(|| unreachable!("the groups of all nodes were found"));
        &group.0
    }
}

impl DaemonObjects {
    /// Adds a throttle group.
    pub fn add_throttle_group(&mut self, options: &ThrottleGroupOptions) -> Result<(), BoxError> {
        self.check_id_is_no_default_iothread(&options.id, "throttle group")?;
        let group = ThrottleGroup::new(&options.id, to_block_limits(options));
        self.throttle_groups.push(ThrottleGroupObject {
            options: options.clone(),
            group: Arc::new(GroupForNewNodes(group)),
        });
        Ok(())
    }

    /// The throttle group of this id, if there is one.
    pub fn find_throttle_group(&self, id: &str) -> Option<&ThrottleGroupObject> {
        let mut groups = self.throttle_groups.iter();
        groups.find(|group| group.options.id == id)
    }

    /// Removes a throttle group without members.
    pub fn remove_throttle_group(&mut self, id: &str) -> Result<(), BoxError> {
        let index = self.throttle_groups.iter().position(|g| g.options.id == id);
        let index = index.ok_or_else(|| format!("object '{id}' not found"))?;
        let in_use = |user: String| -> BoxError {
            format!("object '{id}' is in use, can not be deleted: {user}").into()
        };
        let mut nodes = self.nodes.iter();
        let is_member = |open: &&OpenNode| open.options.driver.throttle_group() == Some(id);
        if let Some(open) = nodes.find(is_member) {
            let node = open.node.name();
            return Err(in_use(format!(
                "node '{node}' is a member; remove it (blockdev-del) or give it another throttle-group (blockdev-reopen)"
            )));
        }
        if Arc::strong_count(&self.throttle_groups[index].group) > 1 {
            let user = "a node is being opened as a member; try again when that is done";
            return Err(in_use(user.to_owned()));
        }
        self.throttle_groups.remove(index);
        Ok(())
    }
}

/// Converts the limits of the options into those of the block layer.
fn to_block_limits(options: &ThrottleGroupOptions) -> ThrottleLimits {
    let mut limits = ThrottleLimits::default();
    limits.iops_size = options.iops_size;
    for (kind, limit) in LimitKind::ALL.into_iter().zip(options.limits()) {
        debug_assert_eq!(kind.name(), limit.name);
        *limits.rate_mut(kind) = RateLimit {
            rate: limit.rate,
            burst_rate: limit.burst_rate,
            burst_seconds: limit.burst_seconds,
        };
    }
    limits
}
