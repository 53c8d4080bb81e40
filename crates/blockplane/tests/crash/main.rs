//! Servers that are killed at random moments under a guest: no request is lost, none is answered twice, no answer is
//! wrong, and the disk holds all acknowledged data.
//!
//! The real program serves a client that keeps what a front-end keeps (`guest`), and knows what each block may hold
//! (`blocks`). `BLOCKPLANE_KILLS=500` kills so many servers in each of the tests instead of a few.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod parked_requests;
mod restarts;
mod server;
mod slow_disk;

use device::Device;
use guest::ENTRIES;
use restarts::{Variant, survives};
use test_support::verifying::{blocks, device, guest, random};
use test_support::vhost_user::wire;
use test_support::{process, qmp as client};

/// Servers that are killed in each test by default.
const KILLS: u32 = 40;

fn kills() -> u32 {
    let value = std::env::var("BLOCKPLANE_KILLS").ok();
    value.map_or(KILLS, |kills| kills.parse().expect("a number"))
}

fn variant(packed: bool, queues: usize) -> Variant {
    Variant {
        device: Device::Blk,
        packed,
        queues,
        named_ring_size: ENTRIES,
    }
}

fn blk(packed: bool, queues: usize) {
    survives(variant(packed, queues), kills());
}

/// QEMU 10.0 asks for a buffer for rings of its property `queue-size`, and its rings may have 1024 entries.
#[test]
fn requests_are_recovered_from_rings_larger_than_the_front_end_named() {
    for packed in [false, true] {
        let variant = Variant {
            named_ring_size: 8,
            ..variant(packed, 2)
        };
        survives(variant, kills() / 2);
    }
}

#[test]
fn crash_recovery_of_a_split_queue() {
    blk(false, 1);
}

#[test]
fn crash_recovery_of_split_queues() {
    blk(false, 4);
}

#[test]
fn crash_recovery_of_a_packed_queue() {
    blk(true, 1);
}

#[test]
fn crash_recovery_of_packed_queues() {
    blk(true, 4);
}

/// Units report that they were powered on, which drivers expect; all else is the same.
#[test]
fn crash_recovery_of_scsi_queues() {
    for packed in [false, true] {
        let variant = Variant {
            device: Device::Scsi,
            ..variant(packed, 2)
        };
        survives(variant, kills() / 2);
    }
}
