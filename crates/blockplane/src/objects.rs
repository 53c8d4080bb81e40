//! What runs: iothreads, nodes, exports, by name. And the order in which it ends.

use std::collections::HashMap;
use std::sync::Arc;

use block::Node;
use data_plane::{DataThread, DataThreadSettings};
use options::IothreadOptions;
use vhost_user::Server;

use crate::Failure;
use crate::aio::AioChoices;

/// Name of the iothread of exports that name none.
const OWN_IOTHREAD: &str = "main";

/// Everything that was made from the options.
#[derive(Default)]
pub(crate) struct Objects {
    /// How requests to the disks reach the kernel.
    pub aio: AioChoices,
    servers: Vec<Server>,
    nodes: HashMap<String, Arc<Node>>,
    iothreads: HashMap<String, Arc<DataThread>>,
    /// Made when the first export names none.
    own_iothread: Option<Arc<DataThread>>,
}

impl Objects {
    pub fn add_iothread(&mut self, options: &IothreadOptions) -> Result<(), Failure> {
        let settings = DataThreadSettings {
            id: options.id.clone(),
            polling: event_loop::PollSettings {
                max_ns: options.poll_max_ns,
                grow: options.poll_grow,
                shrink: options.poll_shrink,
                cpu_max_percent: options.poll_cpu_max,
            },
            aio_max_events: options.aio_max_events,
            aio_max_batch: options.aio_max_batch,
            thread_pool_min: options.thread_pool_min,
            thread_pool_max: options.thread_pool_max,
            cpu_affinity: options.cpu_affinity.clone(),
            x_late_notify: options.knobs.late_notify,
            x_completion_ring: options.knobs.completion_ring,
            x_scan_handlers: options.knobs.scan_handlers,
            x_adaptive_batch: options.knobs.adaptive_batch,
            x_admit_budget: options.knobs.admit_budget,
        };
        let iothread = Arc::new(DataThread::spawn(settings)?);
        self.iothreads.insert(options.id.clone(), iothread);
        Ok(())
    }

    /// The iothreads of an export, in its order; one of our own when it names none.
    pub fn iothreads(&mut self, names: &[String]) -> Result<Vec<Arc<DataThread>>, Failure> {
        if names.is_empty() {
            if self.own_iothread.is_none() {
                let settings = DataThreadSettings::named(OWN_IOTHREAD);
                self.own_iothread = Some(Arc::new(DataThread::spawn(settings)?));
            }
            return Ok(self.own_iothread.iter().cloned().collect());
        }
        let find = |name: &String| {
            let found = self.iothreads.get(name).cloned();
            found.ok_or_else(|| format!("there is no iothread '{name}'").into())
        };
        names.iter().map(find).collect()
    }

    pub fn add_node(&mut self, node: Arc<Node>) {
        self.nodes.insert(node.name().to_owned(), node);
    }

    pub fn node(&self, name: &str) -> Result<Arc<Node>, Failure> {
        let found = self.nodes.get(name).cloned();
        found.ok_or_else(|| format!("there is no node '{name}'").into())
    }

    pub fn add_server(&mut self, server: Server) {
        self.servers.push(server);
    }

    /// The orderly end: no more requests, all in flight done, all on stable storage.
    pub fn shut_down(mut self) -> Result<(), Failure> {
        for server in &self.servers {
            server.begin_stop();
        }
        // Waits for their queues to drain.
        self.servers.clear();
        let mut result = Ok(());
        for node in self.nodes.values() {
            if let Err(error) = node.flush_blocking() {
                result = Err(format!("{}: the last flush failed: {error}", node.name()).into());
            }
        }
        result
    }
}
