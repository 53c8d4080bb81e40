//! Runs commands of the control plane for a started queue: enable, replace memory, descriptors, dirty log or disks, settle, resume.

use std::os::fd::OwnedFd;

use virtqueue::queue_setup::{QueueCommand, StartError};

use super::{CommandContext, Handler, QueuesRunner};
use crate::event_loop::Interest;
use crate::event_loop::iteration::RunnerContext;
use crate::messages::{DeviceCommand, ScsiDisk};
use crate::vring::Vring;

impl CommandContext<'_> {
    /// Runs a command for a queue. The receiver of an answer may be gone; that is no error.
    pub fn run_queue_command(self, vring: &mut Vring, command: QueueCommand) {
        let CommandContext {
            source_index,
            now,
            cx,
            io,
            lists,
            ..
        } = self;
        match command {
            QueueCommand::Enable(enabled) => {
                vring.enabled = enabled;
                lists.activate_if_may_admit(vring, source_index);
                if vring.stopping.is_some() {
                    // Recovered requests may stay in its in-flight region: it may have drained then.
                    vring.end_admissions_if_finished();
                    lists.unpublished.insert(source_index);
                } else if !vring.resume_deferred_retries_if_enabled(io, now) {
                    // Its requests were resumed while it was disabled, and there is no room.
                    lists.stall(source_index);
                }
            }
            QueueCommand::SetMemory(memory, reply) => {
                vring.set_memory(memory, io);
                let _ = reply.send(());
            }
            QueueCommand::SetLog(log, reply) => {
                vring.set_dirty_log(log);
                let _ = reply.send(());
            }
            QueueCommand::Settle(reply) => vring.reply_when_current_requests_end(reply, io),
            QueueCommand::DuplicateFds(reply) => {
                let kick = vring.kick.and_then(|kick| cx.fd(kick));
                let _ = reply.send(vring.duplicate_descriptors(kick));
            }
            QueueCommand::SetKick(kick, reply) => {
                let _ = reply.send(set_kick_unless_stopping(vring, kick, source_index, cx));
                // A kick on the old descriptor may have been lost.
                lists.activate_if_may_admit(vring, source_index);
            }
            QueueCommand::SetCall(call) => vring.set_call_and_signal(call),
            QueueCommand::SetErr(err) => vring.set_err(err),
            QueueCommand::LeaveParked => vring.leave_parked_in_region_at_stop(),
        }
    }

    /// Runs a command that concerns the disks behind a queue's device.
    pub fn run_device_command(mut self, vring: &mut Vring, command: DeviceCommand) {
        let CommandContext {
            source_index, now, ..
        } = self;
        match command {
            DeviceCommand::SetNode(node, reply) => {
                let disk = self.attach_node_and_reserve_completions(&node);
                vring.replace_disk(disk, self.io);
                vring.reply_when_current_requests_end(reply, self.io);
            }
            DeviceCommand::SetDisks(disks, reply) => {
                let attach = |disk: &ScsiDisk| self.attach_node_and_reserve_completions(&disk.node);
                let attached = disks.iter().map(attach).collect();
                vring.replace_disks(disks, attached, self.io);
                vring.reply_when_current_requests_end(reply, self.io);
            }
            DeviceCommand::ToScsi(message) => {
                if vring.handle_scsi_message(message, self.io, now) {
                    // It may have pushed used entries without completions.
                    self.lists.unpublished.insert(source_index);
                    self.lists.activate_if_may_admit(vring, source_index);
                }
            }
            DeviceCommand::Resume(how) => {
                if vring.stopping.is_none() && !vring.retry_or_fail_parked(how, self.io, now) {
                    self.lists.stall(source_index);
                }
            }
            DeviceCommand::ReportLate(after, until) => {
                vring.report_late_except_parked(after, until, now)
            }
        }
    }
}

/// Watches another kick descriptor. A queue that is stopping is not kicked any more: its handler is deleted already.
pub(super) fn set_kick_unless_stopping(
    vring: &mut Vring,
    kick: Option<OwnedFd>,
    source_index: u32,
    cx: &mut RunnerContext<QueuesRunner>,
) -> Result<(), StartError> {
    if vring.stopping.is_none() {
        let add = |fd| cx.add(fd, Interest::ReadableEdge, Handler::Kick(source_index));
        let watched = kick.map(add).transpose().map_err(StartError::Kick)?;
        if let Some(old) = std::mem::replace(&mut vring.kick, watched) {
            cx.delete(old);
        }
    }
    Ok(())
}
