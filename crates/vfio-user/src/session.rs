//! The protocol without a socket: bytes and descriptors in, bytes out, calls of the device between them.
//!
//! Commands are executed in the order in which they come. Their replies have the same order, except those
//! that wait for the device: of memory that is unmapped while it is used, and of a reset. Other replies overtake
//! them. The reply to a register access never waits.

use std::os::fd::OwnedFd;
use std::sync::Weak;

use unix_socket::passed_fds::Mapping;

use crate::bus::DeviceBus;
use crate::device::PciDevice;
use crate::error::{CommandError, ProtocolViolation};
use crate::incoming::{IncomingBuffer, IncomingMessage};
use crate::limits::FULL_OUTPUT_BYTES;
use crate::outgoing::OutgoingBuffer;
use crate::version::NegotiatedLimits;
use crate::wire::{self, DmaUnmap, Header, command};

/// The result of a command that was executed.
pub(crate) enum CommandOutcome {
    /// Its reply is written.
    Replied,
    /// Its reply waits.
    Delayed(DelayedReply),
}

/// A reply that waits.
pub(crate) enum DelayedReply {
    /// Until this memory has no more users.
    Unmap {
        reply: DmaUnmap,
        in_use: Vec<Weak<Mapping>>,
    },
    /// Until the requests are done that were in flight at the reset.
    Reset,
}

impl DelayedReply {
    /// Whether the reply still waits. `settled`: all requests are done that were in flight at a reset.
    fn is_waiting(&self, settled: bool) -> bool {
        match self {
            DelayedReply::Unmap { in_use, .. } => in_use.iter().any(|map| map.strong_count() > 0),
            DelayedReply::Reset => !settled,
        }
    }
}

/// The state of the protocol, for one connection after the other; the device's line has a level between them, too.
pub(crate) struct Session {
    pub incoming: IncomingBuffer,
    pub outgoing: OutgoingBuffer,
    pub bus: DeviceBus,
    pub negotiated: Option<NegotiatedLimits>,
    pub delayed_replies: Vec<(Header, DelayedReply)>,
}

impl Session {
    /// The state of this export without a connection.
    pub fn new(export: &str) -> Self {
        Session {
            incoming: IncomingBuffer::default(),
            outgoing: OutgoingBuffer::default(),
            bus: DeviceBus::new(export),
            negotiated: None,
            delayed_replies: Vec::new(),
        }
    }

    /// Whether to read messages: not while the front-end does not read the replies.
    pub fn has_room_for_output(&self) -> bool {
        self.outgoing.unsent().len() < FULL_OUTPUT_BYTES
    }

    /// Handles the next message that was received. False: there is none.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the connection has to end.
    pub fn handle_next_message(
        &mut self,
        device: &mut dyn PciDevice,
    ) -> Result<bool, ProtocolViolation> {
        let Some(mut message) = self.incoming.take_next_message()? else {
            return Ok(false);
        };
        let fds = std::mem::take(&mut message.fds);
        let handled = self.handle_message(&message, fds, device);
        self.incoming.recycle_buffer_of(message);
        handled.map(|()| true)
    }

    /// Handles a message: a reply to one of the device's transfers, or a command, which is executed and answered.
    fn handle_message(
        &mut self,
        message: &IncomingMessage,
        fds: Vec<OwnedFd>,
        device: &mut dyn PciDevice,
    ) -> Result<(), ProtocolViolation> {
        let header = message.header;
        match header.flags & wire::TYPE_MASK {
            wire::TYPE_COMMAND => {}
            wire::TYPE_REPLY => return self.bus.dma.handle_reply(&header, message.payload()),
            _ => {
                return Err(ProtocolViolation::Type {
                    flags: header.flags,
                });
            }
        }
        if self.negotiated.is_none() && header.command != command::VERSION {
            return Err(ProtocolViolation::NoVersion {
                command: header.command,
            });
        }
        let start = self.outgoing.bytes.len();
        let outcome = self.execute_command(&header, message.payload(), fds, device);
        let no_reply = header.flags & wire::NO_REPLY != 0;
        if let Err(refused) = &outcome
            && !refused.is_expected
        {
            tracing::info!(
                export = device.name(),
                command = header.command,
                error = %refused,
                "refused a front-end's message"
            );
        }
        match outcome {
            _ if no_reply => self.outgoing.bytes.truncate(start),
            Ok(CommandOutcome::Replied) => {}
            Ok(CommandOutcome::Delayed(reply)) => self.delayed_replies.push((header, reply)),
            Err(refused) => {
                self.outgoing.bytes.truncate(start);
                self.append_error_reply(&header, &refused);
            }
        }
        Ok(())
    }

    /// Begins the reply to a command; as many bytes of payload must follow.
    pub fn begin_reply(&mut self, to: &Header, payload: usize) {
        let header = Header {
            flags: wire::TYPE_REPLY,
            errno: 0,
            ..*to
        };
        self.outgoing.begin_message(header, payload);
    }

    /// Adds the reply to a command that was refused.
    fn append_error_reply(&mut self, to: &Header, refused: &CommandError) {
        let header = Header {
            flags: wire::TYPE_REPLY | wire::ERROR,
            errno: refused.errno.raw_os_error().unsigned_abs(),
            ..*to
        };
        self.outgoing.begin_message(header, 0);
    }

    /// Runs the device, passes it the transfers that have finished, and sends its new ones to the front-end. True:
    /// there is more to do at once.
    pub fn run_device_and_append_messages(
        &mut self,
        device: &mut dyn PciDevice,
        now_ns: u64,
    ) -> bool {
        self.bus.now_ns = now_ns;
        self.bus.dma.fail_timed_out(now_ns);
        let mut more = device.do_pending_work(&mut self.bus);
        // A transfer that was refused has finished at once. It waits for the next turn, since the device may repeat it.
        for _ in 0..self.bus.dma.finished_count() {
            if let Some((id, result)) = self.bus.dma.take_next_finished() {
                device.on_dma_done(&mut self.bus, id, result);
                more = true;
            }
        }
        if let Some(limits) = self.negotiated {
            self.bus
                .dma
                .append_messages_to(&mut self.outgoing, limits.max_data_bytes as usize);
        }
        self.append_ready_replies(device);
        more
    }

    /// Sends the delayed replies that need not wait any more.
    fn append_ready_replies(&mut self, device: &dyn PciDevice) {
        if self.delayed_replies.is_empty() {
            return;
        }
        let settled = device.is_reset_done();
        let ready = self
            .delayed_replies
            .extract_if(.., |(_, reply)| !reply.is_waiting(settled));
        for (header, delayed) in ready.collect::<Vec<_>>() {
            match delayed {
                DelayedReply::Unmap { reply, .. } => {
                    self.begin_reply(&header, DmaUnmap::BYTES);
                    reply.encode(&mut self.outgoing.bytes);
                }
                DelayedReply::Reset => self.begin_reply(&header, 0),
            }
        }
    }

    /// Ends a connection. The device keeps its state, as the protocol requires: the next front-end sets up memory and
    /// interrupts again.
    pub fn clear_connection_state(&mut self, device: &mut dyn PciDevice) {
        self.incoming = IncomingBuffer::default();
        self.outgoing = OutgoingBuffer::default();
        self.negotiated = None;
        self.delayed_replies.clear();
        self.bus.connected = false;
        self.bus.intx.drop_eventfds_and_unmask();
        self.bus.maps.unmap_all();
        self.bus.rebuild_memory();
        device.on_memory_changed(&mut self.bus);
        self.bus.dma.fail_all();
    }
}
