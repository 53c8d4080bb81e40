//! SCSI messages between initiator and target in both directions (SPI-2, chapter 16), and what the target does upon
//! them.
//!
//! Buffers have fixed sizes, and lengths from the guest are only counted: a message that is longer than any supported
//! one is received to its end and rejected.

use crate::chip::Chip;
use crate::chip::host_traits::{
    CheckConditionCause, PciBus, ResetScope, TagAttribute, TargetAndLun, Targets,
};

const COMMAND_COMPLETE: u8 = 0x00;
const EXTENDED: u8 = 0x01;
const SAVE_DATA_POINTER: u8 = 0x02;
const DISCONNECT: u8 = 0x04;
const INITIATOR_DETECTED_ERROR: u8 = 0x05;
const ABORT: u8 = 0x06;
const MESSAGE_REJECT: u8 = 0x07;
const NO_OPERATION: u8 = 0x08;
const MESSAGE_PARITY_ERROR: u8 = 0x09;
const BUS_DEVICE_RESET: u8 = 0x0c;
const ABORT_TAG: u8 = 0x0d;
const CLEAR_QUEUE: u8 = 0x0e;
const LOGICAL_UNIT_RESET: u8 = 0x17;
const SIMPLE_QUEUE_TAG: u8 = 0x20;
const HEAD_OF_QUEUE_TAG: u8 = 0x21;
const ORDERED_QUEUE_TAG: u8 = 0x22;
const IDENTIFY: u8 = 0x80;

const SYNCHRONOUS: u8 = 0x01;
const WIDE: u8 = 0x03;
const PARALLEL: u8 = 0x04;

/// The fastest that Ultra2 knows, as a transfer period factor: 25 ns.
const PERIOD_MIN: u8 = 0x0a;
/// REQs ahead of ACKs that the chip can count.
const OFFSET_MAX: u8 = 31;
/// Two bytes wide, as an exponent.
const WIDTH_MAX: u8 = 1;

/// Most bytes of a message that are kept; further ones are only counted.
const MAX_KEPT_BYTES: usize = 8;

/// The target's action after it has sent all its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterMessages {
    Command,
    Data,
    Busy,
    Status,
    Free,
}

/// Assembles messages from bytes.
#[derive(Default)]
pub struct MessageAssembler {
    bytes: [u8; MAX_KEPT_BYTES],
    received: usize,
}

impl MessageAssembler {
    /// Whether a message is incomplete.
    pub fn is_in_message(&self) -> bool {
        self.received > 0
    }

    /// Adds a byte. Returns the message (the beginning of a long one, and its true length) if this was the last.
    fn push(&mut self, byte: u8) -> Option<([u8; MAX_KEPT_BYTES], usize)> {
        if let Some(place) = self.bytes.get_mut(self.received) {
            *place = byte;
        }
        self.received += 1;
        let whole = match self.bytes[0] {
            EXTENDED if self.received < 2 => usize::MAX,
            // A length of 0 stands for 256.
            EXTENDED => 2 + (usize::from(self.bytes[1]).wrapping_sub(1) & 0xff) + 1,
            0x20..=0x2f => 2,
            _ => 1,
        };
        if self.received < whole {
            return None;
        }
        self.received = 0;
        Some((std::mem::take(&mut self.bytes), whole))
    }
}

/// Most bytes of messages that a target has to send at once.
const MAX_OUTGOING_BYTES: usize = 32;

/// Messages that the target is about to send.
#[derive(Default)]
pub struct MessagesToInitiator {
    bytes: [u8; MAX_OUTGOING_BYTES],
    len: usize,
    sent: usize,
    /// One bit for each byte that ends a message.
    message_ends: u32,
    last: [u8; MAX_KEPT_BYTES],
    last_len: usize,
}

impl MessagesToInitiator {
    /// Adds a message, which is dropped if there is no room.
    pub fn push_or_drop(&mut self, message: &[u8]) {
        if self.sent == self.len {
            (self.sent, self.len, self.message_ends) = (0, 0, 0);
        }
        let Some(place) = self.bytes.get_mut(self.len..self.len + message.len()) else {
            return;
        };
        place.copy_from_slice(message);
        self.len += message.len();
        self.message_ends |= 1 << (self.len - 1);
    }

    /// The next byte to send.
    pub fn peek(&self) -> Option<u8> {
        (self.sent < self.len).then(|| self.bytes[self.sent])
    }

    /// Up to `most` bytes that are not sent yet.
    pub fn unsent(&self, most: usize) -> &[u8] {
        &self.bytes[self.sent..self.len.min(self.sent.saturating_add(most))]
    }

    /// Marks so many bytes as sent, and keeps the last message for [`MessagesToInitiator::repeat_last_message`].
    pub fn mark_sent_and_keep_last_message(&mut self, count: usize) {
        for _ in 0..count {
            if self.is_at_message_boundary() {
                self.last_len = 0;
            }
            if let Some(place) = self.last.get_mut(self.last_len) {
                *place = self.bytes[self.sent];
                self.last_len += 1;
            }
            self.sent += 1;
        }
    }

    /// Whether the last byte was the end of a message.
    pub fn is_at_message_boundary(&self) -> bool {
        self.sent == 0 || self.message_ends & 1 << (self.sent - 1) != 0
    }

    /// Queues the last message again.
    fn repeat_last_message(&mut self) {
        let last = self.last;
        let len = self.last_len;
        if len > 0 {
            self.push_or_drop(&last[..len]);
        }
    }
}

impl Chip {
    /// The target receives a byte of a message.
    pub(crate) fn receive_message_byte<H: PciBus + Targets>(&mut self, host: &mut H, byte: u8) {
        // A target that is to disconnect ignores further messages.
        let Some(connection) = self.connection_mut().filter(|it| !it.must_leave_bus) else {
            return;
        };
        let Some((message, len)) = connection.incoming_message.push(byte) else {
            return;
        };
        match message[0] {
            IDENTIFY.. => {
                connection.lun = message[0] & 0x3f;
                connection.may_disconnect = message[0] & 0x40 != 0;
            }
            SIMPLE_QUEUE_TAG..=ORDERED_QUEUE_TAG => {
                connection.tag = Some(message[1]);
                connection.attribute = match message[0] {
                    HEAD_OF_QUEUE_TAG => TagAttribute::Head,
                    ORDERED_QUEUE_TAG => TagAttribute::Ordered,
                    _ => TagAttribute::Simple,
                };
            }
            EXTENDED => match negotiation_answer(&message, len) {
                Some((answer, len)) => connection
                    .messages_to_initiator
                    .push_or_drop(&answer[..len]),
                None => connection
                    .messages_to_initiator
                    .push_or_drop(&[MESSAGE_REJECT]),
            },
            NO_OPERATION | MESSAGE_REJECT => {}
            MESSAGE_PARITY_ERROR => connection.messages_to_initiator.repeat_last_message(),
            INITIATOR_DETECTED_ERROR => self.handle_initiator_detected_error(host),
            ABORT | ABORT_TAG | CLEAR_QUEUE | BUS_DEVICE_RESET | LOGICAL_UNIT_RESET => {
                self.handle_abort_or_reset_message(host, message[0])
            }
            _ => connection
                .messages_to_initiator
                .push_or_drop(&[MESSAGE_REJECT]),
        }
    }

    /// Handles messages that abort tasks, after which the target leaves the bus.
    fn handle_abort_or_reset_message<H: Targets>(&mut self, host: &mut H, message: u8) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection.must_leave_bus = true;
        let nexus = TargetAndLun {
            target: connection.target,
            lun: connection.lun,
        };
        let (tag, current) = (connection.tag, connection.task);
        match message {
            ABORT_TAG => self
                .tasks
                .abort_where(host, |task| task.nexus == nexus && task.tag == tag),
            BUS_DEVICE_RESET => {
                self.tasks
                    .abort_where(host, |task| task.nexus.target == nexus.target);
                host.reset_units(ResetScope::Target(nexus.target));
            }
            LOGICAL_UNIT_RESET => {
                self.tasks.abort_where(host, |task| task.nexus == nexus);
                host.reset_units(ResetScope::Unit(nexus));
            }
            _ => self.tasks.abort_where(host, |task| task.nexus == nexus),
        }
        // Whatever it was named meanwhile, the task that is connected does not come back.
        if let Some(current) = current {
            self.tasks.abort_and_release_or_drain(host, current);
        }
    }

    /// Handles INITIATOR DETECTED ERROR: the command fails, unless it has finished already.
    fn handle_initiator_detected_error<H: PciBus + Targets>(&mut self, host: &mut H) {
        let Some(connection) = self.connection() else {
            return;
        };
        if connection.after_messages == AfterMessages::Data {
            self.fail_connected_task(host, CheckConditionCause::InitiatorError);
            // The failed command has set the stage, which follows after this message.
            self.return_to_message_out();
        }
    }

    /// Lets the target send DISCONNECT and leave the bus, since its data are collected and the disk will take its time.
    pub(crate) fn queue_disconnect_message(&mut self, moved_data: bool) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        if moved_data {
            connection
                .messages_to_initiator
                .push_or_drop(&[SAVE_DATA_POINTER]);
        }
        connection.messages_to_initiator.push_or_drop(&[DISCONNECT]);
        connection.after_messages = AfterMessages::Free;
    }

    /// Sends COMMAND COMPLETE after the status.
    pub(crate) fn queue_command_complete_message(&mut self) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection
            .messages_to_initiator
            .push_or_drop(&[COMMAND_COMPLETE]);
        connection.after_messages = AfterMessages::Free;
    }
}

/// The answer to a negotiation: the same, cut to what the bus can do. `None` is for MESSAGE REJECT.
fn negotiation_answer(
    message: &[u8; MAX_KEPT_BYTES],
    len: usize,
) -> Option<([u8; MAX_KEPT_BYTES], usize)> {
    let mut answer = *message;
    match (len, message[1], message[2]) {
        (5, 3, SYNCHRONOUS) => {
            answer[3] = message[3].max(PERIOD_MIN);
            answer[4] = message[4].min(OFFSET_MAX);
        }
        (4, 2, WIDE) => answer[3] = message[3].min(WIDTH_MAX),
        (8, 6, PARALLEL) => {
            answer[3] = message[3].max(PERIOD_MIN);
            answer[4] = 0;
            answer[5] = message[5].min(OFFSET_MAX);
            answer[6] = message[6].min(WIDTH_MAX);
            // No double transitions, no packets: those are Ultra3's.
            answer[7] = 0;
        }
        _ => return None,
    }
    Some((answer, len))
}
