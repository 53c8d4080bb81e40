//! The virtio block device: requests of any form in rings of any content, and a disk that answers in any order.
//!
//! Requests to the disk are for blocks that are there and name guest memory only; a read-only disk is never written; each chain is
//! returned once, with a status; memory changes only where a chain may be written; once the disk is done nothing is in
//! flight. A queue that was broken works again after a reset.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::{DiskCall, DiskIo, Op, Request};
use engine::{Completion, Errno};
use telemetry::queue::{AdmissionEnd, QueueName, QueueStats};
use virtio_blk::{Device, DeviceOptions, MergeLimits, Queue, Status};
use virtqueue::{Chain, RingFeatures};

use crate::disk::{Contents, DISK, check, geometry};
use crate::driver::{Buffer, Driver, buffers};
use crate::guest::{Memory, WritableRanges, address, length};
use crate::input::Input;
use crate::observed::ObservedQueue;

const EVENTS: usize = 150;

/// The disk, and what it has not yet done.
struct Disk {
    contents: Contents,
    waiting: Vec<Request>,
    tokens: BTreeSet<u64>,
    room: usize,
    read_only: bool,
}

impl DiskIo for Disk {
    fn room(&self, _: u32) -> usize {
        self.room.saturating_sub(self.waiting.len())
    }

    unsafe fn submit(&mut self, _: u32, request: Request) {
        assert!(self.waiting.len() < self.room, "there is room");
        assert!(self.tokens.insert(request.token), "one request of a slot");
        assert!(
            !self.read_only || matches!(request.op, Op::Read | Op::Flush),
            "{request:?}"
        );
        check(&request);
        self.waiting.push(request);
    }

    fn submit_blocking_call(&mut self, _: u32, _: DiskCall, _: u32) {
        unreachable!("virtio-blk calls nothing");
    }
}

struct Rig {
    memory: Memory,
    device: Arc<Device>,
    stats: QueueStats,
    driver: Driver,
    ring: ObservedQueue,
    queue: Queue,
    chain: Chain,
    disk: Disk,
    is_broken: bool,
    now: u64,
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
        let mut driver = Driver::new(0, size, features);
        let ring = ObservedQueue::new(driver.start(&memory), &memory);
        ring.chains().on_push = has_status;
        let stats = QueueStats::new();
        Rig {
            queue: Queue::new(QueueName::new("fuzz", 0), device.clone(), size, &stats),
            disk: Disk {
                contents: Contents::new(),
                waiting: Vec::new(),
                tokens: BTreeSet::new(),
                room: 16,
                read_only: device.options().read_only,
            },
            memory,
            device,
            stats,
            driver,
            ring,
            chain: Chain::new(),
            is_broken: false,
            now: 0,
        }
    }

    fn event(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0..=4 => self.request(input),
            5 => {
                let (buffers, indirect) = (buffers(input), input.flag());
                self.driver.add(&self.memory, &buffers, indirect);
            }
            6 | 7 => self.driver.misbehave(&self.memory, input),
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
                    _ = self
                        .device
                        .write_config(input.byte().into(), input.bytes(2))
                }
                _ => self
                    .device
                    .set_features(input.u64() & self.device.features()),
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
        let mut buffers = vec![Buffer {
            addr: header,
            len: 16,
            writable: false,
        }];
        if matches!(kind, 11 | 13) {
            // A range.
            let count = match input.below(4) {
                0 => input.u32(),
                _ => input.byte().into(),
            };
            let flags = if input.below(4) == 0 { input.u32() } else { 0 };
            let mut range = [0; 16];
            range[..8].copy_from_slice(&sector.to_le_bytes());
            range[8..12].copy_from_slice(&count.to_le_bytes());
            range[12..].copy_from_slice(&flags.to_le_bytes());
            self.memory.write(header + 16, &range);
            let len = if input.below(8) == 0 {
                length(input)
            } else {
                16
            };
            buffers.push(Buffer {
                addr: header + 16,
                len,
                writable: false,
            });
        } else {
            for _ in 0..input.below(4) {
                buffers.push(Buffer {
                    addr: address(input),
                    len: length(input),
                    writable: kind != 1,
                });
            }
        }
        buffers.push(Buffer {
            addr: header + 63,
            len: 1,
            writable: true,
        });
        let indirect = input.flag();
        self.driver.add(&self.memory, &buffers, indirect);
    }

    /// The device does something: it writes only where it may.
    fn step(&mut self, what: impl FnOnce(&mut Self)) {
        let before = self.memory.snapshot();
        let mut allowed = WritableRanges::default();
        self.driver.allow(&self.memory, &mut allowed);
        self.ring.chains().allow(&mut allowed);
        what(self);
        self.ring.chains().allow(&mut allowed);
        // A chain that was admitted and returned within the step has only its status, or its id.
        for (base, len) in self.ring.chains().answered.drain(..) {
            allowed.add(std::ptr::with_exposed_provenance(base), len);
        }
        allowed.check(&before);
    }

    fn admit(&mut self, budget: usize) {
        // What was completed counts before more is taken.
        self.queue.record_batch_statistics();
        if self.is_broken {
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
                self.is_broken = true;
            }
        }
        if self.queue.take_has_unpublished() {
            assert!(!self.ring.chains().pushed.is_empty());
        }
        if !self.is_broken {
            assert_eq!(
                self.queue.in_flight() as usize,
                self.ring.chains().taken.len()
            );
        }
        self.ring.chains().pushed.clear();
    }

    /// The disk has done a request, or not.
    fn complete(&mut self, which: usize, fails: bool) {
        if self.disk.waiting.is_empty() {
            return;
        }
        let request = self.disk.waiting.remove(which % self.disk.waiting.len());
        self.disk.tokens.remove(&request.token);
        let result = if fails {
            Err(Errno::IO)
        } else {
            self.disk.contents.carry_out(&request);
            Ok(())
        };
        self.now += 1;
        let done = [Completion {
            token: request.token,
            result,
        }];
        let before = self.queue.in_flight() as usize;
        self.queue
            .complete_block_requests(&mut self.ring.queue, &done, self.now, |_, _, _| {
                Some(Status::IoErr)
            });
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
            self.is_broken || self.ring.chains().taken.is_empty(),
            "each chain is returned"
        );
    }

    /// The driver resets the device: what is in flight is waited for.
    fn reset(&mut self) {
        self.drain();
        let size = self.driver.layout.size;
        self.ring.set_queue(self.driver.start(&self.memory));
        self.ring.chains().taken.clear();
        self.queue = Queue::new(
            QueueName::new("fuzz", 0),
            self.device.clone(),
            size,
            &self.stats,
        );
        self.is_broken = false;
    }

    /// After a reset the next request works.
    fn recovers(&mut self) {
        self.reset();
        self.device.resize(DISK as u64);
        self.disk.room = 16;
        self.disk.contents.0[512..1024].fill(0x5a);
        let buffers = [
            (0x1_1000, 16, false),
            (0x1_3000, 512, true),
            (0x1_103f, 1, true),
        ];
        let buffers = buffers.map(|(addr, len, writable)| Buffer {
            addr,
            len,
            writable,
        });
        self.memory
            .write(0x1_1000, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        self.memory.write(0x1_103f, &[0xee]);
        self.driver.add(&self.memory, &buffers, false);
        self.step(|rig| rig.admit(2));
        self.drain();
        assert_eq!(self.memory.read::<1>(0x1_103f), [0]);
        assert_eq!(self.memory.read::<512>(0x1_3000), [0x5a; 512]);
    }
}
