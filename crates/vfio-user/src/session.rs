//! The protocol without a socket: bytes and descriptors in, bytes out, calls to the device between them.
//!
//! Commands are carried out in the order in which they come. Their replies are in that order too, but for those
//! that have to wait for the device: memory that goes away while it is used, and a reset. All others pass
//! them. An access to a register is never held back.

use std::os::fd::OwnedFd;
use std::sync::Weak;

use unix_socket::passed_fds::Mapping;

use crate::bus::Bus;
use crate::device::PciDevice;
use crate::error::{Refused, Violation};
use crate::incoming::{Incoming, Message};
use crate::limits::FULL_OUTPUT_BYTES;
use crate::outgoing::Outgoing;
use crate::version::Agreed;
use crate::wire::{self, DmaUnmap, Header, command};

/// What became of a command.
pub(crate) enum Outcome {
    /// Its reply is written.
    Answered,
    /// Its reply waits.
    Held(Held),
}

/// A reply that waits.
pub(crate) enum Held {
    /// Until nobody uses this memory any more.
    Unmap {
        reply: DmaUnmap,
        in_use: Vec<Weak<Mapping>>,
    },
    /// Until the device has let go of what was under way.
    Reset,
}

impl Held {
    fn waits(&self, settled: bool) -> bool {
        match self {
            Held::Unmap { in_use, .. } => in_use.iter().any(|map| map.strong_count() > 0),
            Held::Reset => !settled,
        }
    }
}

/// One connection after the other; the device's line has a level between them, too.
pub(crate) struct Session {
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub bus: Bus,
    pub agreed: Option<Agreed>,
    pub held: Vec<(Header, Held)>,
}

impl Session {
    pub fn new() -> Self {
        Session {
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            bus: Bus::new(),
            agreed: None,
            held: Vec::new(),
        }
    }

    /// Whether messages are to be read: not while nobody reads the answers.
    pub fn wants_input(&self) -> bool {
        self.outgoing.unsent().len() < FULL_OUTPUT_BYTES
    }

    /// Carries out the next message that has been read. False: there is none.
    ///
    /// # Errors
    /// [`Violation`]: the connection has to end.
    pub fn carry_out_next(&mut self, device: &mut dyn PciDevice) -> Result<bool, Violation> {
        let Some(mut message) = self.incoming.next()? else {
            return Ok(false);
        };
        let fds = std::mem::take(&mut message.fds);
        let handled = self.handle(&message, fds, device);
        self.incoming.reuse(message);
        handled.map(|()| true)
    }

    fn handle(
        &mut self,
        message: &Message,
        fds: Vec<OwnedFd>,
        device: &mut dyn PciDevice,
    ) -> Result<(), Violation> {
        let header = message.header;
        match header.flags & wire::TYPE_MASK {
            wire::TYPE_COMMAND => {}
            wire::TYPE_REPLY => return self.bus.dma.answered(&header, message.payload()),
            _ => {
                return Err(Violation::Type {
                    flags: header.flags,
                });
            }
        }
        if self.agreed.is_none() && header.command != command::VERSION {
            return Err(Violation::NoVersion {
                command: header.command,
            });
        }
        let start = self.outgoing.bytes.len();
        let outcome = self.carry_out(&header, message.payload(), fds, device);
        let no_reply = header.flags & wire::NO_REPLY != 0;
        if let Err(refused) = &outcome
            && !refused.is_usual
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
            Ok(Outcome::Answered) => {}
            Ok(Outcome::Held(held)) => self.held.push((header, held)),
            Err(refused) => {
                self.outgoing.bytes.truncate(start);
                self.fail(&header, &refused);
            }
        }
        Ok(())
    }

    /// Begins the reply to a command; as many bytes of payload must follow.
    pub fn reply(&mut self, to: &Header, payload: usize) {
        let header = Header {
            flags: wire::TYPE_REPLY,
            errno: 0,
            ..*to
        };
        self.outgoing.begin(header, payload);
    }

    fn fail(&mut self, to: &Header, refused: &Refused) {
        let header = Header {
            flags: wire::TYPE_REPLY | wire::ERROR,
            errno: refused.errno.raw_os_error().unsigned_abs(),
            ..*to
        };
        self.outgoing.begin(header, 0);
    }

    /// Gives the device its turn, and what it has waited for; asks the front-end for what it wants now. True:
    /// there is more to do at once.
    pub fn run(&mut self, device: &mut dyn PciDevice, now_ns: u64) -> bool {
        self.bus.now_ns = now_ns;
        self.bus.dma.expire(now_ns);
        let mut more = device.run(&mut self.bus);
        // What is over at once, because it was refused, waits for the next turn: it may be asked for again.
        for _ in 0..self.bus.dma.count_over() {
            if let Some((id, result)) = self.bus.dma.next_over() {
                device.dma_done(&mut self.bus, id, result);
                more = true;
            }
        }
        if let Some(agreed) = self.agreed {
            self.bus
                .dma
                .ask(&mut self.outgoing, agreed.max_data_bytes as usize);
        }
        self.answer_held(device);
        more
    }

    /// Sends the replies that have waited long enough.
    fn answer_held(&mut self, device: &dyn PciDevice) {
        if self.held.is_empty() {
            return;
        }
        let settled = device.settled();
        let ready = self.held.extract_if(.., |(_, held)| !held.waits(settled));
        for (header, held) in ready.collect::<Vec<_>>() {
            match held {
                Held::Unmap { reply, .. } => {
                    self.reply(&header, DmaUnmap::BYTES);
                    reply.encode(&mut self.outgoing.bytes);
                }
                Held::Reset => self.reply(&header, 0),
            }
        }
    }

    /// The front-end has gone. The device keeps its state, as the protocol wants it: memory and
    /// interrupts are set up anew by whoever comes next.
    pub fn disconnect(&mut self, device: &mut dyn PciDevice) {
        self.incoming = Incoming::default();
        self.outgoing = Outgoing::default();
        self.agreed = None;
        self.held.clear();
        self.bus.connected = false;
        self.bus.intx.disconnect();
        self.bus.maps.unmap_all();
        self.bus.renew_memory();
        device.memory_changed(&mut self.bus);
        self.bus.dma.disconnect();
    }
}
