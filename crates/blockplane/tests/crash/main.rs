//! Servers that are killed at random moments under a guest: no request is lost, none is answered twice, no answer is
//! wrong, and the disk holds all acknowledged data.
//!
//! The real program serves a client that keeps what a front-end keeps (`guest`), and knows what each block may hold
//! (`blocks`). `BLOCKPLANE_KILLS=500` kills so many servers for each variant instead of a few; two tests take half of it. The
//! tests of `late_writes` and `parked_requests` do not depend on it.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod image;
mod late_writes;
mod parked_requests;
mod restarts;
mod server;
mod slow_disk;

use device::Device;
use guest::ENTRIES;
use image::Image;
use restarts::{DISK_BYTES, Variant, assert_kills_lose_nothing};
use test_support::ceph::Cluster;
use test_support::verifying::{blocks, device, guest, random};
use test_support::vhost_user::wire;
use test_support::{process, qmp as client};

/// Servers that are killed in each test by default.
const KILLS: u32 = 15;

/// The same on a cluster, where a start takes longer.
const KILLS_ON_CLUSTER: u32 = 3;

fn kills() -> u32 {
    kills_or(KILLS)
}

fn kills_or(default: u32) -> u32 {
    let value = std::env::var("BLOCKPLANE_KILLS").ok();
    value.map_or(default, |kills| kills.parse().expect("a number"))
}

fn variant(packed: bool, queues: usize) -> Variant {
    Variant {
        device: Device::Blk,
        packed,
        queues,
        named_ring_size: ENTRIES,
    }
}

/// QEMU 10.0 asks for a buffer for rings of its property `queue-size`, and its rings may have 1024 entries.
#[test]
fn requests_are_recovered_from_rings_larger_than_the_front_end_named() {
    for packed in [false, true] {
        let variant = Variant {
            named_ring_size: 8,
            ..variant(packed, 2)
        };
        assert_kills_lose_nothing(variant, Image::File, kills() / 2);
    }
}

#[test]
fn crash_recovery_of_split_queues() {
    for queues in [1, 4] {
        assert_kills_lose_nothing(variant(false, queues), Image::File, kills());
    }
}

#[test]
fn crash_recovery_of_packed_queues() {
    for queues in [1, 4] {
        assert_kills_lose_nothing(variant(true, queues), Image::File, kills());
    }
}

/// Units report that they were powered on, which drivers expect; all else is the same.
#[test]
fn crash_recovery_of_scsi_queues() {
    for packed in [false, true] {
        let variant = Variant {
            device: Device::Scsi,
            ..variant(packed, 2)
        };
        assert_kills_lose_nothing(variant, Image::File, kills() / 2);
    }
}

/// Each server breaks the lock of the one before, which is still alive as far as the cluster knows.
#[test]
fn crash_recovery_on_an_image_of_a_cluster() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    for (packed, queues, name) in [(false, 4, "split"), (true, 1, "packed")] {
        let image = Image::rbd(cluster, name, DISK_BYTES);
        if packed {
            // The image's own setting has precedence over ours: librbd's cache must not keep what was answered.
            let image = format!("rbd/{name}");
            cluster.rbd(["config", "image", "set", &image, "rbd_cache", "true"]);
        }
        assert_kills_lose_nothing(variant(packed, queues), image, kills_or(KILLS_ON_CLUSTER));
    }
}
