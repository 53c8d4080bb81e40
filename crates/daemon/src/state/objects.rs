//! Iothreads, nodes and exports by name, and the order in which they end.
//!
//! What refers to what is looked up here when something is to be removed: nothing that is in use goes.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use block::Node;
use iothread::{DataThread, DataThreadSettings, Reports};
use options::IothreadOptions;
use qmp::Handle;
use serde_json::json;
use unix_socket::listener::Listener;
use vhost_user::{Server, Target};

use super::export::{Export, ExportState};
use super::iothread::{Iothread, polling};
use super::node::{OpenNode, busy};
use super::slow_requests::SlowRequestWatchdog;
use crate::devices::export_server::ExportServer;
use crate::disk::aio::AioChoices;
use crate::failure::Failure;
use crate::service::Inherited;

/// Name of the iothread of exports that name none. It is made for the first of them, unless there is one.
const OWN_IOTHREAD: &str = "main";

/// Everything that was made from the options.
pub(crate) struct Objects {
    /// How requests to the disks reach the kernel.
    pub aio: AioChoices,
    /// Tells monitors of events.
    pub events: Handle,
    /// Sockets that we were started with.
    pub inherited: Inherited,
    /// Files and devices of nodes to be, which the process before has opened.
    pub handed: HashMap<String, OwnedFd>,
    /// Exports serve nobody yet.
    pub parked: bool,
    /// Hears of what goes wrong on iothreads.
    pub reports: Reports,
    /// Hears of exports whose requests may not take for ever.
    pub slow_requests: SlowRequestWatchdog,
    /// Called with the id of an export that was ended, when its queues have drained.
    drained: Arc<dyn Fn(String) + Send + Sync>,
    pub exports: Vec<Export>,
    pub nodes: Vec<OpenNode>,
    /// Names of nodes that are being opened: they are taken, and nothing is there yet.
    pub opening_nodes: Vec<String>,
    pub iothreads: Vec<Iothread>,
}

impl Objects {
    /// Nothing yet.
    pub fn new(
        events: Handle,
        reports: Reports,
        slow_requests: SlowRequestWatchdog,
        drained: Arc<dyn Fn(String) + Send + Sync>,
        inherited: Inherited,
    ) -> Self {
        Objects {
            aio: AioChoices::default(),
            events,
            reports,
            slow_requests,
            inherited,
            handed: HashMap::new(),
            parked: false,
            drained,
            exports: Vec::new(),
            nodes: Vec::new(),
            opening_nodes: Vec::new(),
            iothreads: Vec::new(),
        }
    }

    pub fn add_iothread(&mut self, options: &IothreadOptions) -> Result<(), Failure> {
        if self.iothread(&options.id).is_some() {
            return Err(format!(
                "--object: iothread '{0}' was made for exports that name none; define it before \
                 them, or give it another id",
                options.id
            )
            .into());
        }
        let settings = DataThreadSettings {
            id: options.id.clone(),
            polling: polling(options),
            aio_max_events: options.aio_max_events,
            aio_max_batch: options.aio_max_batch,
            thread_pool_min: options.thread_pool_min,
            thread_pool_max: options.thread_pool_max,
            cpu_affinity: options.cpu_affinity.clone(),
        };
        let thread = Arc::new(DataThread::spawn(settings)?);
        self.iothreads.push(Iothread {
            options: options.clone(),
            thread,
        });
        Ok(())
    }

    /// The iothreads of an export, in its order; [`OWN_IOTHREAD`] when it names none.
    pub fn iothreads_of(&mut self, names: &[String]) -> Result<Vec<Arc<DataThread>>, Failure> {
        let own = [OWN_IOTHREAD.to_owned()];
        let names = match names {
            [] => &own,
            names => names,
        };
        if names == own && self.iothread(OWN_IOTHREAD).is_none() {
            self.add_iothread(&IothreadOptions::new(OWN_IOTHREAD))?;
        }
        let find = |name: &String| {
            let found = self.iothread(name).map(|iothread| iothread.thread.clone());
            found.ok_or_else(|| format!("there is no iothread '{name}'").into())
        };
        names.iter().map(find).collect()
    }

    /// DeviceSetup front-ends that connect to a socket.
    pub fn spawn_server(&self, listener: Listener, target: Arc<dyn Target>) -> io::Result<Server> {
        match self.parked {
            true => Server::spawn_parked(listener, target),
            false => Server::spawn(listener, target),
        }
    }

    pub fn iothread(&self, id: &str) -> Option<&Iothread> {
        self.iothreads.iter().find(|found| found.options.id == id)
    }

    pub fn find_node(&self, name: &str) -> Option<&OpenNode> {
        self.nodes.iter().find(|found| found.node.name() == name)
    }

    /// No node of that name is being opened.
    pub fn check_not_opening(&self, name: &str) -> Result<(), Failure> {
        match self.opening_nodes.iter().any(|opening| opening == name) {
            true => Err(busy(name, "blockdev-add")),
            false => Ok(()),
        }
    }

    /// A node to be used for something.
    pub fn node(&self, name: &str) -> Result<Arc<Node>, Failure> {
        self.check_not_opening(name)?;
        let found = self.find_node(name);
        let found = found.ok_or_else(|| format!("there is no node '{name}'"))?;
        found.check_free()?;
        Ok(found.node.clone())
    }

    /// Keeps other commands from nodes until they are [released](Objects::release): all of them or none.
    pub fn reserve(&mut self, names: &[String], command: &'static str) -> Result<(), Failure> {
        let named = |open: &OpenNode| names.iter().any(|name| open.node.name() == name);
        for open in self.nodes.iter().filter(|open| named(open)) {
            open.check_free()?;
        }
        for open in self.nodes.iter_mut().filter(|open| named(open)) {
            open.busy = Some(command);
        }
        Ok(())
    }

    /// Other commands may use them again.
    pub fn release(&mut self, names: &[String]) {
        for open in &mut self.nodes {
            if names.iter().any(|name| open.node.name() == name) {
                open.busy = None;
            }
        }
    }

    /// Ends an iothread that nothing runs on.
    pub fn remove_iothread(&mut self, id: &str) -> Result<(), Failure> {
        let index = self.iothreads.iter().position(|i| i.options.id == id);
        let index = index.ok_or_else(|| format!("object '{id}' not found"))?;
        let runs_on = |export: &&Export| match export.options.iothreads.as_slice() {
            [] => id == OWN_IOTHREAD,
            names => names.iter().any(|name| name == id),
        };
        if let Some(export) = self.exports.iter().find(runs_on) {
            return Err(format!(
                "object '{id}' is in use, can not be deleted: export '{}' runs on it",
                export.options.id
            )
            .into());
        }
        self.iothreads.remove(index);
        Ok(())
    }

    /// The node of this name, for commands that say so in QEMU's words if there is none.
    pub fn named_node(&self, name: &str) -> Result<&OpenNode, Failure> {
        let found = self.find_node(name);
        found.ok_or_else(|| format!("Failed to find node with node-name='{name}'").into())
    }

    /// What goes with a node, itself first, if nothing uses any of it; it is reserved.
    pub fn begin_remove_node(&mut self, name: &str) -> Result<Vec<String>, Failure> {
        self.check_not_opening(name)?;
        let found = self.named_node(name)?;
        if let Some(parent) = &found.parent {
            return Err(format!(
                "Node {name} is not owned by the monitor: it goes with node '{parent}'"
            )
            .into());
        }
        let goes = self.with_inside(name);
        for name in &goes {
            let is_above = |open: &&OpenNode| {
                open.below() == Some(name) && goes.iter().all(|goes| open.node.name() != goes)
            };
            if let Some(above) = self.nodes.iter().find(is_above) {
                let above = above.node.name();
                return Err(
                    format!("Block device {name} is in use: node '{above}' is on it").into(),
                );
            }
            let shows = |export: &&Export| export.options.shows(name);
            if let Some(export) = self.exports.iter().find(shows) {
                let export = &export.options.id;
                return Err(format!("Node {name} is in use: export '{export}' shows it").into());
            }
        }
        self.reserve(&goes, "blockdev-del")?;
        Ok(goes)
    }

    /// A node, and those that were written into it.
    fn with_inside(&self, name: &str) -> Vec<String> {
        let mut names = vec![name.to_owned()];
        let mut index = 0;
        while let Some(name) = names.get(index).cloned() {
            let inside = self.nodes.iter();
            let inside = inside.filter(|open| open.parent.as_ref() == Some(&name));
            names.extend(inside.map(|open| open.node.name().to_owned()));
            index += 1;
        }
        names
    }

    /// Closes nodes that were to be removed, and have been flushed.
    pub fn remove_nodes(&mut self, names: &[String]) {
        self.nodes
            .retain(|open| names.iter().all(|name| open.node.name() != name));
    }

    /// Ends an export: at once when no front-end is connected, else with `hard` as soon as its
    /// queues have drained.
    pub fn remove_export(&mut self, id: &str, hard: bool) -> Result<(), Failure> {
        let index = self.exports.iter().position(|e| e.options.id == id);
        let index = index.ok_or_else(|| format!("Export '{id}' is not found"))?;
        let ExportState::Serving(server) = &self.exports[index].state else {
            return Err(format!("Export '{id}' is already shutting down").into());
        };
        if server.stop_if_idle() {
            self.exports.remove(index);
            self.export_gone(id);
            return Ok(());
        }
        if !hard {
            return Err(format!(
                "export '{id}' still in use: a front-end is connected; mode=hard disconnects it"
            )
            .into());
        }
        let (drained, name) = (self.drained.clone(), id.to_owned());
        let (hand_over, taken) = std::sync::mpsc::channel::<ExportServer>();
        let waiting = std::thread::Builder::new()
            .name(format!("end {id}"))
            .spawn(move || {
                if let Ok(server) = taken.recv() {
                    server.drain();
                }
                drained(name);
            })?;
        server.begin_stop();
        let state = std::mem::replace(&mut self.exports[index].state, ExportState::Ending(waiting));
        if let ExportState::Serving(server) = state {
            // Cannot fail: the thread waits for it.
            let _ = hand_over.send(server);
        }
        Ok(())
    }

    /// The queues of an export that was ended have drained.
    pub fn remove_drained_export(&mut self, id: &str) {
        self.exports.retain(|export| export.options.id != id);
        self.export_gone(id);
    }

    fn export_gone(&self, id: &str) {
        self.events.emit("BLOCK_EXPORT_DELETED", json!({"id": id}));
    }

    /// Exports send their front-ends away and take no others.
    pub fn begin_stop(&self) {
        for export in &self.exports {
            if let ExportState::Serving(server) = &export.state {
                server.begin_stop();
            }
        }
    }

    /// The orderly end: no more requests, all in flight done, all on stable storage.
    pub fn shut_down(mut self) -> Result<(), Failure> {
        self.begin_stop();
        for export in self.exports.drain(..) {
            match export.state {
                ExportState::Serving(server) => server.drain(),
                ExportState::Ending(thread) => {
                    if thread.join().is_err() {
                        tracing::error!(
                            export = export.options.id,
                            advice = "this is a mistake in blockplane: report it",
                            "its end panicked"
                        );
                    }
                }
            }
        }
        let mut result = Ok(());
        for OpenNode { node, .. } in self
            .nodes
            .iter()
            .filter(|open| open.options.settings.active)
        {
            if let Err(error) = node.flush_blocking() {
                result = Err(format!("{}: the last flush failed: {error}", node.name()).into());
            }
        }
        result
    }
}
