//! A device with three disks, its queues, a guest driver, and a sink that keeps what it is given.

use std::sync::{Arc, Mutex};

use block::{DiscardLimits, DiskCall, DiskIo, Geometry, Request};
use engine::Completion;
use scsi::{TransportId, Unit, UnitIdentity, UnitOptions};
use telemetry::queue::{AdmissionEnd, QueueName, QueueStats};
use test_support::disk::carry_out;
use virtio_scsi::{
    Address, AdmitError, AdmitMemoryAndTime, ControlQueue, Device, DeviceOptions,
    DiskAddressAndStats, EventQueue, MessagePort, Queue, QueueMessage,
};
use virtqueue::testing::{Buffer, DriverRing, TestMemory};
use virtqueue::{Chain, RingFeatures};

pub const BLOCK: usize = 512;
pub const BLOCKS: usize = 2048;
pub const SENSE: usize = 96;
pub const RESPONSE: usize = 12 + SENSE;
/// What a response holds before the device has answered.
pub const UNANSWERED: u8 = 0xaa;

pub const READ: u8 = 0x28;
pub const WRITE: u8 = 0x2a;

pub const DISKS: [Address; 3] = [at(0, 0), at(0, 1), at(3, 300)];

pub const fn at(target: u8, lun: u16) -> Address {
    Address { target, lun }
}

/// Disks at these places, with nothing counted.
pub fn disks(addresses: &[Address]) -> Vec<DiskAddressAndStats> {
    let disk = |&address| DiskAddressAndStats {
        address,
        stats: Arc::default(),
    };
    addresses.iter().map(disk).collect()
}

/// What was sent to a queue and not handled yet.
#[derive(Default)]
pub struct Mail(pub Mutex<Vec<QueueMessage>>);

impl MessagePort for Mail {
    fn send(&self, message: QueueMessage) {
        self.0.lock().unwrap().push(message);
    }
}

impl Mail {
    pub fn take(&self) -> Vec<QueueMessage> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Disks with as much room as a test says.
pub struct Disks {
    pub room: usize,
    pub bytes: Vec<Vec<u8>>,
    pub submitted: Vec<(usize, Request)>,
}

impl DiskIo for Disks {
    fn room(&self, _: u32) -> usize {
        self.room
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        assert!(self.room > 0, "a request beyond the room");
        self.room -= 1;
        self.submitted.push((disk as usize, request));
    }

    fn submit_blocking_call(&mut self, _: u32, _: DiskCall, _: u32) {
        unreachable!("no command of these tests calls anything");
    }
}

/// A command that the guest made.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub head: u16,
    pub response: u64,
    pub data: u64,
}

/// What it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub response: u8,
    pub status: u8,
    pub residual: u32,
    /// Sense key, and additional code with its qualifier.
    pub sense: Option<(u8, u16)>,
}

pub const GOOD: Answer = Answer {
    response: 0,
    status: 0,
    residual: 0,
    sense: None,
};

/// A queue for commands with its driver.
pub struct Requests {
    pub driver: DriverRing,
    pub ring: virtqueue::Queue,
    pub queue: Queue,
    pub mail: Arc<Mail>,
    pub disks: Disks,
    pub chain: Chain,
    pub now: u64,
    pub stats: Arc<QueueStats>,
    /// Its disks' own figures.
    pub counted: Vec<DiskAddressAndStats>,
}

pub struct Rig {
    pub device: Arc<Device>,
    pub memory: TestMemory,
    pub queues: Vec<Requests>,
    pub control: ControlQueue,
    pub control_mail: Arc<Mail>,
    pub control_driver: DriverRing,
    pub control_ring: virtqueue::Queue,
    pub events: EventQueue,
    pub event_mail: Arc<Mail>,
    pub event_driver: DriverRing,
    pub event_ring: virtqueue::Queue,
    pub chain: Chain,
    tag: u64,
}

pub fn geometry() -> Geometry {
    Geometry {
        size: (BLOCKS * BLOCK) as u64,
        logical_block_size: 512,
        physical_block_size: 4096,
        min_io_size: 4096,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: 4096,
            max_bytes: 1 << 20,
        },
    }
}

pub fn unit(serial: &str) -> Arc<Unit> {
    let options = UnitOptions {
        identity: UnitIdentity {
            serial: serial.to_owned(),
            ..UnitIdentity::default()
        },
        ..UnitOptions::default()
    };
    Arc::new(Unit::new(options, geometry()).unwrap())
}

const FEATURES: RingFeatures = RingFeatures {
    event_idx: false,
    indirect: true,
    packed: false,
};

impl Rig {
    pub fn new() -> Rig {
        Rig::with_queues(1)
    }

    pub fn with_queues(count: u16) -> Rig {
        let memory = TestMemory::new(16 << 20);
        let options = DeviceOptions {
            request_queues: count,
            queue_size: 128,
            initiator: TransportId::Sas(0x3000_0000_0000_0001),
        };
        let device = Arc::new(Device::new(options).unwrap());
        for (index, address) in DISKS.into_iter().enumerate() {
            device
                .add_unit_and_report(address, unit(&format!("disk{index}")))
                .unwrap();
        }
        device.set_features(device.features());
        let queues = (0..count).map(|index| {
            let driver = DriverRing::new(&memory, 128, FEATURES);
            let (mail, stats) = (Arc::new(Mail::default()), Arc::new(QueueStats::new()));
            let name = QueueName::new("test", index);
            let mut queue =
                Queue::new_registered(name, device.clone(), 128, mail.clone(), stats.clone());
            let counted = disks(&DISKS);
            queue.set_disks_if_idle(&counted);
            Requests {
                ring: driver.device_queue().into(),
                driver,
                queue,
                mail,
                disks: Disks {
                    room: usize::MAX,
                    bytes: vec![vec![0; BLOCKS * BLOCK]; DISKS.len()],
                    submitted: Vec::new(),
                },
                chain: Chain::new(),
                now: 0,
                stats,
                counted,
            }
        });
        let queues = queues.collect();
        let control_driver = DriverRing::new(&memory, 64, FEATURES);
        let event_driver = DriverRing::new(&memory, 16, FEATURES);
        let (control_mail, event_mail) = (Arc::new(Mail::default()), Arc::new(Mail::default()));
        let mut rig = Rig {
            control: ControlQueue::new(device.clone(), 16, control_mail.clone()),
            control_ring: control_driver.device_queue().into(),
            events: EventQueue::new_registered(device.clone(), event_mail.clone()),
            event_ring: event_driver.device_queue().into(),
            device,
            memory,
            queues,
            control_mail,
            control_driver,
            event_mail,
            event_driver,
            chain: Chain::new(),
            tag: 100,
        };
        for address in DISKS {
            let answer = rig.command(address, &[0; 6], &[], 0).0;
            assert_eq!(answer.sense, Some((6, 0x2900)), "it was switched on");
        }
        rig
    }

    pub fn header(&mut self, address: Address, attribute: u8, cdb: &[u8]) -> Vec<u8> {
        self.tag += 1;
        let mut bytes = address.encode().to_vec();
        bytes.extend(self.tag.to_le_bytes());
        bytes.extend([attribute, 0, 0]);
        bytes.extend(cdb);
        bytes.resize(19 + 32, 0);
        bytes
    }

    /// The tag of the last command.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Makes a command available to a queue: header, data out, response, data in.
    pub fn ask_by(&mut self, queue: usize, header: &[u8], out: &[u8], room: usize) -> Asked {
        let memory = &self.memory;
        let mut buffers = vec![Buffer::readable(
            memory.alloc_bytes(header),
            header.len() as u32,
        )];
        let mut data = 0;
        if !out.is_empty() {
            data = memory.alloc_bytes(out);
            buffers.push(Buffer::readable(data, out.len() as u32));
        }
        let response = memory.alloc_bytes(&[UNANSWERED; RESPONSE]);
        buffers.push(Buffer::writable(response, RESPONSE as u32));
        if room > 0 {
            data = memory.alloc(room as u64, 512);
            memory.fill(data, room, UNANSWERED);
            buffers.push(Buffer::writable(data, room as u32));
        }
        let driver = &mut self.queues[queue].driver;
        let head = driver.add_indirect(&buffers);
        driver.publish();
        Asked {
            head,
            response,
            data,
        }
    }

    pub fn ask(&mut self, address: Address, cdb: &[u8], out: &[u8], room: usize) -> Asked {
        let header = self.header(address, 0, cdb);
        self.ask_by(0, &header, out, room)
    }

    pub fn answered(&self, asked: &Asked) -> bool {
        self.memory.read(asked.response + 11, 1)[0] != UNANSWERED
    }

    pub fn answer(&self, asked: &Asked) -> Answer {
        let bytes = self.memory.read(asked.response, RESPONSE);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let sense = &bytes[12..12 + word(0) as usize];
        Answer {
            response: bytes[11],
            status: bytes[10],
            residual: word(4),
            sense: (!sense.is_empty()).then(|| {
                assert_eq!(sense[0] & 0x7f, 0x70, "fixed format");
                (sense[2] & 15, u16::from_be_bytes([sense[12], sense[13]]))
            }),
        }
    }

    pub fn admit(&mut self, queue: usize, budget: usize) -> Result<AdmissionEnd, AdmitError> {
        let memory = self.memory.guest_memory();
        self.queues[queue].admit(&memory, budget)
    }

    /// Carries out all there is, in all queues and of all disks, and brings all mail.
    pub fn settle(&mut self) {
        let memory = self.memory.guest_memory();
        for _ in 0..100 {
            let mut idle = true;
            for queue in &mut self.queues {
                assert_ne!(queue.admit(&memory, 1000), Ok(AdmissionEnd::Budget));
                idle &= !queue.complete_all() & !queue.read_mail();
            }
            for message in self.control_mail.take() {
                if let QueueMessage::TmfEnded(outcome) = message {
                    self.control
                        .apply_resets_and_answer_tmf(&mut self.control_ring, &outcome);
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
        panic!("it goes on for ever");
    }

    /// A command and its answer, with the bytes that were read.
    pub fn command(
        &mut self,
        address: Address,
        cdb: &[u8],
        out: &[u8],
        room: usize,
    ) -> (Answer, Vec<u8>) {
        let asked = self.ask(address, cdb, out, room);
        self.settle();
        let answer = self.answer(&asked);
        let read = match answer.response {
            0 if room > 0 => room - answer.residual as usize,
            _ => 0,
        };
        assert_eq!(
            self.used(0),
            [(asked.head, (RESPONSE + read) as u32)],
            "{answer:x?}"
        );
        let data = if read > 0 {
            self.memory.read(asked.data, read)
        } else {
            Vec::new()
        };
        (answer, data)
    }

    pub fn used(&mut self, queue: usize) -> Vec<(u16, u32)> {
        let queue = &mut self.queues[queue];
        queue.ring.publish();
        queue.driver.take_used()
    }

    /// Asks for a task management function; where its answer will be.
    pub fn manage(&mut self, subtype: u32, address: Address, tag: u64) -> u64 {
        let mut bytes = 0_u32.to_le_bytes().to_vec();
        bytes.extend(subtype.to_le_bytes());
        bytes.extend(address.encode());
        bytes.extend(tag.to_le_bytes());
        self.control(&bytes, 1).unwrap()
    }

    /// Puts bytes into the control queue, with room for an answer, and takes them out again.
    pub fn control(&mut self, bytes: &[u8], room: u32) -> Result<u64, AdmitError> {
        let request = self.memory.alloc_bytes(bytes);
        let answer = self.memory.alloc_bytes(&[UNANSWERED; 16]);
        let mut buffers = vec![Buffer::readable(request, bytes.len() as u32)];
        if room > 0 {
            buffers.push(Buffer::writable(answer, room));
        }
        self.control_driver.add_indirect(&buffers);
        self.control_driver.publish();
        let memory = self.memory.guest_memory();
        let (ring, chain) = (&mut self.control_ring, &mut self.chain);
        self.control
            .pop_and_process_requests(ring, &memory, chain, 1000)?;
        self.control_ring.publish();
        self.control_driver.take_used();
        Ok(answer)
    }

    pub fn byte(&self, at: u64) -> u8 {
        self.memory.read(at, 1)[0]
    }
}

impl Requests {
    pub fn admit(
        &mut self,
        memory: &Arc<virtqueue::GuestMemory>,
        budget: usize,
    ) -> Result<AdmissionEnd, AdmitError> {
        let now = self.now;
        let batch = AdmitMemoryAndTime { memory, now };
        let (ring, chain) = (&mut self.ring, &mut self.chain);
        self.queue
            .admit_from_ring(ring, batch, chain, &mut self.disks, budget)
    }

    /// Whether there were any.
    pub fn complete_all(&mut self) -> bool {
        let submitted = std::mem::take(&mut self.disks.submitted);
        let any = !submitted.is_empty();
        let mut completions = Vec::new();
        for (disk, request) in submitted {
            // SAFETY: the queue promises a valid list; the memory of a disk is its own.
            unsafe { carry_out(&mut self.disks.bytes[disk], &request) };
            let (token, result) = (request.token, Ok(()));
            completions.push(Completion { token, result });
        }
        self.complete_these(&completions);
        any
    }

    /// Completes block requests of this queue.
    pub fn complete_these(&mut self, completions: &[Completion]) {
        self.disks.room = self.disks.room.saturating_add(completions.len());
        let Requests {
            queue, ring, disks, ..
        } = self;
        queue.complete_block_requests(ring, completions, self.now, disks, |_, _, _| {});
        queue.count_completion_batch();
    }

    /// Whether there was any.
    pub fn read_mail(&mut self) -> bool {
        let mail = self.mail.take();
        let any = !mail.is_empty();
        for message in mail {
            let (ring, disks) = (&mut self.ring, &mut self.disks);
            match message {
                QueueMessage::Resume(token) => self.queue.resume_command(ring, token, disks),
                QueueMessage::CancelOrFind(cancel) => {
                    self.queue.cancel_or_find_commands(ring, &cancel, disks)
                }
                _ => panic!("not for a queue of commands"),
            }
        }
        any
    }
}

/// READ(10), WRITE(10) and their like.
pub fn cdb10(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let (lba, blocks) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [
        opcode, 0, lba[0], lba[1], lba[2], lba[3], 0, blocks[0], blocks[1], 0,
    ]
}

/// Bytes that differ from block to block.
pub fn pattern(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK)
        .map(|at| (at / BLOCK) as u8 ^ at as u8 ^ seed)
        .collect()
}
