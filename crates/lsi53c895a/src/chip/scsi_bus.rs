//! The SCSI bus: selection and reselection, the connected target, and the phase that it requests next.
//!
//! One initiator and at most one target are on the bus at a time. The target is in a
//! [`TargetStage`]; [`AfterMessages`] is its action after it has sent all its messages. [`Chip::wait_for_and_latch_phase`]
//! returns the phase of the target's next REQ; there the chip may have to wait.
//!
//! After the last byte of a message ACK stays asserted until SCRIPTS clear it, so that ATN can still be raised to
//! answer that message. Firmware does not always clear it; whatever needs the bus next does it then.

use crate::chip::Chip;
use crate::chip::host_traits::{PciBus, TagAttribute, Targets, TaskSlotId};
use crate::chip::messages::{AfterMessages, MessageAssembler, MessagesToInitiator};
use crate::chip::pause_reason::PauseReason;
use crate::chip::registers::{DCNTL, SCID, SFBR, SIEN0, SSID, SSTAT1, dcntl, scid, sist0, sist1};

/// The lines MSG, C/D and I/O.
pub mod phase {
    pub const DATA_OUT: u8 = 0;
    pub const DATA_IN: u8 = 1;
    pub const COMMAND: u8 = 2;
    pub const STATUS: u8 = 3;
    pub const MESSAGE_OUT: u8 = 6;
    pub const MESSAGE_IN: u8 = 7;

    /// Whether bytes go to the initiator.
    pub fn is_to_initiator(phase: u8) -> bool {
        phase & 1 != 0
    }

    /// Whether it is one of the two data phases.
    pub fn is_data_phase(phase: u8) -> bool {
        phase <= DATA_IN
    }
}

/// The state of the bus.
pub enum BusState {
    Free,
    /// No target answers this selection; the first instruction that needs the target detects that.
    Selecting,
    Connected(Connection),
}

/// The stage of the connected target: the phase in which it requests bytes, or that it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetStage {
    /// Selected without ATN: a command by the book, a message for firmware that sends one all the same.
    Choose,
    MessageOut,
    MessageIn,
    Command,
    Data,
    /// No REQ: it waits for its task.
    Busy,
    Status,
}

/// The target on the bus, and its command.
pub struct Connection {
    pub target: u8,
    /// From IDENTIFY; 0 without one.
    pub lun: u8,
    pub tag: Option<u8>,
    pub attribute: TagAttribute,
    pub may_disconnect: bool,
    pub task: Option<TaskSlotId>,
    pub stage: TargetStage,
    pub after_messages: AfterMessages,
    pub messages_to_initiator: MessagesToInitiator,
    pub incoming_message: MessageAssembler,
    pub cdb: [u8; 16],
    pub cdb_len: usize,
    pub status: u8,
    /// The last byte of a message was taken and not yet acknowledged.
    pub ack_held: bool,
    pub atn: bool,
    /// The target has reselected the chip by itself.
    pub reselected: bool,
    /// A message has asked the target to leave the bus.
    pub must_leave_bus: bool,
}

impl Connection {
    /// A connection that has just begun, by selection or reselection.
    fn new(target: u8, stage: TargetStage, after_messages: AfterMessages) -> Self {
        Connection {
            target,
            lun: 0,
            tag: None,
            attribute: TagAttribute::Untagged,
            may_disconnect: false,
            task: None,
            stage,
            after_messages,
            messages_to_initiator: MessagesToInitiator::default(),
            incoming_message: MessageAssembler::default(),
            cdb: [0; 16],
            cdb_len: 0,
            status: 0,
            ack_held: false,
            atn: false,
            reselected: false,
            must_leave_bus: false,
        }
    }

    /// Lets the target receive a message next, since it sees ATN, and notes where it goes on afterwards.
    fn enter_message_out_and_save_stage(&mut self) {
        self.after_messages = match self.stage {
            TargetStage::Choose | TargetStage::MessageOut | TargetStage::MessageIn => {
                self.after_messages
            }
            TargetStage::Command => AfterMessages::Command,
            TargetStage::Data => AfterMessages::Data,
            TargetStage::Busy => AfterMessages::Busy,
            TargetStage::Status => AfterMessages::Status,
        };
        self.stage = TargetStage::MessageOut;
    }
}

impl Chip {
    pub(crate) fn connection(&self) -> Option<&Connection> {
        match &self.bus_state {
            BusState::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    pub(crate) fn connection_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.bus_state {
            BusState::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection().is_some()
    }

    /// Selects a target. The chip always wins arbitration, since targets have lower priority.
    pub(crate) fn select_target<H: Targets>(&mut self, host: &mut H, target: u8, atn: bool) {
        let own = self.regs.get(SCID) & 0x0f;
        self.bus_state = if target == own || !host.has_target(target) {
            BusState::Selecting
        } else {
            let stage = if atn {
                TargetStage::MessageOut
            } else {
                TargetStage::Choose
            };
            let mut connection = Connection::new(target, stage, AfterMessages::Command);
            connection.atn = atn;
            BusState::Connected(connection)
        };
    }

    /// Lets the target whose task finished first reselect the chip. False: there is none, or the bus is not free.
    pub(crate) fn try_reselect(&mut self) -> bool {
        if !matches!(self.bus_state, BusState::Free) || self.tasks.draining_task_count() > 0 {
            return false;
        }
        let Some(id) = self.tasks.take_next_to_reselect() else {
            return false;
        };
        let Some(task) = self.tasks.unaborted(id) else {
            return false;
        };
        let mut connection = Connection::new(
            task.nexus.target,
            TargetStage::MessageIn,
            AfterMessages::Busy,
        );
        connection.lun = task.nexus.lun;
        connection.tag = task.tag;
        connection.task = Some(id);
        connection.reselected = true;
        connection
            .messages_to_initiator
            .push_or_drop(&[0x80 | connection.lun]);
        if let Some(tag) = task.tag {
            connection.messages_to_initiator.push_or_drop(&[0x20, tag]);
        }
        self.regs.set(SSID, 0x80 | connection.target);
        if !self.regs.has_bits(DCNTL, dcntl::COM) {
            // The IDs on the data lines, as far as eight of them show it.
            let ids = 1u16 << connection.target | 1u16 << (self.regs.get(SCID) & 0x0f);
            self.regs.set(SFBR, ids.to_le_bytes()[0]);
        }
        self.bus_state = BusState::Connected(connection);
        true
    }

    /// With no program running, a reselection is an interrupt for drivers that asked for it.
    pub(crate) fn try_reselect_by_interrupt(&mut self) {
        let wanted = self.regs.has_bits(SIEN0, sist0::RSL) && self.regs.has_bits(SCID, scid::RRE);
        let enabled = self.enabled_interrupts();
        if wanted
            && !self.interrupts.has_fatal_or_enabled_scsi_interrupt(enabled)
            && !self.interrupts.has_dma_interrupt()
            && self.try_reselect()
        {
            self.raise_scsi_interrupt(sist0::RSL, 0);
        }
    }

    /// Waits for the target's next REQ, latches its phase in SSTAT1 and returns it. `wanted` is the instruction's
    /// phase, which a target in [`TargetStage::Choose`] accepts.
    ///
    /// There is no REQ while the target waits for its task, and while an aborted task still uses memory.
    pub(crate) fn wait_for_and_latch_phase<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
        wanted: u8,
    ) -> Result<u8, PauseReason> {
        match self.latch_phase_if_known() {
            Some(phase) => Ok(phase),
            None => self.release_ack_and_wait_for_phase(host, wanted),
        }
    }

    /// Latches the phase of the target's next REQ in SSTAT1 and returns it, if it is known without waiting. `None`:
    /// nothing was done.
    #[inline]
    pub(crate) fn latch_phase_if_known(&mut self) -> Option<u8> {
        let connection = self.connection()?;
        if connection.ack_held
            || connection.stage == TargetStage::Choose
            || self.tasks.draining_task_count() > 0
        {
            return None;
        }
        let phase = self.bus_phase()?;
        self.regs.set(SSTAT1, phase);
        Some(phase)
    }

    /// [`Chip::wait_for_and_latch_phase`] where ACK, a selection, an abort or the task comes before the phase.
    #[inline(never)]
    fn release_ack_and_wait_for_phase<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
        wanted: u8,
    ) -> Result<u8, PauseReason> {
        self.release_ack();
        match &mut self.bus_state {
            BusState::Free => {
                self.raise_scsi_interrupt(sist0::UDC, 0);
                return Err(PauseReason::Stopped);
            }
            BusState::Selecting => {
                self.bus_state = BusState::Free;
                self.raise_scsi_interrupt(0, sist1::STO);
                return Err(PauseReason::Stopped);
            }
            BusState::Connected(connection) if connection.stage == TargetStage::Choose => {
                connection.stage = if wanted == phase::COMMAND {
                    TargetStage::Command
                } else {
                    TargetStage::MessageOut
                };
            }
            BusState::Connected(_) => {}
        }
        if self.tasks.draining_task_count() > 0 {
            return Err(PauseReason::Bus);
        }
        if self
            .connection()
            .is_some_and(|connection| connection.stage == TargetStage::Busy)
        {
            self.write_back_and_enter_status_if_done(host)?;
        }
        let phase = self.bus_phase().ok_or(PauseReason::Bus)?;
        self.regs.set(SSTAT1, phase);
        Ok(phase)
    }

    /// The phase on the lines; `None` when no target drives them.
    pub(crate) fn bus_phase(&self) -> Option<u8> {
        let connection = self.connection()?;
        Some(match connection.stage {
            TargetStage::Choose | TargetStage::MessageOut => phase::MESSAGE_OUT,
            TargetStage::MessageIn => phase::MESSAGE_IN,
            TargetStage::Command => phase::COMMAND,
            TargetStage::Data => match self.tasks.unaborted(connection.task?)?.data.to_initiator {
                true => phase::DATA_IN,
                false => phase::DATA_OUT,
            },
            TargetStage::Busy => return None,
            TargetStage::Status => phase::STATUS,
        })
    }

    /// Lowers ACK, upon which the target goes on.
    pub(crate) fn release_ack(&mut self) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        if !std::mem::take(&mut connection.ack_held) {
            return;
        }
        if connection.atn && connection.messages_to_initiator.is_at_message_boundary() {
            connection.enter_message_out_and_save_stage();
        } else if connection.messages_to_initiator.peek().is_none() {
            self.enter_next_phase_or_leave_bus();
        }
    }

    /// Whether the target has sent its last message, and leaves the bus when that is acknowledged. Firmware tries to
    /// receive two bytes of a message that has one.
    pub(crate) fn has_sent_last_message_and_will_leave(&self) -> bool {
        self.connection().is_some_and(|connection| {
            connection.ack_held
                && !connection.atn
                && connection.messages_to_initiator.peek().is_none()
                && connection.after_messages == AfterMessages::Free
        })
    }

    /// Raises ATN. The target looks at it between messages.
    pub(crate) fn raise_atn_and_try_message_out(&mut self) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection.atn = true;
        let is_in_message = connection.stage == TargetStage::MessageIn
            && !connection.messages_to_initiator.is_at_message_boundary();
        if !connection.ack_held && !is_in_message {
            connection.enter_message_out_and_save_stage();
        }
    }

    /// Lowers ATN.
    pub(crate) fn clear_atn(&mut self) {
        if let Some(connection) = self.connection_mut() {
            connection.atn = false;
        }
    }

    /// Sets the target's next stage when messages have ended: it sends its own messages first, and then goes on.
    pub(crate) fn enter_next_phase_or_leave_bus(&mut self) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        if connection.must_leave_bus {
            return self.free_bus_and_let_task_reselect();
        }
        if connection.messages_to_initiator.peek().is_some() {
            connection.stage = TargetStage::MessageIn;
            return;
        }
        connection.stage = match connection.after_messages {
            AfterMessages::Command => TargetStage::Command,
            AfterMessages::Data => TargetStage::Data,
            AfterMessages::Busy => TargetStage::Busy,
            AfterMessages::Status => TargetStage::Status,
            AfterMessages::Free => return self.free_bus_and_let_task_reselect(),
        };
    }

    /// Lets the target leave the bus; its task, if it has one, reselects later.
    pub(crate) fn free_bus_and_let_task_reselect(&mut self) {
        let task = self.connection().and_then(|connection| connection.task);
        self.bus_state = BusState::Free;
        if let Some(task) = task {
            self.tasks.queue_for_reselect_if_finished(task);
        }
    }
}
