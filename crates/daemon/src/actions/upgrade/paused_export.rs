//! Exports that are paused during a handover: their front-ends are not served, then their queues stop. Dropping a
//! [`PausedExport`] resumes the export where it was.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use iothread::{SocketDeviceCommand, SocketDeviceHandle};
use vhost_user::{ConnectionHandover, PausedServer, Server};
use virtio_scsi::CONTROL_QUEUE;

use crate::devices::export_server::ExportServer;
use crate::devices::virtio_scsi::VirtioScsiController;
use crate::state::export::{Export, ExportState};
use crate::upgrade::channel::KEEP_ALIVE_INTERVAL;

/// Time limit for a front-end to finish sending a message that it has begun.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for requests in flight. Guests wait as well.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for task management functions that wait for commands to be read from a ring, while all queues but the control
/// queue run. After it they are answered with a failure, and drivers escalate to a stronger function.
const TASK_MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks whether such functions are left.
const TASK_MANAGEMENT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// An export whose server is paused for a handover.
pub(crate) struct PausedExport {
    pub id: String,
    server: PausedExportServer,
}

/// The server of an export, paused for a handover.
enum PausedExportServer {
    VhostUser {
        paused: PausedServer,
        controller: Option<Arc<VirtioScsiController>>,
    },
    /// A host adapter without a front-end; it accepts none.
    Adapter(PausedAdapter),
    /// An export of the NBD server, whose clients are disconnected once their requests are done; they connect again.
    Nbd(PausedNbdExport),
}

/// An export of the NBD server, whose connections go on when this is dropped.
struct PausedNbdExport(Arc<nbd_server::Export>);

impl Drop for PausedNbdExport {
    fn drop(&mut self) {
        self.0.resume_connections();
    }
}

/// A paused host adapter, which accepts front-ends again when this is dropped.
struct PausedAdapter(Arc<SocketDeviceHandle>);

impl Drop for PausedAdapter {
    fn drop(&mut self) {
        self.0
            .send_unless_stopped(SocketDeviceCommand::ResumeAccepting);
    }
}

impl PausedExport {
    /// Pauses the server of an export between two messages of its front-end; `None` if the export is draining. Calls
    /// `keep_alive` regularly while it waits.
    pub fn pause_unless_draining(
        export: &Export,
        keep_alive: impl Fn(),
    ) -> Result<Option<Self>, String> {
        let id = export.options.id.clone();
        let server = match &export.state {
            ExportState::Draining(_) => return Ok(None),
            ExportState::Serving(ExportServer::VhostUser(server)) => PausedExportServer::VhostUser {
                paused: pause_server_or_time_out(server, keep_alive).ok_or_else(|| {
                    format!(
                        "the front-end of export '{id}' has been in the middle of a message for {} s: see what is wrong with it",
                        MESSAGE_TIMEOUT.as_secs()
                    )
                })?,
                controller: export.controller.clone(),
            },
            ExportState::Serving(ExportServer::Adapter(handle)) => {
                let paused = handle.send_and_wait(SocketDeviceCommand::PauseAccepting);
                // `None`: its iothread has ended, so it has no front-end either.
                if paused == Some(false) {
                    return Err(adapter_connected_error(export));
                }
                PausedExportServer::Adapter(PausedAdapter(handle.clone()))
            }
            ExportState::Serving(ExportServer::Nbd(export)) => {
                PausedExportServer::Nbd(PausedNbdExport(export.clone()))
            }
        };
        Ok(Some(PausedExport { id, server }))
    }

    /// Describes the front-end's connection, if there is one, for the new process.
    pub fn connection_for_handover(&mut self) -> Result<Option<ConnectionHandover>, String> {
        let PausedExportServer::VhostUser { paused, .. } = &mut self.server else {
            return Ok(None);
        };
        let connection = paused.make_connection_handover();
        connection.map_err(|error| {
            let id = &self.id;
            format!("the front-end of export '{id}' cannot be handed over: {error}")
        })
    }

    /// Stops the queues, and returns the base of each: where the new process starts it. NBD clients, of which nothing is in flight, are
    /// disconnected.
    pub fn stop_queues_and_disconnect_nbd_clients(&mut self) -> Vec<(u16, u32)> {
        match &mut self.server {
            PausedExportServer::VhostUser { paused, .. } => {
                return paused.stop_queues_for_handover();
            }
            PausedExportServer::Nbd(PausedNbdExport(export)) => export.disconnect_and_wait(),
            PausedExportServer::Adapter(_) => {}
        }
        Vec::new()
    }

    /// Leaves the export to the new process: it is not resumed here.
    pub fn forget_without_resuming(self) {
        match self.server {
            PausedExportServer::VhostUser { paused, .. } => paused.forget_without_resuming(),
            PausedExportServer::Adapter(adapter) => std::mem::forget(adapter),
            PausedExportServer::Nbd(export) => std::mem::forget(export),
        }
    }
}

/// Pauses a server before the next message of its front-end.
fn pause_server_or_time_out(server: &Server, keep_alive: impl Fn()) -> Option<PausedServer> {
    (0..MESSAGE_TIMEOUT.as_secs()).find_map(|_| {
        keep_alive();
        server.try_pause(KEEP_ALIVE_INTERVAL)
    })
}

/// The error for a host adapter with a front-end.
pub(crate) fn adapter_connected_error(export: &Export) -> String {
    format!(
        "export '{}' is a {} with a front-end, whose state cannot be handed over: disconnect it first, or restart instead",
        export.options.id,
        export.options.kind.name()
    )
}

/// Drains all queues: they admit nothing more, and requests in flight complete. Calls `keep_alive` regularly while it waits.
pub(crate) fn drain_queues(
    exports: &mut [PausedExport],
    keep_alive: impl Fn(),
) -> Result<(), String> {
    let now = Instant::now();
    let (until, task_management_until) = (now + DRAIN_TIMEOUT, now + TASK_MANAGEMENT_TIMEOUT);
    let drain_error = |id: &str| {
        format!(
            "requests of export '{id}' have been in flight for {} s: look for a disk that hangs (dmesg)",
            DRAIN_TIMEOUT.as_secs()
        )
    };
    let wait_drained = |drained: &Receiver<()>| loop {
        let left = until.saturating_duration_since(Instant::now());
        match drained.recv_timeout(left.min(KEEP_ALIVE_INTERVAL)) {
            // The queue or connection, or its iothread, is gone.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) if left.is_zero() => break false,
            Err(RecvTimeoutError::Timeout) => keep_alive(),
        }
    };
    // Control queues first: a task management function may be about commands that are still in the rings of request queues, so
    // these run until it has been answered.
    for PausedExport { id, server } in &mut *exports {
        if let PausedExportServer::VhostUser {
            paused,
            controller: Some(controller),
        } = server
            && let Some(drained) = paused.begin_quiesce_queue(CONTROL_QUEUE)
        {
            if !wait_drained(&drained) {
                return Err(drain_error(id));
            }
            while controller.virtio_scsi_device().unanswered_tmf_count() > 0
                && Instant::now() < task_management_until
            {
                std::thread::sleep(TASK_MANAGEMENT_CHECK_INTERVAL);
            }
        }
    }
    let mut draining = Vec::new();
    for PausedExport { id, server } in exports {
        let drains = match server {
            PausedExportServer::VhostUser { paused, .. } => paused.begin_quiesce(),
            PausedExportServer::Adapter(_) => Vec::new(),
            PausedExportServer::Nbd(PausedNbdExport(export)) => export.begin_drain_connections(),
        };
        draining.extend(drains.into_iter().map(|drained| (id.clone(), drained)));
    }
    match draining.iter().find(|(_, drained)| !wait_drained(drained)) {
        None => Ok(()),
        Some((id, _)) => Err(drain_error(id)),
    }
}
