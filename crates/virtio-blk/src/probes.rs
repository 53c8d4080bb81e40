//! Tracepoints of requests: code that runs only while a tracer is attached.

use block::{Op, SECTOR_BYTES};
use telemetry::counters::Scale;
use telemetry::queue::{QueueName, RequestKind};
use telemetry::tracepoints::{request_answer, request_complete, request_start, request_submit};
use virtqueue::{Chain, ChainId};

use crate::parse::read_header;
use crate::slots::{NO_SLOT, Slots};
use crate::wire::{HEADER_BYTES, Status, T_DISCARD, T_FLUSH, T_IN, T_OUT, T_WRITE_ZEROES};

/// Fires for a popped chain, before it is parsed. One without a header is about to break the queue.
#[cold]
pub(crate) fn fire_request_start(name: &QueueName, chain: &Chain, id: ChainId) {
    let Ok(header) = read_header(chain.readable(), chain.readable_len()) else {
        return;
    };
    let written = chain.readable_len() - HEADER_BYTES as u64;
    let read = chain.writable_len().saturating_sub(1);
    request_start::fire(
        name.export(),
        name.index().into(),
        id.id.into(),
        header.kind.into(),
        header.sector,
        written.max(read),
    );
}

/// Fires for a request that was answered without the disk.
#[cold]
pub(crate) fn fire_answered_without_disk(name: &QueueName, id: ChainId, status: Status) {
    request_answer::fire(
        name.export(),
        name.index().into(),
        id.id.into(),
        status as u64,
    );
}

/// Fires for a block request that is submitted.
#[cold]
pub(crate) fn fire_request_submit(name: &QueueName, slots: &Slots, op: Op, index: u32) {
    let slot = slots.get(index);
    request_submit::fire(
        name.export(),
        name.index().into(),
        slot.id.id.into(),
        op.virtio_request_type().into(),
        slot.offset / SECTOR_BYTES,
        slot.len,
    );
}

/// Fires for each request that was merged into a completed block request.
#[cold]
pub(crate) fn fire_requests_complete(
    name: &QueueName,
    slots: &Slots,
    first: u32,
    status: Status,
    now: u64,
) {
    let scale = Scale::measure();
    let mut index = first;
    while index != NO_SLOT {
        let slot = slots.get(index);
        let kind = match slot.admitted.kind() {
            RequestKind::Read => T_IN,
            // Only zeroes are written without data.
            RequestKind::Write if slots.segment_count(index) == 0 => T_WRITE_ZEROES,
            RequestKind::Write => T_OUT,
            RequestKind::Flush => T_FLUSH,
            RequestKind::Unmap => T_DISCARD,
        };
        request_complete::fire(
            name.export(),
            name.index().into(),
            slot.id.id.into(),
            kind.into(),
            status as u64,
            scale.to_ns(slot.admitted.ticks_until(now)),
        );
        index = slots.next_merged(index);
    }
}
