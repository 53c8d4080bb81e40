//! Commands for a queue that runs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use virtqueue::control::{Descriptors, QueueCommand, StartError};

use super::{Vring, send_signal};
use crate::device::{ScsiDisk, Stop};
use crate::event_loop::Interest;
use crate::event_loop::iothread::PlaneContext;
use crate::message::DeviceCommand;
use crate::plane::{Controls, Handler, StoragePlane};

impl Vring {
    /// Carries a command out. The receiver of an answer may be gone; that is no error.
    pub fn control(&mut self, command: QueueCommand, controls: Controls<'_>) {
        let Controls {
            place,
            now,
            cx,
            io,
            lists,
            ..
        } = controls;
        match command {
            QueueCommand::Enable(enabled) => {
                self.enabled = enabled;
                lists.activate(self, place);
                if self.stopping.is_some() {
                    // Requests that it was still to take may stay in its record: it may have drained then.
                    self.end_admissions_if_finished();
                    lists.unpublished.insert(place);
                } else if !self.resume_if_enabled(io, now) {
                    // Its requests were resumed while it was disabled, and there is no room.
                    lists.stall(place);
                }
            }
            QueueCommand::SetMemory(memory, reply) => {
                self.set_memory(memory, io);
                let _ = reply.send(());
            }
            QueueCommand::SetLog(log, reply) => {
                self.ring.set_log(log, &self.memory);
                let _ = reply.send(());
            }
            QueueCommand::Settle(reply) => self.settle(reply, io),
            QueueCommand::Descriptors(reply) => {
                let _ = reply.send(self.descriptors(cx));
            }
            QueueCommand::SetKick(kick, reply) => {
                let _ = reply.send(self.set_kick(kick, place, cx));
                // A kick on the old descriptor may have been lost.
                lists.activate(self, place);
            }
            QueueCommand::SetCall(call) => {
                self.call = call;
                // A driver that waits on the new descriptor may not have seen a signal on the old one:
                // a signal too many is harmless, one too few is not.
                if let Some(call) = &self.call {
                    send_signal(call);
                }
            }
            QueueCommand::SetErr(err) => self.err = err,
            QueueCommand::LeaveParked => self.stop = Stop::Record,
        }
    }

    /// The same for commands that concern the disks behind its device.
    pub fn control_device(&mut self, command: DeviceCommand, mut controls: Controls<'_>) {
        let Controls { place, now, .. } = controls;
        match command {
            DeviceCommand::SetNode(node, reply) => {
                let disk = controls.attach(&node);
                self.set_disk(disk, controls.io);
                self.settle(reply, controls.io);
            }
            DeviceCommand::SetDisks(disks, reply) => {
                let attach = |disk: &ScsiDisk| controls.attach(&disk.node);
                let attached = disks.iter().map(attach).collect();
                self.set_disks(disks, attached, controls.io);
                self.settle(reply, controls.io);
            }
            DeviceCommand::ToScsi(message) => {
                if self.handle_queue_message(message, controls.io, now) {
                    // It may have answered something by itself.
                    controls.lists.unpublished.insert(place);
                    controls.lists.activate(self, place);
                }
            }
            DeviceCommand::Resume(how) => {
                if self.stopping.is_none() && !self.resume_parked(how, controls.io, now) {
                    controls.lists.stall(place);
                }
            }
            DeviceCommand::ReportLate(after, until) => self.report_late(after, until, now),
        }
    }

    /// Listens for kicks there. A queue that is stopping is not kicked any more: its handler is deleted already.
    pub fn set_kick(
        &mut self,
        kick: Option<OwnedFd>,
        place: u32,
        cx: &mut PlaneContext<StoragePlane>,
    ) -> Result<(), StartError> {
        if self.stopping.is_none() {
            let add = |fd| cx.add(fd, Interest::ReadableEdge, Handler::Kick(place));
            let watched = kick.map(add).transpose().map_err(StartError::Kick)?;
            if let Some(old) = std::mem::replace(&mut self.kick, watched) {
                cx.delete(old);
            }
        }
        Ok(())
    }

    /// Duplicates of its descriptors, of which the loop has the kick's.
    fn descriptors(&self, cx: &PlaneContext<StoragePlane>) -> io::Result<Descriptors> {
        Ok(Descriptors {
            kick: duplicate(self.kick.and_then(|kick| cx.fd(kick)))?,
            call: duplicate(self.call.as_ref())?,
            err: duplicate(self.err.as_ref())?,
        })
    }
}

/// Another descriptor of the same file.
fn duplicate(fd: Option<impl AsFd>) -> io::Result<Option<OwnedFd>> {
    fd.map(|fd| fd.as_fd().try_clone_to_owned()).transpose()
}
