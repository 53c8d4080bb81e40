//! The table of supported commands (opcode, access, mask of the CDB's bits), for the dispatcher and for REPORT SUPPORTED
//! OPERATION CODES.

use crate::cdb::Cdb;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ModeSelect,
    ModeSense,
    Reserve,
    Release,
    StartStop,
    SendDiagnostic,
    PreventAllow,
    ReadCapacity10,
    ReadCapacity16,
    GetLbaStatus,
    Read,
    Write,
    WriteAndVerify,
    Verify,
    PreFetch,
    Synchronize,
    WriteSame,
    Unmap,
    CompareAndWrite,
    OrWrite,
    LogSense,
    PersistentIn,
    PersistentOut,
    ReportLuns,
    ReportOpcodes,
    ReportTaskManagement,
}

/// The access that a command needs while another initiator has reserved the unit (SPC-4, table of commands allowed in the
/// presence of reservations).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessWhenReserved {
    /// None: always allowed.
    Free,
    /// Allowed except while another initiator holds RESERVE(6) or (10).
    Ready,
    /// Read access.
    Reads,
    /// Write access.
    Writes,
    /// Commands for reservations, which have their own rules.
    Reservations,
}

/// A row of the table.
pub(crate) struct CommandEntry {
    pub opcode: u8,
    /// For commands that have one.
    pub service_action: Option<u8>,
    pub command: Command,
    pub access: AccessWhenReserved,
    /// It needs the unit to be started.
    pub needs_medium: bool,
    /// The bits of the CDB that it uses; as long as the CDB.
    pub mask: &'static [u8],
    /// Only for units with thin provisioning.
    pub needs_thin: bool,
}

/// A row for a command without a service action, for which the unit need not be started.
const fn plain_entry(
    opcode: u8,
    command: Command,
    access: AccessWhenReserved,
    mask: &'static [u8],
) -> CommandEntry {
    CommandEntry {
        opcode,
        service_action: None,
        command,
        access,
        needs_medium: false,
        mask,
        needs_thin: false,
    }
}

/// A row for a command that needs the unit to be started.
const fn medium_entry(
    opcode: u8,
    command: Command,
    access: AccessWhenReserved,
    mask: &'static [u8],
) -> CommandEntry {
    CommandEntry {
        needs_medium: true,
        ..plain_entry(opcode, command, access, mask)
    }
}

/// A row for a command with a service action.
const fn service_action_entry(
    opcode: u8,
    service_action: u8,
    command: Command,
    access: AccessWhenReserved,
    mask: &'static [u8],
) -> CommandEntry {
    CommandEntry {
        service_action: Some(service_action),
        ..plain_entry(opcode, command, access, mask)
    }
}

/// A row for a service action of PERSISTENT RESERVE IN.
const fn reserve_in_entry(service_action: u8, mask: &'static [u8]) -> CommandEntry {
    service_action_entry(
        0x5e,
        service_action,
        Command::PersistentIn,
        AccessWhenReserved::Reservations,
        mask,
    )
}

/// A row for a service action of PERSISTENT RESERVE OUT.
const fn reserve_out_entry(service_action: u8, mask: &'static [u8]) -> CommandEntry {
    service_action_entry(
        0x5f,
        service_action,
        Command::PersistentOut,
        AccessWhenReserved::Reservations,
        mask,
    )
}

/// A mask, written without commas to shorten the table.
macro_rules! mask {
    ($($byte:literal)*) => { &[$($byte),*] };
}

/// All commands, by opcode and service action. Group numbers are accepted and ignored.
#[rustfmt::skip]
pub(crate) static TABLE: &[CommandEntry] = {
    use AccessWhenReserved::{Free, Reads, Ready, Reservations, Writes};
    use Command::*;
    &[
        medium_entry(0x00, TestUnitReady, Ready, mask!(0x00 0 0 0 0 0)),
        plain_entry(0x03, RequestSense, Free, mask!(0x03 0x01 0 0 0xff 0)),
        medium_entry(0x08, Read, Reads, mask!(0x08 0x1f 0xff 0xff 0xff 0)),
        medium_entry(0x0a, Write, Writes, mask!(0x0a 0x1f 0xff 0xff 0xff 0)),
        plain_entry(0x12, Inquiry, Free, mask!(0x12 0x01 0xff 0xff 0xff 0)),
        plain_entry(0x15, ModeSelect, Writes, mask!(0x15 0x10 0 0 0xff 0)),
        plain_entry(0x16, Reserve, Reservations, mask!(0x16 0 0 0 0 0)),
        plain_entry(0x17, Release, Reservations, mask!(0x17 0 0 0 0 0)),
        plain_entry(0x1a, ModeSense, Reads, mask!(0x1a 0x08 0xff 0xff 0xff 0)),
        plain_entry(0x1b, StartStop, Writes, mask!(0x1b 0x01 0 0 0x05 0)),
        medium_entry(0x1d, SendDiagnostic, Writes, mask!(0x1d 0x17 0 0 0 0)),
        plain_entry(0x1e, PreventAllow, Writes, mask!(0x1e 0 0 0 0x01 0)),
        medium_entry(0x25, ReadCapacity10, Free, mask!(0x25 0 0 0 0 0 0 0 0 0)),
        medium_entry(0x28, Read, Reads, mask!(0x28 0x18 0xff 0xff 0xff 0xff 0x1f 0xff 0xff 0)),
        medium_entry(0x2a, Write, Writes, mask!(0x2a 0x18 0xff 0xff 0xff 0xff 0x1f 0xff 0xff 0)),
        medium_entry(0x2e, WriteAndVerify, Writes, mask!(0x2e 0x12 0xff 0xff 0xff 0xff 0x1f 0xff 0xff 0)),
        medium_entry(0x2f, Verify, Reads, mask!(0x2f 0x16 0xff 0xff 0xff 0xff 0x1f 0xff 0xff 0)),
        medium_entry(0x34, PreFetch, Reads, mask!(0x34 0x02 0xff 0xff 0xff 0xff 0x1f 0xff 0xff 0)),
        medium_entry(0x35, Synchronize, Writes, mask!(0x35 0x02 0xff 0xff 0xff 0xff 0x1f 0xff 0xff 0)),
        medium_entry(0x41, WriteSame, Writes, mask!(0x41 0x08 0xff 0xff 0xff 0xff 0x1f 0xff 0xff 0)),
        CommandEntry { needs_thin: true, ..medium_entry(0x42, Unmap, Writes, mask!(0x42 0 0 0 0 0 0x1f 0xff 0xff 0)) },
        plain_entry(0x4d, LogSense, Free, mask!(0x4d 0 0xff 0xff 0 0xff 0xff 0xff 0xff 0)),
        plain_entry(0x55, ModeSelect, Writes, mask!(0x55 0x10 0 0 0 0 0 0xff 0xff 0)),
        plain_entry(0x56, Reserve, Reservations, mask!(0x56 0 0 0 0 0 0 0 0 0)),
        plain_entry(0x57, Release, Reservations, mask!(0x57 0 0 0 0 0 0 0 0 0)),
        plain_entry(0x5a, ModeSense, Reads, mask!(0x5a 0x18 0xff 0xff 0 0 0 0xff 0xff 0)),
        reserve_in_entry(0x00, mask!(0x5e 0x00 0 0 0 0 0 0xff 0xff 0)),
        reserve_in_entry(0x01, mask!(0x5e 0x01 0 0 0 0 0 0xff 0xff 0)),
        reserve_in_entry(0x02, mask!(0x5e 0x02 0 0 0 0 0 0xff 0xff 0)),
        reserve_in_entry(0x03, mask!(0x5e 0x03 0 0 0 0 0 0xff 0xff 0)),
        reserve_out_entry(0x00, mask!(0x5f 0x00 0xff 0 0 0xff 0xff 0xff 0xff 0)),
        reserve_out_entry(0x01, mask!(0x5f 0x01 0xff 0 0 0xff 0xff 0xff 0xff 0)),
        reserve_out_entry(0x02, mask!(0x5f 0x02 0xff 0 0 0xff 0xff 0xff 0xff 0)),
        reserve_out_entry(0x03, mask!(0x5f 0x03 0xff 0 0 0xff 0xff 0xff 0xff 0)),
        reserve_out_entry(0x04, mask!(0x5f 0x04 0xff 0 0 0xff 0xff 0xff 0xff 0)),
        reserve_out_entry(0x05, mask!(0x5f 0x05 0xff 0 0 0xff 0xff 0xff 0xff 0)),
        reserve_out_entry(0x06, mask!(0x5f 0x06 0xff 0 0 0xff 0xff 0xff 0xff 0)),
        reserve_out_entry(0x07, mask!(0x5f 0x07 0xff 0 0 0xff 0xff 0xff 0xff 0)),
        medium_entry(0x88, Read, Reads, mask!(0x88 0x18 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0x89, CompareAndWrite, Writes, mask!(0x89 0x18 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0 0 0 0xff 0x1f 0)),
        medium_entry(0x8a, Write, Writes, mask!(0x8a 0x18 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0x8b, OrWrite, Writes, mask!(0x8b 0x18 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0x8e, WriteAndVerify, Writes, mask!(0x8e 0x12 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0x8f, Verify, Reads, mask!(0x8f 0x16 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0x90, PreFetch, Reads, mask!(0x90 0x02 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0x91, Synchronize, Writes, mask!(0x91 0x02 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0x93, WriteSame, Writes, mask!(0x93 0x09 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        CommandEntry { needs_medium: true, ..service_action_entry(0x9e, 0x10, ReadCapacity16, Free,
            mask!(0x9e 0x10 0 0 0 0 0 0 0 0 0xff 0xff 0xff 0xff 0 0)) },
        CommandEntry { needs_medium: true, ..service_action_entry(0x9e, 0x12, GetLbaStatus, Reads,
            mask!(0x9e 0x12 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0 0)) },
        plain_entry(0xa0, ReportLuns, Free, mask!(0xa0 0 0xff 0 0 0 0xff 0xff 0xff 0xff 0 0)),
        service_action_entry(0xa3, 0x0c, ReportOpcodes, Reads, mask!(0xa3 0x0c 0x87 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0 0)),
        service_action_entry(0xa3, 0x0d, ReportTaskManagement, Reads, mask!(0xa3 0x0d 0x80 0 0 0 0xff 0xff 0xff 0xff 0 0)),
        medium_entry(0xa8, Read, Reads, mask!(0xa8 0x18 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0xaa, Write, Writes, mask!(0xaa 0x18 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0xae, WriteAndVerify, Writes, mask!(0xae 0x12 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
        medium_entry(0xaf, Verify, Reads, mask!(0xaf 0x16 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0xff 0x1f 0)),
    ]
};

/// The result of a search in the table.
pub(crate) enum CommandLookup {
    Known(&'static CommandEntry),
    /// The opcode exists, with other service actions.
    UnknownAction,
    UnknownOpcode,
}

/// Finds the row of an opcode, and of a service action if the opcode has any.
pub(crate) fn find_command(opcode: u8, service_action: u8, thin: bool) -> CommandLookup {
    let mut found = CommandLookup::UnknownOpcode;
    for entry in supported_entries(thin).filter(|entry| entry.opcode == opcode) {
        match entry.service_action {
            Some(action) if action != service_action => found = CommandLookup::UnknownAction,
            _ => return CommandLookup::Known(entry),
        }
    }
    found
}

/// The rows of the commands that a unit supports.
pub(crate) fn supported_entries(thin: bool) -> impl Iterator<Item = &'static CommandEntry> {
    TABLE.iter().filter(move |entry| thin || !entry.needs_thin)
}

impl CommandEntry {
    /// The access that a CDB of this command needs.
    pub fn access_for_cdb(&self, cdb: &Cdb) -> AccessWhenReserved {
        match self.command {
            // Starting the unit and allowing removal are always allowed.
            Command::StartStop if cdb.bit(4, 0) => AccessWhenReserved::Free,
            Command::PreventAllow if cdb.byte(4) == 0 => AccessWhenReserved::Free,
            _ => self.access,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_its_masks_are_as_long_as_the_commands() {
        for pair in TABLE.windows(2) {
            let key = |entry: &CommandEntry| (entry.opcode, entry.service_action);
            assert!(
                key(&pair[0]) < key(&pair[1]),
                "{:#x} twice, or out of order",
                pair[1].opcode
            );
        }
        for entry in TABLE {
            let len = match entry.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                5 => 12,
                group => panic!("{:#x} is of group {group}", entry.opcode),
            };
            assert_eq!(entry.mask.len(), len, "{:#x}", entry.opcode);
            assert_eq!(entry.mask[0], entry.opcode);
            assert_eq!(entry.mask[len - 1], 0, "no bit of CONTROL is supported");
            if let Some(action) = entry.service_action {
                assert_eq!(entry.mask[1], action);
            }
        }
    }
}
