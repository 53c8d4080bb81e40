//! Exports that stand still while another process gets ready to go on with them. They go on where they were when this is
//! dropped.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use iothread::{SocketDeviceCommand, SocketDeviceHandle};
use vhost_user::{ConnectionHandover, ParkedServer, Server};
use virtio_scsi::CONTROL_QUEUE;

use crate::devices::export_server::ExportServer;
use crate::devices::virtio_scsi::ScsiController;
use crate::state::export::{Export, ExportState};
use crate::upgrade::channel::ALIVE;

/// How long a front-end may take for the message that it is at.
const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// How long requests in flight are waited for. Guests wait as well.
const DRAIN_TIME: Duration = Duration::from_secs(30);
/// How long task management functions may wait for a ring to become empty, with all queues but control queues at work. Those
/// left then are answered that they have failed, and drivers try something stronger.
const FUNCTION_TIME: Duration = Duration::from_secs(1);
/// How often it is looked whether a driver waits for any.
const LOOK: Duration = Duration::from_millis(1);

/// An export that stands still.
pub(crate) struct Standing {
    pub id: String,
    how: How,
}

enum How {
    VhostUser {
        parked: ParkedServer,
        controller: Option<Arc<ScsiController>>,
    },
    /// Nobody is connected, and nobody is taken.
    Alone(Alone),
}

/// Takes front-ends again when it is dropped.
struct Alone(Arc<SocketDeviceHandle>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.send(SocketDeviceCommand::Unpark);
    }
}

impl Standing {
    /// No front-end of this export is heard from here on; `None` for one that has ended. `alive` is called now and then.
    pub fn of(export: &Export, alive: impl Fn()) -> Result<Option<Self>, String> {
        let id = export.options.id.clone();
        let how = match &export.state {
            ExportState::Ending(_) => return Ok(None),
            ExportState::Serving(ExportServer::VhostUser(server)) => How::VhostUser {
                parked: park(server, alive).ok_or_else(|| {
                    format!(
                        "the front-end of export '{id}' has been in the middle of a message for {} s: see what is wrong with it",
                        MESSAGE_TIME.as_secs()
                    )
                })?,
                controller: export.controller.clone(),
            },
            ExportState::Serving(ExportServer::Adapter(handle)) => {
                let parked = handle.ask(SocketDeviceCommand::Park);
                // One whose iothread is gone has no front-end either.
                if parked == Some(false) {
                    return Err(is_connected(export));
                }
                How::Alone(Alone(handle.clone()))
            }
        };
        Ok(Some(Standing { id, how }))
    }

    /// Describes the connection, if there is one.
    pub fn hand_over(&mut self) -> Result<Option<ConnectionHandover>, String> {
        let How::VhostUser { parked, .. } = &mut self.how else {
            return Ok(None);
        };
        let handed = parked.hand_over();
        handed.map_err(|error| {
            let id = &self.id;
            format!("the front-end of export '{id}' cannot be handed over: {error}")
        })
    }

    /// Stops the queues, and says where they stand.
    pub fn stop(&mut self) -> Vec<(u16, u32)> {
        match &mut self.how {
            How::VhostUser { parked, .. } => parked.stop(),
            How::Alone(_) => Vec::new(),
        }
    }

    /// Another process has it.
    pub fn leave(self) {
        match self.how {
            How::VhostUser { parked, .. } => parked.leave(),
            How::Alone(alone) => std::mem::forget(alone),
        }
    }
}

/// Lets it stand still before its next message.
fn park(server: &Server, alive: impl Fn()) -> Option<ParkedServer> {
    (0..MESSAGE_TIME.as_secs()).find_map(|_| {
        alive();
        server.park(ALIVE)
    })
}

/// Why a host adapter is not handed over.
pub(crate) fn is_connected(export: &Export) -> String {
    format!(
        "export '{}' is a {} with a front-end, whose state cannot be handed over: disconnect it first, or restart instead",
        export.options.id,
        export.options.kind.name()
    )
}

/// Queues take no more, and all is done that they had taken. `alive` is called now and then.
pub(crate) fn rest(all: &mut [Standing], alive: impl Fn()) -> Result<(), String> {
    let now = Instant::now();
    let (until, functions_until) = (now + DRAIN_TIME, now + FUNCTION_TIME);
    let late = |id: &str| {
        format!(
            "requests of export '{id}' have been in flight for {} s: look for a disk that hangs (dmesg)",
            DRAIN_TIME.as_secs()
        )
    };
    let ends = |answer: &Receiver<()>| loop {
        let left = until.saturating_duration_since(Instant::now());
        match answer.recv_timeout(left.min(ALIVE)) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) if left.is_zero() => break false,
            Err(RecvTimeoutError::Timeout) => alive(),
        }
    };
    // A function is about commands that may still be in rings, so those are read until it is answered.
    for Standing { id, how } in &mut *all {
        if let How::VhostUser {
            parked,
            controller: Some(controller),
        } = how
            && let Some(answer) = parked.begin_quiesce_queue(CONTROL_QUEUE)
        {
            if !ends(&answer) {
                return Err(late(id));
            }
            while controller.device().functions() > 0 && Instant::now() < functions_until {
                std::thread::sleep(LOOK);
            }
        }
    }
    let mut resting = Vec::new();
    for Standing { id, how } in all {
        if let How::VhostUser { parked, .. } = how {
            let answers = parked.begin_quiesce().into_iter();
            resting.extend(answers.map(|answer| (id.clone(), answer)));
        }
    }
    match resting.iter().find(|(_, answer)| !ends(answer)) {
        None => Ok(()),
        Some((id, _)) => Err(late(id)),
    }
}
