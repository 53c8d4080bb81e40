//! Layouts in guest memory (commands, control requests, events, configuration space) and their constants: VIRTIO 1.3, section
//! 5.6. All of it is little endian, but CDBs, which are SCSI's.

use std::mem::{offset_of, size_of};

use scsi::TaskAttribute;

/// Every command begins with this, in device-readable memory; its CDB follows.
#[repr(C, packed)]
pub(crate) struct CommandHeader {
    pub lun: [u8; 8],
    pub tag: u64,
    pub task_attribute: u8,
    pub priority: u8,
    pub command_reference_number: u8,
}

const _: () = assert!(size_of::<CommandHeader>() == 19);
const _: () = assert!(offset_of!(CommandHeader, tag) == 8);
const _: () = assert!(offset_of!(CommandHeader, task_attribute) == 16);

pub(crate) const HEADER_BYTES: usize = size_of::<CommandHeader>();

/// Longest CDB that is read: no command of a disk without protection information has more than 16 bytes.
pub(crate) const CDB_BYTES: usize = 32;

/// The device's response, before the sense data and the data.
#[repr(C)]
pub(crate) struct CommandResponseHeader {
    pub sense_len: u32,
    pub residual: u32,
    pub status_qualifier: u16,
    pub status: u8,
    pub response: u8,
}

const _: () = assert!(size_of::<CommandResponseHeader>() == 12);
const _: () = assert!(offset_of!(CommandResponseHeader, status) == 10);

pub(crate) const RESPONSE_BYTES: usize = size_of::<CommandResponseHeader>();

impl CommandResponseHeader {
    /// Its bytes in memory.
    pub fn to_bytes(&self) -> [u8; RESPONSE_BYTES] {
        let mut bytes = [0; RESPONSE_BYTES];
        bytes[..4].copy_from_slice(&self.sense_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.residual.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.status_qualifier.to_le_bytes());
        bytes[10] = self.status;
        bytes[11] = self.response;
        bytes
    }
}

/// Result of a command, or of a task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Response {
    /// Completed: a command has its result in its status.
    Ok = 0,
    /// The CDB asks for more data than there are buffers for.
    Overrun = 1,
    /// Ended by a task management function.
    Aborted = 2,
    /// There is no such target.
    BadTarget = 3,
    /// Ended by a reset.
    Reset = 4,
    /// Anything else.
    Failure = 9,
    /// A query has found a task.
    FunctionSucceeded = 10,
    /// The function is not supported.
    FunctionRejected = 11,
    /// The target has no such unit.
    IncorrectLun = 12,
}

const ATTRIBUTE_ORDERED: u8 = 1;
const ATTRIBUTE_HEAD: u8 = 2;

/// Decodes a task attribute; one without meaning, since there is no ACA condition, is simple.
pub(crate) fn decode_attribute(byte: u8) -> TaskAttribute {
    match byte {
        ATTRIBUTE_ORDERED => TaskAttribute::Ordered,
        ATTRIBUTE_HEAD => TaskAttribute::HeadOfQueue,
        _ => TaskAttribute::Simple,
    }
}

/// Type of a control request, its first field.
pub(crate) const CONTROL_TMF: u32 = 0;
pub(crate) const CONTROL_QUERY_EVENTS: u32 = 1;
pub(crate) const CONTROL_SUBSCRIBE_EVENTS: u32 = 2;

/// A task management function: type, subtype, LUN, tag; and one byte of answer.
pub(crate) const TMF_BYTES: usize = 4 + 4 + 8 + 8;
/// A query of, or subscription to, asynchronous events: type, LUN, events; and events and a byte of answer.
pub(crate) const EVENTS_REQUEST_BYTES: usize = 4 + 8 + 4;
pub(crate) const EVENTS_ANSWER_BYTES: usize = 4 + 1;

pub(crate) const TMF_ABORT_TASK: u32 = 0;
pub(crate) const TMF_ABORT_TASK_SET: u32 = 1;
pub(crate) const TMF_CLEAR_TASK_SET: u32 = 3;
pub(crate) const TMF_I_T_NEXUS_RESET: u32 = 4;
pub(crate) const TMF_LOGICAL_UNIT_RESET: u32 = 5;
pub(crate) const TMF_QUERY_TASK: u32 = 6;
pub(crate) const TMF_QUERY_TASK_SET: u32 = 7;

/// Layout of a buffer of the event queue.
#[repr(C)]
pub(crate) struct EventInfo {
    pub event: u32,
    pub lun: [u8; 8],
    pub reason: u32,
}

const _: () = assert!(size_of::<EventInfo>() == 16);
const _: () = assert!(offset_of!(EventInfo, reason) == 12);

pub(crate) const EVENT_BYTES: usize = size_of::<EventInfo>();
/// The same as a field of 32 bits.
#[allow(clippy::cast_possible_truncation, reason = "sixteen")]
pub(crate) const EVENT_LEN: u32 = EVENT_BYTES as u32;

impl EventInfo {
    /// Its bytes in memory.
    pub fn to_bytes(&self) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        bytes[..4].copy_from_slice(&self.event.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.lun);
        bytes[12..].copy_from_slice(&self.reason.to_le_bytes());
        bytes
    }
}

pub(crate) const EVENT_NONE: u32 = 0;
pub(crate) const EVENT_TRANSPORT_RESET: u32 = 1;
pub(crate) const EVENT_PARAM_CHANGE: u32 = 3;
/// In the number of an event: others before it were lost.
pub(crate) const EVENTS_MISSED: u32 = 1 << 31;

pub(crate) const REASON_RESCAN: u32 = 1;
pub(crate) const REASON_REMOVED: u32 = 2;
/// Additional sense code and qualifier of CAPACITY DATA HAS CHANGED.
pub(crate) const REASON_CAPACITY: u32 = 0x2a | 0x09 << 8;

/// Feature bits.
pub(crate) const FEATURE_HOTPLUG: u32 = 1;
pub(crate) const FEATURE_CHANGE: u32 = 2;

/// The configuration space.
#[repr(C)]
pub(crate) struct ConfigSpace {
    pub num_queues: u32,
    pub seg_max: u32,
    pub max_sectors: u32,
    pub cmd_per_lun: u32,
    pub event_info_size: u32,
    pub sense_size: u32,
    pub cdb_size: u32,
    pub max_channel: u16,
    pub max_target: u16,
    pub max_lun: u32,
}

const _: () = assert!(size_of::<ConfigSpace>() == 36);
const _: () = assert!(offset_of!(ConfigSpace, sense_size) == 20);
const _: () = assert!(offset_of!(ConfigSpace, cdb_size) == 24);
const _: () = assert!(offset_of!(ConfigSpace, max_lun) == 32);

/// Room for sense data and CDB until the driver sets other sizes.
pub(crate) const DEFAULT_SENSE_BYTES: u32 = 96;
pub(crate) const DEFAULT_CDB_BYTES: u32 = 32;
