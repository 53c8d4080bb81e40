//! Replies of REPORT LUNS, REPORT SUPPORTED OPERATION CODES, REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS and LOG SENSE.

use crate::bytes::{saturated_u16, saturated_u32};
use crate::cdb::Cdb;
use crate::commands::{self, Command, CommandEntry};
use crate::sense::Sense;
use crate::target::encode_lun;

/// REPORT LUNS.
pub(crate) fn report_luns(
    cdb: &Cdb,
    luns: impl Iterator<Item = u16>,
    out: &mut Vec<u8>,
) -> Result<u64, Sense> {
    // All units but well-known ones; well-known ones; all. None is well known.
    let list: Vec<u8> = match cdb.byte(2) {
        0x00 | 0x02 => luns.flat_map(encode_lun).collect(),
        0x01 => Vec::new(),
        _ => return Err(Sense::invalid_cdb_field(2, None)),
    };
    let allocation = cdb.be32(6);
    if allocation < 16 {
        return Err(Sense::invalid_cdb_field(6, None));
    }
    out.extend(saturated_u32(list.len() as u64).to_be_bytes());
    out.extend([0; 4]);
    out.extend(list);
    Ok(u64::from(allocation))
}

/// A timeouts descriptor without values.
fn append_timeouts_descriptor(out: &mut Vec<u8>) {
    out.extend([0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

/// REPORT SUPPORTED OPERATION CODES.
pub(crate) fn report_opcodes(cdb: &Cdb, thin: bool, out: &mut Vec<u8>) -> Result<u64, Sense> {
    let timed = cdb.bit(2, 7);
    let (opcode, action) = (cdb.byte(3), cdb.be16(4));
    match cdb.byte(2) & 7 {
        0 => append_all_opcodes(thin, timed, out),
        options @ 1..=3 => append_one_opcode(options, opcode, action, thin, timed, out)?,
        _ => return Err(Sense::invalid_cdb_field(2, Some(2))),
    }
    Ok(u64::from(cdb.be32(6)))
}

/// Appends a descriptor of each supported command.
fn append_all_opcodes(thin: bool, timed: bool, out: &mut Vec<u8>) {
    out.extend([0; 4]);
    for entry in commands::supported_entries(thin) {
        let action = u16::from(entry.service_action.unwrap_or(0));
        out.extend([entry.opcode, 0]);
        out.extend(action.to_be_bytes());
        let has_action = u8::from(entry.service_action.is_some());
        out.extend([0, u8::from(timed) << 1 | has_action]);
        out.extend(saturated_u16(entry.mask.len()).to_be_bytes());
        if timed {
            append_timeouts_descriptor(out);
        }
    }
    let len = saturated_u32(out.len() as u64 - 4);
    out[..4].copy_from_slice(&len.to_be_bytes());
}

/// Appends the descriptor of one command, with the mask of the bits that it uses.
fn append_one_opcode(
    options: u8,
    opcode: u8,
    action: u16,
    thin: bool,
    timed: bool,
    out: &mut Vec<u8>,
) -> Result<(), Sense> {
    let mut entries = commands::supported_entries(thin).filter(|entry| entry.opcode == opcode);
    let first = entries.next();
    let has_actions = first.is_some_and(|entry| entry.service_action.is_some());
    let matching = |entry: &&CommandEntry| match entry.service_action {
        Some(has) => u16::from(has) == action,
        None => action == 0,
    };
    let found = match options {
        // By opcode only: not for commands with service actions.
        1 if has_actions => return Err(Sense::invalid_cdb_field(2, Some(2))),
        1 => first,
        // By opcode and service action: only for commands with service actions.
        2 if first.is_some() && !has_actions => return Err(Sense::invalid_cdb_field(2, Some(2))),
        _ => first.into_iter().chain(entries).find(matching),
    };
    let Some(entry) = found else {
        // Not supported.
        out.extend([0, 1, 0, 0]);
        return Ok(());
    };
    out.extend([0, u8::from(timed) << 7 | 0x03]);
    out.extend(saturated_u16(entry.mask.len()).to_be_bytes());
    out.extend(entry.mask);
    if entry.command == Command::WriteSame && !thin {
        // UNMAP, in the second byte of the command, behind four of ours.
        out[5] &= !0x08;
    }
    if timed {
        append_timeouts_descriptor(out);
    }
    Ok(())
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: a parallel bus has messages for some of them only.
pub(crate) fn report_task_management(
    cdb: &Cdb,
    parallel: bool,
    out: &mut Vec<u8>,
) -> Result<u64, Sense> {
    let allocation = cdb.be32(6);
    if allocation < 4 {
        return Err(Sense::invalid_cdb_field(6, None));
    }
    // ATS, ATSS, CTSS, LURS.
    out.extend([0xd8, 0, 0, 0]);
    if !parallel {
        // QTS; QTSS, ITNRS.
        out[0] |= 0x04;
        out[1] = 0x03;
    }
    if cdb.bit(2, 7) {
        // The extended form, without timeouts.
        out[3] = 12;
        out.extend([0; 12]);
    }
    Ok(u64::from(allocation))
}

/// LOG SENSE: the page of supported pages, which is the only one.
pub(crate) fn log_sense(cdb: &Cdb, out: &mut Vec<u8>) -> Result<u64, Sense> {
    let (page, subpage) = (cdb.byte(2) & 0x3f, cdb.byte(3));
    // The kind of values does not matter, since there are none.
    match (page, subpage) {
        (0, 0) => out.extend([0, 0, 0, 1, 0]),
        (0, 0xff) => out.extend([0x40, 0xff, 0, 4, 0, 0, 0, 0xff]),
        (0, _) => return Err(Sense::invalid_cdb_field(3, None)),
        _ => return Err(Sense::invalid_cdb_field(2, Some(5))),
    }
    if cdb.be16(5) != 0 {
        // The parameter pointer, since there are no parameters.
        return Err(Sense::invalid_cdb_field(5, None));
    }
    Ok(u64::from(cdb.be16(7)))
}
