//! The use of an export's images by its queues, so that image locks follow a guest that is migrated.
//!
//! Before its first queue starts, an export whose nodes are inactive has them activated, which takes the locks of their images. When
//! its last queue has stopped, they are flushed and inactivated if the guest is being migrated, or if the export has
//! `allow-inactive=on`. Both are done before the front-end gets its reply, so the destination can take the locks when its queues
//! start. The main thread activates and inactivates ([`NodeActivator`]); a thread that serves a front-end waits for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use block::Node;

/// How long a queue that starts waits for locks of another process, which is about to release them.
const LOCK_TIME: Duration = Duration::from_secs(5);
/// How long a queue that stops waits until mirrors that are ready have copied what the guest has written last.
const MIRROR_TIME: Duration = Duration::from_secs(5);
/// How long it waits in all: until requests of a failed mirror have ended, which a target that does not answer delays.
const MIRROR_END_TIME: Duration = Duration::from_secs(20);
/// Time between two attempts.
const INTERVAL: Duration = Duration::from_millis(10);

/// What the main thread does for the nodes of an export, when its queues start or have stopped; each call waits for that.
pub(crate) trait NodeActivator: Send + Sync {
    /// Activates them.
    fn activate(&self, export: &str) -> Result<(), ActivationError>;
    /// Inactivates those that nothing else uses. They have been flushed.
    fn inactivate(&self, export: &str) -> Result<(), String>;
    /// Fails mirrors behind these nodes that are not ready, and with `is_time_up` all that have not copied everything: the guest is about
    /// to write to the target from another host. False while a mirror may write there.
    fn finish_or_fail_mirrors(&self, nodes: &[Arc<Node>], is_time_up: bool) -> bool;
}

/// Why nodes were not activated.
pub(crate) struct ActivationError {
    pub text: String,
    /// Another process has the lock, or a command the node: that may change soon.
    pub is_temporary: bool,
}

/// The use of an export's images by its queues.
pub(crate) struct ImageUse {
    export: String,
    /// The nodes are inactive whenever no queue runs (`allow-inactive`).
    allow_inactive: bool,
    nodes: Box<dyn Fn() -> Vec<Arc<Node>> + Send + Sync>,
    activator: Arc<dyn NodeActivator>,
    state: Mutex<UseState>,
}

#[derive(Default)]
struct UseState {
    nodes_are_active: bool,
    /// Queues run, or are about to start.
    has_queues: bool,
}

impl ImageUse {
    /// The use of images by an export without queues. `nodes` are those behind its disks at the moment.
    pub fn new(
        export: &str,
        allow_inactive: bool,
        activator: &Arc<dyn NodeActivator>,
        nodes: impl Fn() -> Vec<Arc<Node>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(ImageUse {
            export: export.to_owned(),
            allow_inactive,
            nodes: Box::new(nodes),
            activator: activator.clone(),
            state: Mutex::default(),
        })
    }

    fn lock_state(&self) -> MutexGuard<'_, UseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether queues run.
    pub fn has_queues(&self) -> bool {
        self.lock_state().has_queues
    }

    /// Records whether all nodes of the export are active.
    pub fn set_nodes_active(&self, active: bool) {
        self.lock_state().nodes_are_active = active;
    }

    /// Records that the nodes are about to be inactivated, unless queues run. False: they run.
    #[must_use]
    pub fn try_set_nodes_inactive(&self) -> bool {
        let mut state = self.lock_state();
        state.nodes_are_active &= state.has_queues;
        !state.has_queues
    }

    /// Called before the first queue starts: has the nodes activated, and waits for locks that another process is about to release.
    pub fn begin(&self) -> Result<(), String> {
        let (give_up_at, mut is_logged) = (Instant::now() + LOCK_TIME, false);
        loop {
            let mut state = self.lock_state();
            if state.nodes_are_active {
                state.has_queues = true;
                return Ok(());
            }
            drop(state);
            match self.activator.activate(&self.export) {
                Ok(()) => {}
                Err(error) if error.is_temporary && Instant::now() < give_up_at => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::info!(
                            export = self.export,
                            reason = error.text,
                            seconds = LOCK_TIME.as_secs(),
                            "a queue waits until its images are free"
                        );
                    }
                    thread::sleep(INTERVAL);
                }
                Err(error) => return Err(error.text),
            }
        }
    }

    /// Called when no queue runs any more. `is_migrating`: the guest is being migrated.
    pub fn end(&self, is_migrating: bool) {
        let had_queues = std::mem::take(&mut self.lock_state().has_queues);
        if !had_queues || !(is_migrating || self.allow_inactive) {
            return;
        }
        let nodes = (self.nodes)();
        if is_migrating {
            self.finish_or_fail_mirrors(&nodes);
        }
        let flushed = nodes.iter().try_for_each(|node| {
            let flushed = node.flush_blocking();
            flushed.map_err(|error| format!("flushing node '{}' failed: {error}", node.name()))
        });
        let done = flushed.and_then(|()| self.activator.inactivate(&self.export));
        if let Err(reason) = done {
            tracing::warn!(
                export = self.export,
                reason,
                advice = "if the guest has moved, remove the cause and inactivate the node by blockdev-set-active",
                "the queues have stopped, but the export keeps the locks of its images"
            );
        }
    }

    /// Waits until mirrors have copied all, or fails them.
    fn finish_or_fail_mirrors(&self, nodes: &[Arc<Node>]) {
        let begun = Instant::now();
        let is_time_up = || begun.elapsed() >= MIRROR_TIME;
        while !self.activator.finish_or_fail_mirrors(nodes, is_time_up()) {
            if begun.elapsed() >= MIRROR_END_TIME {
                tracing::error!(
                    export = self.export,
                    "the target of a failed mirror does not answer: what it has been sent may be written after the guest has moved"
                );
                return;
            }
            thread::sleep(INTERVAL);
        }
    }
}
