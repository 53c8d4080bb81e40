//! Fires the tracepoints of commands (start, submit, end): code that runs only while a tracer is attached.

use block::{Request, SECTOR_BYTES};
use scsi::{OpAndFirstLba, Status};
use telemetry::counters::Scale;
use telemetry::queue::{QueueName, RequestKind};
use telemetry::tracepoints::{
    request_answer, request_complete, request_start, request_submit, scsi_command, scsi_status,
};

use crate::slots::Slot;
use crate::wire::Response;

/// Kind of a command in `request_start` that does not access the medium: this and its operation code.
const OTHER_COMMAND: u64 = 0x100;

/// Whether a tracer is attached to the beginning of commands.
#[inline(always)]
pub(super) fn is_start_traced() -> bool {
    request_start::enabled() || scsi_command::enabled()
}

/// Whether a tracer is attached to the beginning of commands or to their block requests.
#[inline(always)]
pub(super) fn is_start_or_submit_traced() -> bool {
    is_start_traced() || request_submit::enabled()
}

/// Fires for a command that was popped and parsed.
#[cold]
pub(super) fn fire_started(name: &QueueName, slot: &Slot) {
    let (queue, head) = (name.index().into(), slot.id.id.into());
    let opcode = u64::from(slot.cdb[0]);
    let asked = OpAndFirstLba::of_cdb(&slot.cdb);
    let kind = asked.map_or(OTHER_COMMAND | opcode, |asked| {
        asked.op.virtio_request_type().into()
    });
    let lba = asked.map_or(0, |asked| asked.lba);
    request_start::fire(name.export(), queue, head, kind, lba, slot.data_len);
    let (target, lun) = (slot.address.target.into(), slot.address.lun.into());
    scsi_command::fire(name.export(), queue, head, target, lun, opcode);
}

/// Fires for a block request that is submitted.
#[cold]
pub(super) fn fire_submitted(name: &QueueName, slot: &Slot, request: &Request) {
    request_submit::fire(
        name.export(),
        name.index().into(),
        slot.id.id.into(),
        request.op.virtio_request_type().into(),
        request.offset / SECTOR_BYTES,
        request.len,
    );
}

/// Whether a tracer is attached to the end of commands.
#[inline(always)]
pub(super) fn is_end_traced() -> bool {
    request_complete::enabled() || request_answer::enabled() || scsi_status::enabled()
}

/// Fires for a command that has finished, `now` in ticks, before its used entry is published.
#[cold]
pub(super) fn fire_finished(name: &QueueName, slot: &Slot, now: u64) {
    let (queue, head) = (name.index().into(), slot.id.id.into());
    let status = slot.task.status();
    let done = telemetry::tracepoints::blk_status_from_success(
        slot.cancelled.is_none() && status == Status::Good,
    );
    match slot.kind {
        Some(kind) => {
            let op = match kind {
                RequestKind::Read => block::Op::Read,
                RequestKind::Write => block::Op::Write,
                RequestKind::Flush => block::Op::Flush,
                RequestKind::Unmap => block::Op::Discard,
            };
            let latency_ns = Scale::measure().to_ns(slot.admit_time.ticks_until(now));
            let kind = op.virtio_request_type().into();
            request_complete::fire(name.export(), queue, head, kind, done, latency_ns);
        }
        None => request_answer::fire(name.export(), queue, head, done),
    }
    let (response, status, sense) = match slot.cancelled {
        Some(response) => (response, 0, 0),
        None => (
            Response::Ok,
            status as u64,
            sense_code_number(slot.task.sense()),
        ),
    };
    scsi_status::fire(name.export(), queue, head, response as u64, status, sense);
}

/// Fires for a command that did not get to a task.
#[cold]
pub(super) fn fire_refused(name: &QueueName, slot: &Slot, response: Response) {
    let (queue, head) = (name.index().into(), slot.id.id.into());
    request_answer::fire(
        name.export(),
        queue,
        head,
        telemetry::tracepoints::blk_status_from_success(false),
    );
    scsi_status::fire(name.export(), queue, head, response as u64, 0, 0);
}

/// Sense key, code and qualifier in one number: `0x052400`.
fn sense_code_number(sense: &[u8]) -> u64 {
    let byte = |at: usize| u64::from(sense.get(at).copied().unwrap_or(0));
    let (key, code, qualifier) = match byte(0) & 0x7f {
        0x72 | 0x73 => (byte(1), byte(2), byte(3)),
        _ => (byte(2), byte(12), byte(13)),
    };
    (key & 0xf) << 16 | code << 8 | qualifier
}

#[cfg(test)]
mod tests {
    use super::sense_code_number;

    #[test]
    fn sense_data_is_short_in_both_formats() {
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0x70, 0x25, 0x24, 1);
        assert_eq!(sense_code_number(&fixed), 0x05_24_01);
        assert_eq!(
            sense_code_number(&[0x72, 0x05, 0x24, 1, 0, 0, 0, 0]),
            0x05_24_01
        );
        assert_eq!(sense_code_number(&[]), 0);
    }
}
