//! Iothreads, exports and nodes of the daemon: adds, finds, reserves and removes them by name, and shuts them down in order.
//!
//! An object that another one uses cannot be removed.

use std::io;
use std::sync::Arc;

use block::dirty_bitmap::BitmapError;
use block::{Node, NodeOptions, NullOptions, SECTOR_BYTES};
use iothread::{IothreadHandle, IothreadSettings};
use options::{ExportKind, IothreadOptions};
use serde_json::json;
use unix_socket::listener::Listener;
use vhost_user::{ControlThreads, Server, VirtioDevice};

use super::DaemonObjects;
use super::export::{Export, ExportRemoval, ExportState};
use super::iothread::{Iothread, to_poll_settings};
use super::node::{OpenNode, reserved_node_error};
use crate::devices::export_server::ExportServer;
use crate::error::BoxError;

/// Name of the iothread of exports that name none. The first of them creates it, unless it exists.
pub(crate) const DEFAULT_IOTHREAD: &str = "main";

impl DaemonObjects {
    /// Starts an iothread.
    pub fn spawn_and_add_iothread(&mut self, options: &IothreadOptions) -> Result<(), BoxError> {
        if self.find_iothread(&options.id).is_some() {
            return Err(format!(
                "--object: iothread '{0}' was created for exports that name none; define it before \
                 them, or give it another id",
                options.id
            )
            .into());
        }
        let settings = IothreadSettings {
            id: options.id.clone(),
            polling: to_poll_settings(options),
            aio_max_events: options.aio_max_events,
            aio_max_batch: options.aio_max_batch,
            thread_pool_min: options.thread_pool_min,
            thread_pool_max: options.thread_pool_max,
            cpu_affinity: options.cpu_affinity.clone(),
        };
        let thread = Arc::new(IothreadHandle::spawn(settings)?);
        self.iothreads.push(Iothread {
            options: options.clone(),
            thread,
        });
        Ok(())
    }

    /// The iothreads that an export names, in its order; [`DEFAULT_IOTHREAD`], which is created if necessary, when it names
    /// none.
    pub fn find_iothreads_or_create_default(
        &mut self,
        names: &[String],
    ) -> Result<Vec<Arc<IothreadHandle>>, BoxError> {
        let default = [DEFAULT_IOTHREAD.to_owned()];
        let names = match names {
            [] => &default,
            names => names,
        };
        if names == default && self.find_iothread(DEFAULT_IOTHREAD).is_none() {
            let mut ids = self.types_and_ids_of_objects();
            if let Some((r#type, _)) = ids.find(|(_, id)| *id == DEFAULT_IOTHREAD) {
                return Err(format!(
                    "the iothread of exports that name none is called '{DEFAULT_IOTHREAD}', and so is a {type}; \
                     give that another id, or the export an iothread"
                )
                .into());
            }
            drop(ids);
            self.spawn_and_add_iothread(&IothreadOptions::new(DEFAULT_IOTHREAD))?;
        }
        let require_thread = |name: &String| {
            let found = self
                .find_iothread(name)
                .map(|iothread| iothread.thread.clone());
            found.ok_or_else(|| format!("there is no iothread '{name}'").into())
        };
        names.iter().map(require_thread).collect()
    }

    /// Starts the vhost-user server of an export, paused during a live upgrade.
    pub fn start_vhost_user_server(
        &mut self,
        listener: Listener,
        target: Arc<dyn VirtioDevice>,
    ) -> io::Result<Server> {
        let threads = match &self.control_threads {
            Some(threads) => threads,
            None => self
                .control_threads
                .insert(Arc::new(ControlThreads::start()?)),
        };
        match self.creates_exports_paused {
            true => Server::start_paused(threads, listener, target),
            false => Server::start(threads, listener, target),
        }
    }

    /// The iothread of this id, if there is one.
    pub fn find_iothread(&self, id: &str) -> Option<&Iothread> {
        self.iothreads.iter().find(|found| found.options.id == id)
    }

    /// The node of this name, if there is one and it has been opened.
    pub fn find_node(&self, name: &str) -> Option<&OpenNode> {
        self.nodes.iter().find(|found| found.node.name() == name)
    }

    /// Refuses the name of a node that a `blockdev-add` is still opening.
    pub fn check_node_not_opening(&self, name: &str) -> Result<(), BoxError> {
        match self.opening_nodes.iter().any(|opening| opening == name) {
            true => Err(reserved_node_error(name, "blockdev-add")),
            false => Ok(()),
        }
    }

    /// The node of this name; an error if there is none, or a command has reserved it.
    pub fn require_unreserved_node(&self, name: &str) -> Result<Arc<Node>, BoxError> {
        self.check_node_not_opening(name)?;
        let found = self.find_node(name);
        let found = found.ok_or_else(|| format!("there is no node '{name}'"))?;
        found.check_not_reserved()?;
        Ok(found.node.clone())
    }

    /// Reserves nodes for a command until they are [released](DaemonObjects::release_nodes): all of them or none.
    pub fn reserve_nodes(
        &mut self,
        names: &[String],
        command: &'static str,
    ) -> Result<(), BoxError> {
        let is_named = |open: &OpenNode| names.iter().any(|name| open.node.name() == name);
        for open in self.nodes.iter().filter(|open| is_named(open)) {
            open.check_not_reserved()?;
        }
        for open in self.nodes.iter_mut().filter(|open| is_named(open)) {
            open.reserved_by = Some(command);
        }
        Ok(())
    }

    /// Releases nodes that were reserved.
    pub fn release_nodes(&mut self, names: &[String]) {
        for open in &mut self.nodes {
            if names.iter().any(|name| open.node.name() == name) {
                open.reserved_by = None;
            }
        }
    }

    /// The node of this name, reserved or not; an error with QEMU's text if there is none.
    pub fn require_node(&self, name: &str) -> Result<&OpenNode, BoxError> {
        let found = self.find_node(name);
        found.ok_or_else(|| format!("Failed to find node with node-name='{name}'").into())
    }

    /// Reserves a node to be flushed and removed, with the nodes defined inside it, if nothing uses any of them. Returns their names,
    /// the node itself first.
    pub fn reserve_node_for_removal(&mut self, name: &str) -> Result<Vec<String>, BoxError> {
        self.check_node_not_opening(name)?;
        let found = self.require_node(name)?;
        if let Some(parent) = &found.parent {
            return Err(format!(
                "Node {name} is not owned by the monitor: it belongs to node '{parent}'"
            )
            .into());
        }
        let names = self.names_of_node_and_inner_nodes(name);
        for name in &names {
            let is_above = |open: &&OpenNode| {
                open.child_node_name() == Some(name)
                    && names.iter().all(|removed| open.node.name() != removed)
            };
            if let Some(above) = self.nodes.iter().find(is_above) {
                let above = above.node.name();
                return Err(format!("Block device {name} is in use by node '{above}'").into());
            }
            let removed = &self.require_node(name)?.node;
            let reads_from = |open: &&OpenNode| {
                let target = open.node.snapshot_target();
                target.is_some_and(|target| target.leads_through(removed))
            };
            if let Some(snapshot) = self.nodes.iter().find(reads_from) {
                let snapshot = snapshot.node.name();
                return Err(format!("Block device {name} is in use by node '{snapshot}'").into());
            }
            self.check_not_used_by_job(&self.require_node(name)?.node)?;
            let shows_node = |export: &&Export| export.options.exports_node(name);
            if let Some(export) = self.exports.iter().find(shows_node) {
                let export = &export.options.id;
                return Err(format!("Node {name} is in use by export '{export}'").into());
            }
            // An export of another node shows it.
            let bitmaps = self
                .find_node(name)
                .map(|open| open.node.bitmaps().statuses());
            if let Some(busy) = bitmaps.into_iter().flatten().find(|bitmap| bitmap.busy) {
                return Err(BitmapError::Busy(busy.name).into());
            }
        }
        self.reserve_nodes(&names, "blockdev-del")?;
        Ok(names)
    }

    /// Names of a node, and of those that are defined inside it.
    fn names_of_node_and_inner_nodes(&self, name: &str) -> Vec<String> {
        let mut names = vec![name.to_owned()];
        let mut parent_index = 0;
        while let Some(parent) = names.get(parent_index).cloned() {
            let inner = self.nodes.iter();
            let inner = inner.filter(|open| open.parent.as_ref() == Some(&parent));
            names.extend(inner.map(|open| open.node.name().to_owned()));
            parent_index += 1;
        }
        names
    }

    /// Closes nodes that were reserved for removal and have been flushed.
    pub fn remove_nodes(&mut self, names: &[String]) {
        self.nodes
            .retain(|open| names.iter().all(|name| open.node.name() != name));
    }

    /// Removes an export: at once if no front-end is connected, otherwise only with `hard`, as soon as its queues have
    /// drained.
    pub fn remove_export_if_unconnected_or_hard(
        &mut self,
        id: &str,
        hard: bool,
    ) -> Result<ExportRemoval, BoxError> {
        let index = self.exports.iter().position(|e| e.options.id == id);
        let index = index.ok_or_else(|| format!("Export '{id}' is not found"))?;
        let ExportState::Serving(server) = &self.exports[index].state else {
            return Err(format!("Export '{id}' is already shutting down").into());
        };
        if server.stop_if_unconnected() {
            self.forget_export_and_emit_event(index);
            return Ok(ExportRemoval::Done);
        }
        // The thread is there before anything is stopped. Without a server it has nothing to do.
        let (on_drained, drained_id) = (self.on_export_drained.clone(), id.to_owned());
        let (server_sender, server_receiver) = std::sync::mpsc::channel::<ExportServer>();
        let (drained, is_drained) = std::sync::mpsc::channel();
        let draining_thread = std::thread::Builder::new()
            .name(format!("end {id}"))
            .spawn(move || {
                let Ok(server) = server_receiver.recv() else {
                    return;
                };
                server.drain_and_close();
                on_drained(drained_id);
                // The receiver may be gone; ignore the error.
                let _ = drained.send(());
            })?;
        if !hard && !server.stop_if_hung_up() {
            return Err(format!(
                "export '{id}' still in use: a front-end is connected; mode=hard disconnects it"
            )
            .into());
        }
        server.begin_stop();
        let state = std::mem::replace(
            &mut self.exports[index].state,
            ExportState::Draining(draining_thread),
        );
        if let ExportState::Serving(server) = state {
            // Cannot fail: the thread is receiving.
            let _ = server_sender.send(server);
        }
        Ok(ExportRemoval::Draining(is_drained))
    }

    /// Removes an export whose queues have drained.
    pub fn remove_drained_export_and_emit_event(&mut self, id: &str) {
        if let Some(index) = self.exports.iter().position(|e| e.options.id == id) {
            self.forget_export_and_emit_event(index);
        }
    }

    /// Sends the event that an export has been removed, which is the last one of it.
    fn forget_export_and_emit_event(&mut self, index: usize) {
        let Export {
            options, reported, ..
        } = self.exports.remove(index);
        reported.mark_removed();
        let (id, data) = (options.id.clone(), json!({"id": options.id}));
        self.events
            .emit_end_of_states(id, "BLOCK_EXPORT_DELETED", data);
    }

    /// Whether there is an export of type `nbd` with this id.
    pub fn is_nbd_export(&self, id: &str) -> bool {
        let mut exports = self.exports.iter();
        exports.any(|export| {
            export.options.id == id && matches!(export.options.kind, ExportKind::Nbd(_))
        })
    }

    /// All exports of type `nbd` that are not being removed.
    pub fn ids_of_serving_nbd_exports(&self) -> Vec<String> {
        let exports = self.exports.iter();
        let serving = exports
            .filter(|export| matches!(export.state, ExportState::Serving(ExportServer::Nbd(_))));
        serving.map(|export| export.options.id.clone()).collect()
    }

    /// All exports disconnect their front-ends and accept no others.
    pub fn begin_stop_exports(&self) {
        for export in &self.exports {
            if let ExportState::Serving(server) = &export.state {
                server.begin_stop();
            }
        }
    }

    /// Drops all nodes, also those of exports, after another process has taken over: no queue of this one runs, and locks of files
    /// and sockets stay.
    pub fn drop_nodes_of_handed_over_exports(&mut self) {
        let null = NullOptions {
            size: SECTOR_BYTES,
            read_zeroes: false,
            latency_ns: 0,
        };
        let Ok(nothing) = Node::open("closed", true, &NodeOptions::Null(null)) else {
            return;
        };
        for disk in self.exports.iter().flat_map(|export| &export.disks) {
            disk.node.set(nothing.clone());
        }
        self.nodes.clear();
    }

    /// The orderly shutdown: accepts no more requests, waits for those in flight, and flushes all nodes.
    pub fn drain_exports_and_flush_nodes(mut self) -> Result<(), BoxError> {
        self.nbd_server = None;
        self.begin_stop_exports();
        for export in self.exports.drain(..) {
            match export.state {
                ExportState::Serving(server) => server.drain_and_close(),
                ExportState::Draining(thread) => {
                    if thread.join().is_err() {
                        tracing::error!(
                            export = export.options.id,
                            advice = "this is a bug in blockplane: report it",
                            "the thread that drained it panicked"
                        );
                    }
                }
            }
        }
        let mut result = Ok(());
        for OpenNode {
            node, bitmap_file, ..
        } in self
            .nodes
            .iter()
            .filter(|open| open.options.settings.active)
        {
            if let Err(error) = node.flush_blocking() {
                result = Err(format!("{}: the last flush failed: {error}", node.name()).into());
            }
            if let Some(file) = bitmap_file
                && let Err(error) = file.save_at_end(node)
            {
                result = Err(format!("{}: {error}", node.name()).into());
            }
        }
        result
    }
}
