//! The virtio block device: requests of any form in rings of any content, and a disk that answers in any order.
//!
//! Requests to the disk are for blocks that are there and name guest memory only; a read-only disk is never written; each chain is
//! returned once, with a status; memory changes only where a chain may be written; once the disk is done nothing is in
//! flight. A queue that was broken works again after a reset.

use std::sync::Arc;

use telemetry::queue::{AdmissionEnd, QueueName, QueueStats};
use virtio_blk::{Device, DeviceOptions, MergeLimits, Queue, Status};
use virtqueue::{Chain, RingFeatures};

use crate::disk::{DISK, Disks, geometry};
use crate::driver::{Buffer, buffers};
use crate::guest::{Memory, address, length};
use crate::input::Input;
use crate::observed::{Ring, Rings};

const EVENTS: usize = 150;

struct Rig {
    memory: Memory,
    device: Arc<Device>,
    stats: QueueStats,
    ring: Ring,
    queue: Queue,
    chain: Chain,
    disk: Disks,
    now: u64,
}

impl Rings for Rig {
    fn parts(&mut self) -> (&Memory, &mut [Ring]) {
        (&self.memory, std::slice::from_mut(&mut self.ring))
    }
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut rig = Rig::new(input.byte(), input.byte());
    input.events(EVENTS, |input| rig.event(input));
    rig.recovers();
}

/// A chain without room for a status is not answered.
fn has_status(last: Option<*const u8>) -> bool {
    // SAFETY: the chain's memory.
    last.is_some_and(|last| unsafe { last.read_volatile() } <= 2)
}

impl Rig {
    fn new(ring: u8, device: u8) -> Self {
        let features = RingFeatures {
            event_idx: ring & 1 != 0,
            indirect: ring & 2 != 0,
            packed: ring & 4 != 0,
        };
        let size = [4, 8, 16, 32][usize::from(ring >> 3) % 4];
        let options = DeviceOptions {
            queue_size: size,
            read_only: device & 1 != 0,
            write_through: device & 2 != 0,
            request_merging: device & 4 != 0,
            merge_limits: MergeLimits::default(),
            ..DeviceOptions::default()
        };
        let device = Arc::new(Device::new(options, geometry()).expect("options"));
        device.set_features(device.features());
        let memory = Memory::new();
        let ring = Ring::new(0, size, features, &memory);
        ring.chains().on_push = has_status;
        let stats = QueueStats::new();
        let mut disk = Disks::new(1, 16);
        disk.read_only = device.options().read_only;
        disk.expects_calls = false;
        Rig {
            queue: Queue::new(QueueName::new("fuzz", 0), device.clone(), size, &stats),
            disk,
            memory,
            device,
            stats,
            ring,
            chain: Chain::new(),
            now: 0,
        }
    }

    fn event(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0..=4 => self.request(input),
            5 => {
                let (buffers, indirect) = (buffers(input), input.flag());
                self.ring.driver.add(&self.memory, &buffers, indirect);
            }
            6 | 7 => self.ring.driver.misbehave(&self.memory, input),
            8..=10 => {
                let budget = 1 + input.below(20);
                self.step(|rig| rig.admit(budget));
            }
            11 | 12 => {
                let (which, fails) = (input.byte(), input.byte() & 7 == 7);
                self.step(|rig| rig.complete(which.into(), fails));
            }
            13 => self.step(|rig| {
                rig.queue.record_batch_statistics();
                rig.ring.queue.publish();
                rig.ring.queue.enable_kicks_and_recheck();
            }),
            14 => self.disk.room = input.below(20),
            _ => match input.below(5) {
                0 => self.reset(),
                1 => _ = self.device.resize((input.below(65) << 10) as u64),
                2 => self.device.set_merge_limits(MergeLimits::default()),
                3 => {
                    let offset = input.byte().into();
                    let _ = self.device.write_config(offset, input.bytes(2));
                }
                _ => {
                    let features = input.u64() & self.device.features();
                    self.device.set_features(features);
                }
            },
        }
    }

    /// A request that mostly means something.
    fn request(&mut self, input: &mut Input) {
        let kind = match input.byte() {
            byte @ 0..=199 => [0u32, 1, 0, 1, 4, 8, 11, 13][usize::from(byte) % 8],
            byte => u32::from(byte) | u32::from(input.byte()) << 24,
        };
        let sector = match input.below(8) {
            0 => input.u64(),
            1 => 126 + u64::from(input.byte() % 4),
            _ => u64::from(input.byte() & 0x7f),
        };
        let header = 0x1_1000 + 64 * u64::from(input.byte() & 0x3f);
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(header, &bytes);
        let mut buffers = vec![Buffer::readable(header, 16)];
        if matches!(kind, 11 | 13) {
            // A range.
            let count = match input.below(4) {
                0 => input.u32(),
                _ => input.byte().into(),
            };
            let flags = if input.below(4) == 0 { input.u32() } else { 0 };
            let (count, flags) = (count.to_le_bytes(), flags.to_le_bytes());
            let range = [&sector.to_le_bytes()[..], &count, &flags].concat();
            self.memory.write(header + 16, &range);
            let len = match input.below(8) {
                0 => length(input),
                _ => 16,
            };
            buffers.push(Buffer::readable(header + 16, len));
        } else {
            for _ in 0..input.below(4) {
                buffers.push(Buffer {
                    addr: address(input),
                    len: length(input),
                    writable: kind != 1,
                });
            }
        }
        buffers.push(Buffer::writable(header + 63, 1));
        let indirect = input.flag();
        self.ring.driver.add(&self.memory, &buffers, indirect);
    }

    fn admit(&mut self, budget: usize) {
        // What was completed counts before more is taken.
        self.queue.record_batch_statistics();
        if self.ring.is_broken {
            return;
        }
        self.now += 1;
        self.queue.begin_batch(self.now);
        let before = self.ring.chains().count();
        let admitted = self.queue.admit_from_ring(
            &mut self.ring.queue,
            &self.memory.map,
            &mut self.chain,
            &mut self.disk,
            budget,
        );
        let taken = self.ring.chains().count() - before;
        assert!(taken <= budget, "no more than the budget");
        match admitted {
            Ok(AdmissionEnd::Budget) => assert_eq!(taken, budget),
            // Less room may be used than was kept, by those that are joined; but then they are there.
            Ok(AdmissionEnd::Stalled) => {
                assert!(self.disk.room == 0 || !self.disk.waiting.is_empty());
            }
            Ok(AdmissionEnd::Waits) => unreachable!("requests are always wanted"),
            Ok(AdmissionEnd::Drained) => {}
            Err(error) => {
                assert!(!error.to_string().is_empty());
                self.ring.is_broken = true;
            }
        }
        if self.queue.take_has_unpublished() {
            assert!(!self.ring.chains().pushed.is_empty());
        }
        if !self.ring.is_broken {
            assert_eq!(
                self.queue.in_flight() as usize,
                self.ring.chains().taken.len()
            );
        }
        self.ring.chains().pushed.clear();
    }

    /// The disk has done a request, or not.
    fn complete(&mut self, which: usize, fails: bool) {
        let Some(done) = self.disk.complete(which, fails) else {
            return;
        };
        self.now += 1;
        let before = self.queue.in_flight() as usize;
        let ring = &mut self.ring.queue;
        self.queue
            .complete_block_requests(ring, &[done], self.now, |_, _, _| Some(Status::IoErr));
        let answered = before - self.queue.in_flight() as usize;
        assert_eq!(answered, self.ring.chains().pushed.len());
        self.ring.chains().pushed.clear();
    }

    fn drain(&mut self) {
        while !self.disk.waiting.is_empty() {
            self.step(|rig| rig.complete(0, false));
        }
        assert_eq!(self.queue.in_flight(), 0);
        assert!(
            self.ring.is_broken || self.ring.chains().taken.is_empty(),
            "each chain is returned"
        );
    }

    /// The driver resets the device: what is in flight is waited for.
    fn reset(&mut self) {
        self.drain();
        let size = self.ring.driver.layout.size;
        self.ring.restart(&self.memory);
        self.queue = Queue::new(
            QueueName::new("fuzz", 0),
            self.device.clone(),
            size,
            &self.stats,
        );
    }

    /// After a reset the next request works.
    fn recovers(&mut self) {
        self.reset();
        self.device.resize(DISK as u64);
        self.disk.room = 16;
        self.disk.contents[0][512..1024].fill(0x5a);
        let buffers = [
            Buffer::readable(0x1_1000, 16),
            Buffer::writable(0x1_3000, 512),
            Buffer::writable(0x1_103f, 1),
        ];
        self.memory
            .write(0x1_1000, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        self.memory.write(0x1_103f, &[0xee]);
        self.ring.driver.add(&self.memory, &buffers, false);
        self.step(|rig| rig.admit(2));
        self.drain();
        assert_eq!(self.memory.read::<1>(0x1_103f), [0]);
        assert_eq!(self.memory.read::<512>(0x1_3000), [0x5a; 512]);
    }
}
