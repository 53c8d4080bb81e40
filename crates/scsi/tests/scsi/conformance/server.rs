//! An iSCSI target with one disk in memory, on a port of this host.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use block::{Allocation, DiscardLimits, Geometry, Request};
use engine::Errno;
use scsi::{NexusNumber, ReservationStore, Target, Unit, UnitIdentity, UnitOptions};

use super::session::Session;

pub const TARGET_NAME: &str = "iqn.2024-01.org.example:disk";

pub const LUN: u16 = 1;

/// Enough for what the suite calls a disk.
const SIZE: u64 = 64 << 20;

pub struct Server {
    pub target: Arc<Target>,
    pub unit: Arc<Unit>,
    disk: Mutex<Vec<u8>>,
}

/// Keeps reservations until the end of the test.
#[derive(Debug)]
struct Nowhere;

impl ReservationStore for Nowhere {
    fn save(&self, _: &str) -> Result<(), Errno> {
        Ok(())
    }
}

impl Server {
    /// Serves connections until the process ends. The options say all of the disk but its names and what keeps its reservations.
    pub fn start(options: UnitOptions, physical: u32) -> SocketAddr {
        let geometry = Geometry {
            size: SIZE,
            logical_block_size: options.logical_block_size,
            physical_block_size: physical,
            min_io_size: 4096,
            opt_io_size: 0,
            discard: DiscardLimits {
                granularity: 4096,
                max_bytes: 1 << 30,
            },
        };
        let options = UnitOptions {
            identity: UnitIdentity {
                serial: "0001".to_owned(),
                naa: Some(0x5000_0000_0000_0001),
                ..UnitIdentity::default()
            },
            reservation_store: Some(Arc::new(Nowhere)),
            ..options
        };
        let unit = Arc::new(Unit::new(options, geometry).unwrap());
        let target = Target::new();
        target
            .add_unit_and_raise_attentions(LUN, unit.clone())
            .unwrap();
        let server = Arc::new(Server {
            target,
            unit,
            disk: Mutex::new(vec![0; usize::try_from(SIZE).unwrap()]),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for (nexus, stream) in (0..).zip(listener.incoming()) {
                let (server, stream) = (server.clone(), stream.unwrap());
                stream.set_nodelay(true).unwrap();
                thread::spawn(move || Session::run(server, stream, NexusNumber(nexus)));
            }
        });
        address
    }

    /// What a node says: what is all zeroes has no space. It says so of a MiB at a time.
    pub fn allocations(&self, offset: u64, len: u64, most: usize) -> Vec<Allocation> {
        let disk = self.disk.lock().unwrap();
        let at = usize::try_from(offset).unwrap();
        let bytes = &disk[at..][..usize::try_from(len.min(1 << 20)).unwrap()];
        test_support::disk::allocations(bytes, most)
    }

    /// What a node does.
    pub fn node(&self, request: Request) -> Result<(), Errno> {
        let mut disk = self.disk.lock().unwrap();
        // SAFETY: requests bring valid lists, and the disk's memory is its own.
        unsafe { test_support::disk::carry_out(&mut disk, &request) };
        Ok(())
    }
}
