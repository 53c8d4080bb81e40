//! Virtqueues of an export on its iothreads, whichever device they belong to.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use data_plane::{DataThread, DeviceSetup, ExportReports, QueueReports, VringHandle, VringSetup};
use device_queue::QueueName;
use qmp::Handle;
use serde_json::json;
use vhost_user::StartedQueue;
use virtqueue::control::{Descriptors, QueueSetup, StartError};
use virtqueue::{GuestMemory, QueueLog};

use crate::figures::Figures;

/// Where an export's queues run, and who hears of them.
pub(super) struct Queues {
    pub export: String,
    pub iothreads: Vec<Arc<DataThread>>,
    pub fixed_buffers: bool,
    pub events: Handle,
    pub figures: Arc<Figures>,
    pub reports: Arc<ExportReports>,
}

impl Queues {
    /// Starts a queue of this device. `renew` is called when something else stands behind the
    /// device than before.
    pub fn start(
        &self,
        index: u16,
        queue: QueueSetup,
        device: DeviceSetup,
        renew: impl Fn(&VringHandle) + Send + 'static,
    ) -> Result<Box<dyn StartedQueue>, StartError> {
        let place = usize::from(index);
        let iothread = &self.iothreads[place % self.iothreads.len()];
        let handle = iothread.start_vring(VringSetup {
            name: QueueName::new(&self.export, index),
            device,
            queue,
            fixed_buffers: self.fixed_buffers,
            stats: self.figures.queues[place].stats.clone(),
            reports: Some(QueueReports {
                export: self.reports.clone(),
                queue: index,
            }),
        })?;
        Ok(Box::new(Queue { handle, renew }))
    }

    /// A front-end has come or gone.
    pub fn connected(&self, connected: bool) {
        tell_connected(&self.export, connected, &self.figures, &self.events);
    }
}

/// Shows whether an export has a front-end, and tells monitors of it. False: nothing has changed.
pub(super) fn tell_connected(
    export: &str,
    connected: bool,
    figures: &Figures,
    events: &Handle,
) -> bool {
    let changed = figures.connected.swap(connected, Ordering::Relaxed) != connected;
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
    renew: R,
}

impl<R: Fn(&VringHandle) + Send> StartedQueue for Queue<R> {
    fn enable(&self, enabled: bool) {
        self.handle.enable(enabled);
    }

    fn set_memory(&self, memory: Arc<GuestMemory>) {
        self.handle.set_memory(memory);
    }

    fn set_log(&self, log: Option<QueueLog>) {
        self.handle.set_log(log);
    }

    fn settle(&self) {
        self.handle.settle();
    }

    fn begin_settle(&self) -> Receiver<()> {
        self.handle.begin_settle()
    }

    fn descriptors(&self) -> io::Result<Descriptors> {
        self.handle.descriptors()
    }

    fn renew(&self) {
        (self.renew)(&self.handle);
    }

    fn set_call(&self, call: Option<OwnedFd>) {
        self.handle.set_call(call);
    }

    fn set_err(&self, err: Option<OwnedFd>) {
        self.handle.set_err(err);
    }

    fn set_kick(&self, kick: Option<OwnedFd>) -> Result<(), StartError> {
        self.handle.set_kick(kick)
    }

    fn stop(self: Box<Self>) -> Option<u32> {
        self.handle.stop()
    }

    fn begin_leave(self: Box<Self>) -> Receiver<u32> {
        self.handle.begin_leave()
    }
}
