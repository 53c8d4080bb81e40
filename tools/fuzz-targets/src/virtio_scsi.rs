//! The virtio SCSI controller: commands, task management and events in rings of any content, disks that answer in any
//! order, units that come, go and change.
//!
//! Requests to disks are for blocks that are there; each chain is returned once; memory changes only where a chain
//! may be written; once the disks are done nothing is in flight, and every function about commands has its
//! answer. A queue that was broken works again after a reset.

mod requests;

use std::sync::{Arc, Mutex};

use engine::Completion;
use scsi::{TransportId, Unit};
use telemetry::queue::{AdmissionEnd, QueueName, QueueStats};
use virtio_scsi::{
    Address, AdmitMemoryAndTime, ControlQueue, Device, DeviceOptions, DiskAddressAndStats,
    EventQueue, MessagePort, Queue, QueueMessage,
};
use virtqueue::{Chain, RingFeatures};

use crate::disk::{DISK, Disks, geometry, keeping};
use crate::driver::{Buffer, buffers};
use crate::guest::{Memory, length};
use crate::input::Input;
use crate::observed::{Ring, Rings};

const EVENTS: usize = 150;

const SIZE: u16 = 16;

const DISKS: [Address; 3] = [at(0, 0), at(0, 1), at(3, 300)];

const fn at(target: u8, lun: u16) -> Address {
    Address { target, lun }
}

/// What was sent to a queue and not handled yet.
#[derive(Default)]
struct PendingMessages(Mutex<Vec<QueueMessage>>);

impl MessagePort for PendingMessages {
    fn send(&self, message: QueueMessage) {
        self.0.lock().expect("one thread").push(message);
    }
}

impl PendingMessages {
    fn take(&self) -> Vec<QueueMessage> {
        std::mem::take(&mut *self.0.lock().expect("one thread"))
    }
}

type Mail = [Arc<PendingMessages>; 3];

struct Rig {
    memory: Memory,
    device: Arc<Device>,
    units: Vec<Arc<Unit>>,
    features: RingFeatures,
    /// Commands, control, events.
    rings: [Ring; 3],
    mail: Mail,
    queue: Queue,
    control: ControlQueue,
    events: EventQueue,
    disks: Disks,
    chain: Chain,
    now: u64,
    tag: u64,
}

impl Rings for Rig {
    fn parts(&mut self) -> (&Memory, &mut [Ring]) {
        (&self.memory, &mut self.rings)
    }
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

fn queues(device: &Arc<Device>, mail: &Mail) -> (Queue, ControlQueue, EventQueue) {
    let stats = Arc::new(QueueStats::new());
    let name = QueueName::new("fuzz", 2);
    let [commands, control, events] = mail.clone();
    let mut queue = Queue::new_registered(name, device.clone(), SIZE, commands, stats);
    queue.set_disks_if_idle(&disks());
    let control = ControlQueue::new(device.clone(), SIZE, control);
    let events = EventQueue::new_registered(device.clone(), events);
    (queue, control, events)
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
        let rings = [0, 1, 2].map(|index| Ring::new(index, SIZE, features, &memory));
        let mail = Mail::default();
        let (queue, control, events) = queues(&device, &mail);
        Rig {
            memory,
            mail,
            device,
            units,
            features,
            rings,
            queue,
            control,
            events,
            disks: Disks::new(DISKS.len(), 16),
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
                let buffer = Buffer::writable(0x1_5000, length(input));
                self.rings[2].driver.add(&self.memory, &[buffer], false);
            }
            9 => {
                let driver = &mut self.rings[input.below(3)].driver;
                let (buffers, indirect) = (buffers(input), input.flag());
                driver.add(&self.memory, &buffers, indirect);
            }
            10 => {
                let driver = &mut self.rings[input.below(3)].driver;
                driver.misbehave(&self.memory, input);
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
                    ring.queue.publish();
                    ring.queue.enable_kicks_and_recheck();
                }
            }),
            18 => self.disks.room = input.below(20),
            _ => match input.below(6) {
                0 => self.reset(),
                1 => {
                    let (which, size) = (input.below(3), (input.below(65) << 10) as u64);
                    self.device.resize_unit(DISKS[which], size);
                }
                2 => {
                    let (offset, bytes) = (input.byte().into(), input.array::<4>());
                    let _ = self.device.write_config(offset, &bytes);
                }
                3 => {
                    let features = u64::from(input.byte());
                    self.device.set_features(features & self.device.features());
                }
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

    /// The device does something, and has what it has of commands.
    fn step(&mut self, what: impl FnOnce(&mut Self)) {
        Rings::step(self, what);
        for ring in &self.rings {
            ring.chains().pushed.clear();
        }
        let commands = &self.rings[0];
        let in_flight = self.queue.in_flight_count() as usize;
        assert!(commands.is_broken || in_flight == commands.chains().taken.len());
    }

    fn admit(&mut self, budget: usize) {
        self.now += 1;
        let batch = AdmitMemoryAndTime {
            memory: &self.memory.map,
            now: self.now,
        };
        let [commands, control, events] = &mut self.rings;
        if !commands.is_broken {
            let (ring, disks) = (&mut *commands, &mut self.disks);
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
                &mut control.queue,
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
                    .report_pending_events(&mut events.queue, batch, &mut self.chain);
            events.is_broken = admitted.is_err();
            self.events.take_has_unpublished();
        }
    }

    /// A disk has done a request, or not, and at the same time up to three others.
    fn complete(&mut self, which: usize, fails: bool) {
        let done = (0..=which % 4).map_while(|other| {
            self.disks
                .complete(which + other, fails && other.is_multiple_of(2))
        });
        let completions: Vec<_> = done.collect();
        self.now += 1;
        self.dispatch(&completions);
    }

    /// As an iothread does.
    fn dispatch(&mut self, completions: &[Completion]) {
        let ring = &mut self.rings[0].queue;
        let disks = &mut self.disks;
        self.queue
            .complete_block_requests(ring, completions, self.now, disks, |_, _, _| {});
        self.queue.count_completion_batch();
    }

    /// True if there was any.
    fn read_mail(&mut self) -> bool {
        let [commands, control, _] = &mut self.rings;
        let letters: Vec<_> = self.mail.iter().flat_map(|mail| mail.take()).collect();
        let any = !letters.is_empty();
        for letter in letters {
            let ring = &mut commands.queue;
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
                    .apply_resets_and_answer_tmf(&mut control.queue, &outcome),
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
            self.rings[0].is_broken || self.rings[0].chains().taken.is_empty(),
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
            self.rings[1].is_broken || self.rings[1].chains().taken.is_empty(),
            "each function is answered"
        );
        self.device.reset_with_units();
        self.device.set_features(self.device.features());
        self.rings = [0, 1, 2].map(|index| Ring::new(index, SIZE, self.features, &self.memory));
        self.mail = Mail::default();
        (self.queue, self.control, self.events) = queues(&self.device, &self.mail);
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
            Buffer::readable(0x1_3000, 51),
            Buffer::writable(0x1_5000, 108),
            Buffer::writable(0x1_6000, 36),
        ];
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
