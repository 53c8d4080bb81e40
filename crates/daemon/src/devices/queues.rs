//! Virtqueues of an export on its iothreads, whichever device they belong to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use iothread::{DataThread, DeviceSetup, ExportReports, QueueReports, VringHandle, VringSetup};
use qmp::Handle;
use serde_json::json;
use telemetry::queue::QueueName;
use vhost_user::StartedQueue;
use virtqueue::control::{QueueCommand, QueueSetup, StartError};

use crate::disk::export_stats::ExportStats;

/// Where an export's queues run, and who hears of them.
pub(crate) struct Queues {
    pub export: String,
    pub iothreads: Vec<Arc<DataThread>>,
    pub fixed_buffers: bool,
    pub events: Handle,
    pub stats: Arc<ExportStats>,
    pub reports: Arc<ExportReports>,
}

impl Queues {
    /// Starts a queue of this device. `switch_node` is called when something else stands behind the
    /// device than before.
    pub fn start(
        &self,
        index: u16,
        queue: QueueSetup,
        device: DeviceSetup,
        switch_node: impl Fn(&VringHandle) -> Receiver<()> + Send + 'static,
    ) -> Result<Box<dyn StartedQueue>, StartError> {
        let place = usize::from(index);
        let iothread = &self.iothreads[place % self.iothreads.len()];
        let handle = iothread.start_vring(VringSetup {
            name: QueueName::new(&self.export, index),
            device,
            queue,
            fixed_buffers: self.fixed_buffers,
            stats: self.stats.queues[place].stats.clone(),
            reports: Some(QueueReports {
                export: self.reports.clone(),
                queue: index,
            }),
        })?;
        Ok(Box::new(Queue {
            handle,
            switch_node,
        }))
    }

    /// A front-end has come or gone.
    pub fn connected(&self, connected: bool) {
        tell_connected(&self.export, connected, &self.stats, &self.events);
    }
}

/// Shows whether an export has a front-end, and tells monitors of it. False: nothing has changed.
pub(crate) fn tell_connected(
    export: &str,
    connected: bool,
    stats: &ExportStats,
    events: &Handle,
) -> bool {
    let changed = stats.connected.swap(connected, Ordering::Relaxed) != connected;
    if changed {
        let event = match connected {
            true => "BLOCK_EXPORT_CONNECTED",
            false => "BLOCK_EXPORT_DISCONNECTED",
        };
        events.emit(event, json!({"id": export}));
    }
    changed
}

/// A queue on its iothread, as the transport sees it.
struct Queue<R> {
    handle: VringHandle,
    switch_node: R,
}

impl<R: Fn(&VringHandle) -> Receiver<()> + Send> StartedQueue for Queue<R> {
    fn send(&self, command: QueueCommand) {
        self.handle.send(command);
    }

    fn switch_node(&self) -> Receiver<()> {
        (self.switch_node)(&self.handle)
    }

    fn begin_stop(self: Box<Self>) -> Receiver<u32> {
        self.handle.begin_stop()
    }
}
