//! Encodes the state of a connection as messages that restore it in another process, for a live upgrade, and restarts its queues
//! if that fails.

use std::io;
use std::os::fd::AsFd;

use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtqueue::queue_setup::{QueueCommand, QueueFds, StartError};

use super::Connection;
use crate::inflight::InflightBuffer;
use crate::message::{Message, RequestCode};
use crate::vring::StartContext;

impl Connection {
    /// The descriptors of the queues that run.
    pub(crate) fn duplicate_running_queue_fds(&self) -> io::Result<Vec<(u16, QueueFds)>> {
        let running = (0..).zip(&self.vrings);
        let running = running.filter_map(|(index, vring)| Some((index, vring.running_queue()?)));
        running
            .map(|(index, running)| {
                let gone = || Err(io::Error::other(StartError::Stopped));
                let descriptors = running.send_and_wait(QueueCommand::DuplicateFds);
                Ok((index, descriptors.unwrap_or_else(gone)?))
            })
            .collect()
    }

    /// The messages that restore this connection, without those that start its queues.
    pub(crate) fn encode_restore_messages(
        &self,
        running: &[(u16, QueueFds)],
    ) -> io::Result<Vec<Message>> {
        let mut messages = vec![Message::encode_without_payload(RequestCode::GetFeatures)?];
        let mut push = |message: io::Result<Message>| message.map(|message| messages.push(message));
        let protocol = self.acked_protocol_features;
        if protocol != 0 {
            push(Message::encode_without_payload(
                RequestCode::GetProtocolFeatures,
            ))?;
            push(Message::encode_with_number(
                RequestCode::SetProtocolFeatures,
                protocol,
            ))?;
        }
        if self.acked_features != 0 {
            push(Message::encode_with_number(
                RequestCode::SetFeatures,
                self.acked_features,
            ))?;
        }
        let regions = self.memory_table.regions();
        if protocol & VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS.bits() != 0 {
            for region in &regions {
                push(Message::encode_add_mem_reg(
                    &region.description,
                    region.file,
                ))?;
            }
        } else if !regions.is_empty() {
            let descriptions: Vec<_> = regions.iter().map(|region| region.description).collect();
            let files: Vec<_> = regions.iter().map(|region| region.file).collect();
            push(Message::encode_set_mem_table(&descriptions, &files))?;
        }
        let inflight = self
            .inflight
            .as_ref()
            .and_then(InflightBuffer::description_and_file);
        if let Some((description, file)) = inflight {
            push(Message::encode_set_inflight_fd(&description, file))?;
        }
        if let Some(channel) = &self.channel {
            push(Message::encode_set_backend_req_fd(channel.socket()))?;
        }
        let enables = self.acked_features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0;
        for (index, vring) in (0..).zip(&self.vrings) {
            if vring.size != 0 {
                push(Message::encode_with_queue_number(
                    RequestCode::SetVringNum,
                    index,
                    vring.size.into(),
                ))?;
            }
            if let Some(addresses) = vring.addresses {
                push(Message::encode_set_vring_addr(index, addresses))?;
            }
            push(Message::encode_with_queue_number(
                RequestCode::SetVringBase,
                index,
                vring.base,
            ))?;
            let running_descriptors = running.iter().find(|(found, _)| *found == index);
            let [call, err] = match running_descriptors {
                Some((_, found)) => [found.call.as_ref(), found.err.as_ref()],
                None => vring.stopped_call_and_err_fds(),
            };
            for (request, fd) in [
                (RequestCode::SetVringCall, call),
                (RequestCode::SetVringErr, err),
            ] {
                if let Some(fd) = fd {
                    push(Message::encode_with_queue_fd(
                        request,
                        index,
                        Some(fd.as_fd()),
                    ))?;
                }
            }
            if enables {
                let enabled = u32::from(vring.enabled);
                push(Message::encode_with_queue_number(
                    RequestCode::SetVringEnable,
                    index,
                    enabled,
                ))?;
            }
        }
        Ok(messages)
    }

    /// Starts a queue again where it was stopped.
    pub(crate) fn restart_queue_after_aborted_handover(
        &mut self,
        index: u16,
        descriptors: QueueFds,
    ) {
        let (device, features) = (self.device.clone(), self.ring_features());
        let inflight = self.inflight_region(index);
        let (Some(memory), Some(vring)) =
            (self.memory.clone(), self.vrings.get_mut(usize::from(index)))
        else {
            return;
        };
        vring.set_call(descriptors.call);
        vring.set_err(descriptors.err);
        let kick = descriptors.kick;
        let context = StartContext {
            memory: &memory,
            features,
            inflight,
            // A connection is handed over only while logging is off.
            log: None,
            device: &*device,
            signaller: &self.signaller,
        };
        if let Err(error) = vring.start_or_set_kick(index, kick, context) {
            tracing::error!(
                export = device.name(), queue = index, %error,
                advice = "the guest's driver has to reset the device",
                "a queue that was stopped cannot be started again"
            );
        }
    }
}
