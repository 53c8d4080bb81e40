//! Activation and inactivation of nodes, by `blockdev-set-active` and by exports.
//!
//! An active node holds its image's locks and may be used. An inactive node leaves the image to another program. The nodes below an
//! active node are active, too. An export activates its nodes when it is created, or with `allow-inactive=on` when its queues start;
//! [`ImageUse`](crate::devices::image_use::ImageUse) decides that.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use block::{Node, NodeError};
use options::ExportOptions;

use crate::control::{MainThread, MainThreadMessage, run_on_main_thread};
use crate::devices::image_use::{ActivationError, NodeActivator};
use crate::disk::locking::to_block_locking;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::Export;
use crate::state::node::OpenNode;

/// How long a front-end's thread waits for the main thread, which may wait for that thread in a live upgrade.
const MAIN_THREAD_TIME: Duration = Duration::from_secs(5);

/// Activates and inactivates nodes on the main thread, for other threads.
pub(crate) fn new_main_thread_activator(
    sender: Sender<MainThreadMessage>,
) -> Arc<dyn NodeActivator> {
    Arc::new(MainThreadActivator(sender))
}

/// The main thread, as threads that serve front-ends use it.
struct MainThreadActivator(Sender<MainThreadMessage>);

impl MainThreadActivator {
    /// Runs work on the main thread, and waits for its result; `None`: the daemon ends, or the main thread is busy.
    fn run_and_wait<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut MainThread) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = channel();
        // The receiver is gone if it has waited for too long.
        run_on_main_thread(&self.0, move |control| drop(sender.send(work(control))));
        result.recv_timeout(MAIN_THREAD_TIME).ok()
    }
}

const NO_ANSWER: &str = "the main thread does not answer: the daemon ends or is being upgraded";

impl NodeActivator for MainThreadActivator {
    fn activate(&self, export: &str) -> Result<(), ActivationError> {
        let export = export.to_owned();
        let activated =
            self.run_and_wait(move |control| control.objects.activate_nodes_of_export(&export));
        activated.unwrap_or_else(|| {
            Err(ActivationError {
                text: NO_ANSWER.to_owned(),
                is_temporary: false,
            })
        })
    }

    fn inactivate(&self, export: &str) -> Result<(), String> {
        let export = export.to_owned();
        let inactivated = self.run_and_wait(move |control| {
            let result = control.objects.inactivate_nodes_of_idle_export(&export);
            result.map_err(|error| error.to_string())
        });
        inactivated.unwrap_or_else(|| Err(NO_ANSWER.to_owned()))
    }

    fn finish_or_fail_mirrors(&self, nodes: &[Arc<Node>], is_time_up: bool) -> bool {
        let copied = nodes.to_vec();
        let are_quiet =
            self.run_and_wait(move |control| control.finish_or_fail_mirrors(&copied, is_time_up));
        are_quiet.unwrap_or_else(|| {
            // It does not answer, so mirrors fail when it does.
            let nodes = nodes.to_vec();
            run_on_main_thread(&self.0, move |control| {
                control.finish_or_fail_mirrors(&nodes, true);
            });
            true
        })
    }
}

impl DaemonObjects {
    /// The node of this name for an export, whose clients may write there if it is `writable`. It is activated unless the export may have
    /// an inactive one, or its state is that of the old process of a live upgrade.
    pub fn node_for_export(
        &mut self,
        name: &str,
        writable: bool,
        options: &ExportOptions,
    ) -> Result<Arc<Node>, BoxError> {
        match options.settings.allow_inactive || self.creates_exports_paused {
            true => self.find_node_for_export(name, writable),
            false => self.activate_node_for_export(name, writable),
        }
    }

    fn find_node_for_export(&self, name: &str, writable: bool) -> Result<Arc<Node>, BoxError> {
        let node = self.require_unreserved_node(name)?;
        if writable {
            self.check_keeps_no_old_data(&node)?;
        }
        Ok(node)
    }

    /// Tells exports whether their nodes are active, after a change.
    pub fn update_image_use(&self) {
        for export in &self.exports {
            if let Some(image_use) = &export.image_use {
                let is_active = |name: &&str| {
                    let open = self.find_node(name);
                    open.is_some_and(|open| open.options.settings.active)
                };
                image_use.set_nodes_active(export.options.node_names().iter().all(is_active));
            }
        }
    }

    /// Activates the nodes of an export whose queues are about to start.
    fn activate_nodes_of_export(&mut self, id: &str) -> Result<(), ActivationError> {
        let names = self.node_names_of_export(id);
        for name in &names {
            let is_reserved = |open: &OpenNode| open.reserved_by.is_some();
            let is_reserved = self.find_node(name).is_some_and(is_reserved);
            self.activate_with_nodes_below(name).map_err(|error| {
                let locked = error.downcast_ref::<NodeError>();
                let is_locked = matches!(locked, Some(NodeError::Locked { here: false, .. }));
                ActivationError {
                    text: error.to_string(),
                    is_temporary: is_locked || is_reserved,
                }
            })?;
        }
        Ok(())
    }

    /// Inactivates the nodes of an export whose queues have stopped, and those below that nothing else uses. They have been flushed.
    fn inactivate_nodes_of_idle_export(&mut self, id: &str) -> Result<(), BoxError> {
        for name in self.node_names_of_export(id) {
            let names = self.reserve_with_nodes_below_unless(&name, Export::uses_nodes)?;
            self.inactivate_reserved_nodes(&names);
        }
        Ok(())
    }

    /// Names of the nodes that an export shows.
    fn node_names_of_export(&self, id: &str) -> Vec<String> {
        let mut exports = self.exports.iter();
        let export = exports.find(|export| export.options.id == id);
        let names = export.map(|export| export.options.node_names());
        let names = names.unwrap_or_default().into_iter();
        names.map(str::to_owned).collect()
    }

    /// Activates the node of this name for an export, whose clients may write there if it is `writable`, and returns it.
    pub fn activate_node_for_export(
        &mut self,
        name: &str,
        writable: bool,
    ) -> Result<Arc<Node>, BoxError> {
        let node = self.find_node_for_export(name, writable)?;
        self.activate_with_nodes_below(name)?;
        Ok(node)
    }

    /// Activates a node, those below it first. Nodes that are active already do not change.
    pub fn activate_with_nodes_below(&mut self, name: &str) -> Result<(), BoxError> {
        let open = self.require_node(name)?;
        open.check_not_reserved()?;
        if open.options.settings.active {
            return Ok(());
        }
        if let Some(below) = open.child_node_name().map(str::to_owned) {
            self.activate_with_nodes_below(&below)?;
        }
        let mut nodes = self.nodes.iter_mut();
        if let Some(open) = nodes.find(|open| open.node.name() == name) {
            if let Some(file) = open.options.driver.file_options() {
                open.node
                    .take_image_locks_if_enabled(&file.filename, to_block_locking(file.locking))?;
            }
            open.options.settings.active = true;
            // Another program may have written while the node was inactive.
            open.node.bitmaps().mark_inconsistent();
            tracing::info!(node = name, "node activated");
        }
        self.update_image_use();
        Ok(())
    }

    /// Activates all nodes.
    pub fn activate_all_nodes(&mut self) -> Result<(), BoxError> {
        let names = self.nodes.iter().map(|open| open.node.name().to_owned());
        let names: Vec<String> = names.collect();
        names
            .iter()
            .try_for_each(|name| self.activate_with_nodes_below(name))
    }

    /// Reserves a node to be flushed and inactivated, and with it the nodes below that no other active node uses. Returns their
    /// names, the node itself first; none if it is inactive already.
    pub fn reserve_with_nodes_below_to_inactivate(
        &mut self,
        name: &str,
    ) -> Result<Vec<String>, BoxError> {
        self.reserve_with_nodes_below_unless(name, Export::needs_active_nodes)
    }

    /// The same, of nodes with no export for which `is_used`.
    fn reserve_with_nodes_below_unless(
        &mut self,
        name: &str,
        is_used: fn(&Export) -> bool,
    ) -> Result<Vec<String>, BoxError> {
        let open = self.require_node(name)?;
        if !open.options.settings.active {
            return Ok(Vec::new());
        }
        self.check_unused_by_exports_and_active_nodes(name, &[], is_used)?;
        self.check_has_no_bitmap_file(name)?;
        let mut names = vec![name.to_owned()];
        let mut below = open.child_node_name();
        while let Some(name) = below
            && self
                .check_unused_by_exports_and_active_nodes(name, &names, is_used)
                .and_then(|()| self.check_has_no_bitmap_file(name))
                .is_ok()
        {
            names.push(name.to_owned());
            below = self.find_node(name).and_then(OpenNode::child_node_name);
        }
        self.reserve_to_inactivate(&names)?;
        Ok(names)
    }

    /// Reserves nodes, and records in their exports that they are about to be inactive.
    fn reserve_to_inactivate(&mut self, names: &[String]) -> Result<(), BoxError> {
        self.reserve_nodes(names, "blockdev-set-active")?;
        let shows_one = |export: &&Export| {
            let mut names = names.iter();
            names.any(|name| export.options.exports_node(name))
        };
        for export in self.exports.iter().filter(shows_one) {
            if let Some(image_use) = &export.image_use
                && !image_use.try_set_nodes_inactive()
            {
                let error = in_use_error(&names[0], export);
                self.release_reserved_active_nodes(names);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Releases nodes that were to be inactivated and stay active.
    pub fn release_reserved_active_nodes(&mut self, names: &[String]) {
        self.release_nodes(names);
        self.update_image_use();
    }

    /// Reserves all active nodes to be flushed and inactivated.
    pub fn reserve_all_to_inactivate(&mut self) -> Result<Vec<String>, BoxError> {
        let active = self
            .nodes
            .iter()
            .filter(|open| open.options.settings.active);
        let names: Vec<String> = active.map(|open| open.node.name().to_owned()).collect();
        for name in &names {
            let is_used = Export::needs_active_nodes;
            self.check_unused_by_exports_and_active_nodes(name, &names, is_used)?;
            self.check_has_no_bitmap_file(name)?;
        }
        self.reserve_to_inactivate(&names)?;
        Ok(names)
    }

    /// Inactivates nodes that were reserved for it and have been flushed.
    pub fn inactivate_reserved_nodes(&mut self, names: &[String]) {
        self.release_nodes(names);
        for open in &mut self.nodes {
            if names.iter().any(|name| open.node.name() == name) {
                open.node.release_image_locks_unless_kept();
                open.options.settings.active = false;
                tracing::info!(node = open.node.name(), "node inactivated");
            }
        }
    }

    /// Refuses an active node above an inactive one.
    pub fn check_active_node_not_above_inactive(
        &self,
        active: bool,
        below: &str,
    ) -> Result<(), BoxError> {
        match self.find_node(below) {
            Some(open) if active && !open.options.settings.active => Err(format!(
                "Inactive '{below}' can't be below an active node: activate it by blockdev-set-active, or add the node with active=off"
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Refuses a node with persistent bitmaps, which would miss what another program writes.
    fn check_has_no_bitmap_file(&self, name: &str) -> Result<(), BoxError> {
        let found = self.find_node(name);
        match found.is_some_and(|open| open.bitmap_file.is_some()) {
            true => Err(format!(
                "Node '{name}' has a bitmap-file: while it is inactive its bitmaps would miss writes; \
                 remove the node instead"
            )
            .into()),
            false => Ok(()),
        }
    }

    /// Refuses a node with an export for which `is_used`, or with an active node above it that is not among `inactivated`.
    fn check_unused_by_exports_and_active_nodes(
        &self,
        name: &str,
        inactivated: &[String],
        is_used: fn(&Export) -> bool,
    ) -> Result<(), BoxError> {
        let is_above = |open: &&OpenNode| {
            let stays_active = inactivated.iter().all(|name| open.node.name() != name);
            open.options.settings.active && stays_active && open.child_node_name() == Some(name)
        };
        if let Some(above) = self.nodes.iter().find(is_above) {
            let above = above.node.name();
            return Err(format!("Node '{name}' has active parent node '{above}'").into());
        }
        self.check_not_used_by_job(&self.require_node(name)?.node)?;
        if let Some(export) = self
            .exports
            .iter()
            .find(|export| export.options.exports_node(name) && is_used(export))
        {
            return Err(in_use_error(name, export));
        }
        Ok(())
    }
}

impl Export {
    /// Whether its queues use its nodes, or may do so at any time.
    fn uses_nodes(&self) -> bool {
        let image_use = self.image_use.as_ref();
        image_use.is_none_or(|image_use| image_use.has_queues())
    }

    /// Whether a command may not inactivate its nodes.
    fn needs_active_nodes(&self) -> bool {
        self.uses_nodes() || !self.options.settings.allow_inactive
    }
}

/// The error for a node that cannot be inactivated because of an export.
fn in_use_error(node: &str, export: &Export) -> BoxError {
    let export = &export.options.id;
    format!("Node '{node}' is in use by export '{export}'").into()
}
