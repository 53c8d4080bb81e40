//! Parts of the interoperability suite: a server to test, two clients, and a model of
//! what the disk must hold.
//!
//! The suite exists because a daemon that is only ever driven by its own test client can agree
//! with that client about a mistake. Nothing here shares code with the daemon: it is started as
//! a process and spoken to through `blkio` ([`client`]) and, where that hides too much, through
//! `virtio-driver` ([`chains`]). The crate measures nothing; speed is `bench`'s subject.

pub mod chains;
pub mod client;
pub mod image;
pub mod loop_device;
pub mod memory;
pub mod model;
pub mod random;
pub mod server;
pub mod workload;

/// Bytes of a sector: the unit of virtio-blk's `sector` whatever the disk's block size
/// (virtio 1.2, section 5.2.6).
pub const SECTOR_BYTES: usize = 512;

/// `n` as an index; the disks here are far smaller than any address space.
///
/// # Panics
/// When `n` does not fit, on a machine with 32-bit addresses.
pub fn index(n: u64) -> usize {
    usize::try_from(n).expect("a test disk is smaller than the address space")
}
