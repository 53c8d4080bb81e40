//! The virtio SCSI controller: commands, task management and events in rings of any content, disks that answer in any
//! order, units that come, go and change.
//!
//! Requests to disks are for blocks that are there; each chain is returned once; memory changes only where a chain
//! may be written; once the disks are done nothing is in flight, and every function about commands has its
//! answer. A queue that was broken works again after a reset.

mod disks;
mod requests;
mod ring;

use std::sync::Arc;

use engine::{Completion, Errno};
use scsi::{TransportId, Unit};
use telemetry::queue::{AdmissionEnd, QueueName, QueueStats};
use virtio_scsi::{
    Address, AdmitMemoryAndTime, ControlQueue, Device, DeviceOptions, DiskAddressAndStats,
    EventQueue, Queue, QueueMessage,
};
use virtqueue::{Chain, RingFeatures};

use crate::disk::{DISK, allocations, geometry, keeping};
use crate::driver::{Buffer, buffers};
use crate::guest::{Memory, WritableRanges, length};
use crate::input::Input;
use disks::{Disks, Waits};
use ring::Ring;

const EVENTS: usize = 150;

const SIZE: u16 = 16;

const DISKS: [Address; 3] = [at(0, 0), at(0, 1), at(3, 300)];

const fn at(target: u8, lun: u16) -> Address {
    Address { target, lun }
}

struct Rig {
    memory: Memory,
    device: Arc<Device>,
    units: Vec<Arc<Unit>>,
    features: RingFeatures,
    /// Commands, control, events.
    rings: [Ring; 3],
    queue: Queue,
    control: ControlQueue,
    events: EventQueue,
    disks: Disks,
    chain: Chain,
    now: u64,
    tag: u64,
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut rig = Rig::new(input.byte());
    input.events(EVENTS, |input| rig.event(input));
    rig.recovers();
}

/// As queues know them.
fn disks() -> [DiskAddressAndStats; 3] {
    DISKS.map(|address| DiskAddressAndStats {
        address,
        stats: Arc::new(QueueStats::new()),
    })
}

fn queues(device: &Arc<Device>, rings: &[Ring; 3]) -> (Queue, ControlQueue, EventQueue) {
    let stats = Arc::new(QueueStats::new());
    let name = QueueName::new("fuzz", 2);
    let mut queue = Queue::new_registered(name, device.clone(), SIZE, rings[0].mail.clone(), stats);
    queue.set_disks_if_idle(&disks());
    let control = ControlQueue::new(device.clone(), SIZE, rings[1].mail.clone());
    (
        queue,
        control,
        EventQueue::new_registered(device.clone(), rings[2].mail.clone()),
    )
}

impl Rig {
    fn new(flags: u8) -> Self {
        let options = DeviceOptions {
            request_queues: 1,
            queue_size: SIZE,
            initiator: TransportId::Sas(0x3000_0000_0000_0001),
        };
        let device = Arc::new(Device::new(options).expect("options"));
        let unit = |_| Arc::new(Unit::new(keeping(), geometry()).expect("options"));
        let units: Vec<_> = DISKS.map(unit).into();
        for (address, unit) in DISKS.iter().zip(&units) {
            device
                .add_unit_and_report(*address, unit.clone())
                .expect("the address is free");
        }
        device.set_features(device.features());
        let features = RingFeatures {
            event_idx: flags & 1 != 0,
            indirect: flags & 2 != 0,
            packed: flags & 4 != 0,
        };
        let memory = Memory::new();
        let rings = [0, 1, 2].map(|index| Ring::new(index, features, &memory));
        let (queue, control, events) = queues(&device, &rings);
        Rig {
            memory,
            device,
            units,
            features,
            rings,
            queue,
            control,
            events,
            disks: Disks::new(DISKS.len()),
            chain: Chain::new(),
            now: 0,
            tag: 0,
        }
    }

    fn event(&mut self, input: &mut Input) {
        match input.byte() % 20 {
            0..=5 => self.command(input),
            6 | 7 => self.function(input),
            8 => {
                let buffer = Buffer {
                    addr: 0x1_5000,
                    len: length(input),
                    writable: true,
                };
                self.rings[2].driver.add(&self.memory, &[buffer], false);
            }
            9 => {
                let (which, buffers, indirect) = (input.below(3), buffers(input), input.flag());
                self.rings[which]
                    .driver
                    .add(&self.memory, &buffers, indirect);
            }
            10 => {
                let which = input.below(3);
                self.rings[which].driver.misbehave(&self.memory, input);
            }
            11..=13 => {
                let budget = 1 + input.below(20);
                self.step(|rig| rig.admit(budget));
            }
            14 | 15 => {
                let (which, fails) = (input.byte(), input.byte() & 7 == 7);
                self.step(|rig| rig.complete(which.into(), fails));
            }
            16 => self.step(|rig| _ = rig.read_mail()),
            17 => self.step(|rig| {
                for ring in &mut rig.rings {
                    ring.ring.queue.publish();
                    ring.ring.queue.enable_kicks_and_recheck();
                }
            }),
            18 => self.disks.room = input.below(20),
            _ => match input.below(6) {
                0 => self.reset(),
                1 => {
                    _ = self
                        .device
                        .resize_unit(DISKS[input.below(3)], (input.below(65) << 10) as u64)
                }
                2 => {
                    _ = self
                        .device
                        .write_config(input.byte().into(), &input.array::<4>())
                }
                3 => self
                    .device
                    .set_features(u64::from(input.byte()) & self.device.features()),
                _ => {
                    let which = input.below(3);
                    if self.device.remove_unit_and_report(DISKS[which]).is_none() {
                        self.add(which);
                    }
                }
            },
        }
    }

    /// A unit comes: queues hear of it when they have nothing in flight.
    fn add(&mut self, which: usize) {
        let added = self
            .device
            .add_unit_and_report(DISKS[which], self.units[which].clone());
        added.expect("the address is free");
        self.drain();
        self.queue.set_disks_if_idle(&disks());
    }

    /// The device does something: it writes only where it may.
    fn step(&mut self, what: impl FnOnce(&mut Self)) {
        let before = self.memory.snapshot();
        let mut allowed = WritableRanges::default();
        for ring in &self.rings {
            ring.driver.allow(&self.memory, &mut allowed);
            ring.ring.chains().allow(&mut allowed);
        }
        what(self);
        for ring in &mut self.rings {
            ring.ring.chains().allow(&mut allowed);
            for (base, len) in ring.ring.chains().answered.drain(..) {
                allowed.add(std::ptr::with_exposed_provenance(base), len);
            }
            ring.ring.chains().pushed.clear();
        }
        allowed.check(&before);
        if !self.rings[0].is_broken {
            assert_eq!(
                self.queue.in_flight_count() as usize,
                self.rings[0].ring.chains().taken.len()
            );
        }
    }

    fn admit(&mut self, budget: usize) {
        self.now += 1;
        let batch = AdmitMemoryAndTime {
            memory: &self.memory.map,
            now: self.now,
        };
        let [commands, control, events] = &mut self.rings;
        if !commands.is_broken {
            let (ring, disks) = (&mut commands.ring, &mut self.disks);
            let before = ring.chains().count();
            let admitted =
                self.queue
                    .admit_from_ring(&mut ring.queue, batch, &mut self.chain, disks, budget);
            let stalled = matches!(admitted, Ok(AdmissionEnd::Stalled));
            assert!(!stalled || self.queue.has_deferred() && disks.waiting.len() >= disks.room);
            let after = ring.chains().count();
            // Those that come to an end meanwhile may have been taken before.
            assert!(
                after <= before + 2 * budget + usize::from(SIZE),
                "no more than the budget"
            );
            commands.is_broken = admitted.is_err();
            if commands.is_broken {
                self.queue.drop_ring_cancellations();
            }
            self.queue.take_pushed_outside_completions();
        }
        if !control.is_broken {
            let admitted = self.control.pop_and_process_requests(
                &mut control.ring.queue,
                &self.memory.map,
                &mut self.chain,
                budget,
            );
            control.is_broken = admitted.is_err();
            self.control.take_has_unpublished();
        }
        if !events.is_broken {
            let admitted =
                self.events
                    .report_pending_events(&mut events.ring.queue, batch, &mut self.chain);
            events.is_broken = admitted.is_err();
            self.events.take_has_unpublished();
        }
    }

    /// A disk has done a request, or not, and at the same time up to three others.
    fn complete(&mut self, which: usize, fails: bool) {
        let mut completions = Vec::new();
        for other in 0..=which % 4 {
            if self.disks.waiting.is_empty() {
                break;
            }
            let at = (which + other) % self.disks.waiting.len();
            let (token, waits) = self.disks.waiting.remove(at);
            self.disks.tokens.remove(&token);
            let result = match waits {
                _ if fails && other % 2 == 0 => Err(Errno::IO),
                Waits::Call(call) => call.run_with_allocations(allocations),
                Waits::Disk(disk, request) => {
                    self.disks.contents[disk].carry_out(&request);
                    Ok(())
                }
            };
            completions.push(Completion { token, result });
        }
        self.now += 1;
        self.dispatch(&completions);
    }

    /// As an iothread does.
    fn dispatch(&mut self, completions: &[Completion]) {
        let ring = &mut self.rings[0].ring.queue;
        let disks = &mut self.disks;
        self.queue
            .complete_block_requests(ring, completions, self.now, disks, |_, _, _| {});
        self.queue.count_completion_batch();
    }

    /// True if there was any.
    fn read_mail(&mut self) -> bool {
        let [commands, control, events] = &mut self.rings;
        let letters = [
            commands.mail.take(),
            control.mail.take(),
            events.mail.take(),
        ];
        let any = letters.iter().any(|letters| !letters.is_empty());
        for letter in letters.into_iter().flatten() {
            let ring = &mut commands.ring.queue;
            match letter {
                QueueMessage::Resume(token) => {
                    self.queue.resume_command(ring, token, &mut self.disks)
                }
                QueueMessage::CancelOrFind(cancel) => {
                    self.queue
                        .cancel_or_find_commands(ring, &cancel, &mut self.disks);
                    if commands.is_broken {
                        self.queue.drop_ring_cancellations();
                    }
                }
                QueueMessage::TmfEnded(outcome) => self
                    .control
                    .apply_resets_and_answer_tmf(&mut control.ring.queue, &outcome),
                QueueMessage::Events => {}
            }
        }
        any
    }

    /// Disks do what they were asked, and all mail is read.
    fn drain(&mut self) {
        self.disks.room = 16;
        for _ in 0..1000 {
            let mut idle = self.disks.waiting.is_empty();
            self.step(|rig| {
                rig.queue.submit_deferred(&mut rig.disks);
                rig.complete(0, false);
                idle &= !rig.read_mail();
            });
            if idle && !self.queue.has_deferred() {
                break;
            }
        }
        assert_eq!(self.queue.in_flight_count(), 0);
        assert!(
            self.rings[0].is_broken || self.rings[0].ring.chains().taken.is_empty(),
            "each command is answered"
        );
    }

    /// The driver resets the device: what is in flight is waited for.
    fn reset(&mut self) {
        self.drain();
        // No command is taken any more: functions have nothing left to wait for.
        self.step(|rig| {
            rig.queue.drop_ring_cancellations();
            rig.read_mail();
        });
        assert!(
            self.rings[1].is_broken || self.rings[1].ring.chains().taken.is_empty(),
            "each function is answered"
        );
        self.device.reset_with_units();
        self.device.set_features(self.device.features());
        self.rings = [0, 1, 2].map(|index| Ring::new(index, self.features, &self.memory));
        (self.queue, self.control, self.events) = queues(&self.device, &self.rings);
    }

    /// After a reset the next command works.
    fn recovers(&mut self) {
        for (which, address) in DISKS.into_iter().enumerate() {
            if self.device.unit(address).is_none() {
                self.add(which);
            }
            self.units[which].resize(DISK as u64);
        }
        self.reset();
        // INQUIRY, which no unit attention is in the way of.
        let mut bytes = DISKS[2].encode().to_vec();
        bytes.extend([0; 11]);
        bytes.extend([0x12, 0, 0, 0, 36, 0]);
        bytes.resize(19 + 32, 0);
        self.memory.write(0x1_3000, &bytes);
        self.memory.write(0x1_5000, &[0xee; 12]);
        let buffers = [
            (0x1_3000, 51, false),
            (0x1_5000, 108, true),
            (0x1_6000, 36, true),
        ];
        let buffers = buffers.map(|(addr, len, writable)| Buffer {
            addr,
            len,
            writable,
        });
        self.rings[0].driver.add(&self.memory, &buffers, false);
        self.step(|rig| rig.admit(2));
        self.drain();
        assert_eq!(
            self.memory.read::<12>(0x1_5000),
            [0; 12],
            "GOOD, nothing left over"
        );
        assert_eq!(&self.memory.read::<16>(0x1_6000)[8..], b"BLKPLANE");
    }
}
