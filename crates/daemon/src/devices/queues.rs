//! Starts the virtqueues of an export on its iothreads, and reports front-ends that connect and disconnect, for all devices.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use iothread::{
    DeviceSetup, ExportReporter, IothreadHandle, QueueReporter, ReportedExport, VringHandle,
    VringSetup,
};
use qmp::{ServerHandle, StateKey};
use serde_json::json;
use telemetry::queue::QueueName;
use vhost_user::StartedQueue;
use virtqueue::queue_setup::{QueueCommand, QueueSetup, StartError};

use crate::disk::export_stats::{ExportStats, iothread_index_of_queue};

/// Starts the virtqueues of an export: has what each of them needs, its iothreads, counters and error reports.
pub(crate) struct QueueStarter {
    pub export: Arc<ReportedExport>,
    pub iothreads: Vec<Arc<IothreadHandle>>,
    pub fixed_buffers: bool,
    pub events: ServerHandle,
    pub stats: Arc<ExportStats>,
    pub reports: Arc<ExportReporter>,
}

impl QueueStarter {
    /// Starts a queue of this device. `switch_node` is called to send the queue the present nodes, after one was replaced.
    pub fn start_queue(
        &self,
        index: u16,
        queue: QueueSetup,
        device: DeviceSetup,
        switch_node: impl Fn(&VringHandle) -> Receiver<()> + Send + 'static,
    ) -> Result<Box<dyn StartedQueue>, StartError> {
        let iothread = &self.iothreads[iothread_index_of_queue(index, self.iothreads.len())];
        let handle = iothread.start_vring(VringSetup {
            name: QueueName::new(self.export.id(), index),
            device,
            queue,
            fixed_buffers: self.fixed_buffers,
            stats: self.stats.queues[usize::from(index)].stats.clone(),
            reports: Some(QueueReporter {
                export: self.reports.clone(),
                queue: index,
            }),
        })?;
        Ok(Box::new(RunningQueue {
            handle,
            switch_node,
        }))
    }

    /// Called when a front-end connects or disconnects: records that, and sends an event.
    pub fn on_connection_change(&self, connected: bool) {
        record_and_report_connection(&self.export, connected, &self.stats, &self.events);
    }
}

/// Records whether an export has a front-end, and sends an event if that has changed. Returns whether it has.
pub(crate) fn record_and_report_connection(
    export: &ReportedExport,
    connected: bool,
    stats: &ExportStats,
    events: &ServerHandle,
) -> bool {
    let changed = stats.connected.swap(connected, Ordering::Relaxed) != connected;
    if changed {
        let event = match connected {
            true => "BLOCK_EXPORT_CONNECTED",
            false => "BLOCK_EXPORT_DISCONNECTED",
        };
        let state = StateKey {
            owner: export.id().to_owned(),
            state: "connection".to_owned(),
        };
        export.report_unless_removed(|| {
            events.emit_state(state, event, json!({"id": export.id()}));
        });
    }
    changed
}

/// A queue that runs on an iothread, for the vhost-user server.
struct RunningQueue<R> {
    handle: VringHandle,
    switch_node: R,
}

impl<R: Fn(&VringHandle) -> Receiver<()> + Send> StartedQueue for RunningQueue<R> {
    fn send_command(&self, command: QueueCommand) {
        self.handle.send(command);
    }

    fn switch_node(&self) -> Receiver<()> {
        (self.switch_node)(&self.handle)
    }

    fn begin_stop(self: Box<Self>) -> Receiver<u32> {
        self.handle.begin_stop()
    }
}
