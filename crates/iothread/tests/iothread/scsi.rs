//! A virtio-scsi controller whose queues are on two iothreads: commands, task management functions, exchanged disks.

mod exchange;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use block::Node;
use iothread::{
    DeviceSetup, IothreadHandle, IothreadSettings, ScsiDisk, ScsiSetup, VringHandle, VringSetup,
};
use scsi::{TransportId, Unit, UnitOptions};
use telemetry::queue::QueueStats;
use virtio_scsi::{Address, Device, DeviceOptions};
use virtqueue::RingFeatures;
use virtqueue::queue_setup::QueueCommand;
use virtqueue::testing::{Buffer, DriverRing, TestMemory};

use crate::queue_driver::{
    CARRIERS, add_one, counted, disk_by, event, iothread, null_disk, vring_setup, wait_for,
};

const BLOCK: u32 = 4096;
const RESPONSE: u32 = 108;
const READ: u8 = 0x28;
const WRITE: u8 = 0x2a;

pub const FIRST: Address = Address { target: 0, lun: 0 };
const SECOND: Address = Address { target: 2, lun: 1 };

/// A queue as the guest has it.
struct Ring {
    driver: DriverRing,
    kick: OwnedFd,
    call: OwnedFd,
    err: OwnedFd,
    stats: Arc<QueueStats>,
}

/// A command that the guest made.
struct Asked {
    head: u16,
    response: u64,
    data: u64,
}

pub struct Controller {
    device: Arc<Device>,
    memory: TestMemory,
    rings: Vec<Ring>,
    tag: u64,
}

fn unit(node: &Node) -> Arc<Unit> {
    let options = UnitOptions {
        logical_block_size: BLOCK,
        ..UnitOptions::default()
    };
    Arc::new(Unit::new(options, node.geometry()).unwrap())
}

pub fn disk(address: Address, node: &Arc<Node>) -> ScsiDisk {
    ScsiDisk {
        address,
        node: node.clone(),
        stats: Arc::default(),
        reports: None,
    }
}

impl Controller {
    /// With a control queue, an event queue and two for commands.
    pub fn new(disks: &[ScsiDisk]) -> Controller {
        let options = DeviceOptions {
            request_queues: 2,
            queue_size: 64,
            initiator: TransportId::Sas(0x3000_0000_0000_0001),
        };
        let device = Arc::new(Device::new(options).unwrap());
        for disk in disks {
            device
                .add_unit_and_report(disk.address, unit(&disk.node))
                .unwrap();
        }
        device.set_features(device.features());
        let memory = TestMemory::new(8 << 20);
        let features = RingFeatures {
            indirect: true,
            ..RingFeatures::default()
        };
        let rings = (0..4).map(|_| Ring {
            driver: DriverRing::new(&memory, 64, features),
            kick: event(),
            call: event(),
            err: event(),
            stats: Arc::default(),
        });
        Controller {
            device,
            rings: rings.collect(),
            memory,
            tag: 0,
        }
    }

    /// Starts all queues, in turn on these threads.
    pub fn start(&self, threads: &[IothreadHandle], disks: &[ScsiDisk]) -> Vec<VringHandle> {
        let queues = self.rings.iter().zip(threads.iter().cycle()).zip(0..);
        let started = queues.map(|((ring, thread), index)| {
            let device = DeviceSetup::Scsi(ScsiSetup {
                device: self.device.clone(),
                index,
                disks: disks.to_vec(),
            });
            let descriptors = [&ring.kick, &ring.call, &ring.err];
            let setup = VringSetup {
                stats: ring.stats.clone(),
                ..vring_setup(device, index, &ring.driver, descriptors)
            };
            thread.start_vring(setup).unwrap()
        });
        started.collect()
    }

    fn send(&mut self, queue: usize, buffers: &[Buffer]) -> u16 {
        let ring = &mut self.rings[queue];
        let head = ring.driver.add_indirect(buffers);
        if ring.driver.publish() {
            add_one(&ring.kick);
        }
        head
    }

    /// Sends a command with this CDB: `out` is its data, and `room` the size of the buffer for an answer.
    fn ask(&mut self, queue: usize, address: Address, cdb: &[u8], out: &[u8], room: u32) -> Asked {
        self.tag += 1;
        let mut header = address.encode().to_vec();
        header.extend(self.tag.to_le_bytes());
        header.extend([0; 3]);
        header.extend(cdb);
        header.resize(51, 0);
        let memory = &self.memory;
        let mut buffers = vec![Buffer::readable(memory.alloc_bytes(&header), 51)];
        let len = u32::try_from(out.len()).unwrap();
        let data = memory.alloc(u64::from(len.max(room).max(1)), 4096);
        if len > 0 {
            memory.write(data, out);
            buffers.push(Buffer::readable(data, len));
        }
        let response = memory.alloc_bytes(&[0xaa; RESPONSE as usize]);
        buffers.push(Buffer::writable(response, RESPONSE));
        if room > 0 {
            buffers.push(Buffer::writable(data, room));
        }
        let head = self.send(queue, &buffers);
        Asked {
            head,
            response,
            data,
        }
    }

    /// Sleeps until so many answers came back; their heads.
    fn wait(&mut self, queue: usize, answers: usize) -> Vec<u16> {
        let ring = &mut self.rings[queue];
        let mut heads = Vec::new();
        while heads.len() < answers {
            heads.extend(ring.driver.take_used().into_iter().map(|(head, _)| head));
            if heads.len() < answers {
                wait_for(&ring.call, "an answer");
            }
        }
        heads
    }

    /// Response, status.
    fn answer(&self, asked: &Asked) -> (u8, u8) {
        let bytes = self.memory.read(asked.response + 10, 2);
        (bytes[1], bytes[0])
    }

    /// The command is carried out, and what it read is returned.
    pub fn good(
        &mut self,
        queue: usize,
        address: Address,
        cdb: &[u8],
        out: &[u8],
        room: u32,
    ) -> Vec<u8> {
        let asked = self.ask(queue, address, cdb, out, room);
        assert_eq!(self.wait(queue, 1), [asked.head]);
        assert_eq!(self.answer(&asked), (0, 0), "{cdb:x?}");
        self.memory.read(asked.data, room as usize)
    }

    /// Takes the attention that a unit begins with.
    pub fn greet(&mut self, address: Address) {
        let asked = self.ask(2, address, &[0; 6], &[], 0);
        self.wait(2, 1);
        assert_eq!(self.answer(&asked), (0, 2));
    }

    /// Asks for a task management function; where its answer is.
    fn manage(&mut self, subtype: u32, address: Address, tag: u64) -> u64 {
        let (subtype, tag) = (subtype.to_le_bytes(), tag.to_le_bytes());
        let bytes = [&[0; 4], &subtype[..], &address.encode(), &tag].concat();
        let request = self.memory.alloc_bytes(&bytes);
        let answer = self.memory.alloc_bytes(&[0xaa]);
        let (request, room) = (Buffer::readable(request, 24), Buffer::writable(answer, 1));
        self.send(0, &[request, room]);
        answer
    }
}

fn cdb(opcode: u8, lba: u8, blocks: u8) -> [u8; 10] {
    [opcode, 0, 0, 0, 0, lba, 0, 0, blocks, 0]
}

pub fn threads() -> [IothreadHandle; 2] {
    ["a", "b"].map(iothread)
}

const ABORT_TASK: u32 = 0;
const LUN_RESET: u32 = 5;

#[test]
fn a_function_waits_for_commands_on_another_thread() {
    let threads = threads();
    let disks = [disk(FIRST, &null_disk(30_000_000))];
    let mut guest = Controller::new(&disks);
    let _vrings = guest.start(&threads, &disks);
    guest.greet(FIRST);
    for function in [ABORT_TASK, LUN_RESET] {
        for queue in [2, 3] {
            let asked = guest.ask(queue, FIRST, &cdb(READ, 0, 1), &[], BLOCK);
            let answer = guest.manage(function, FIRST, guest.tag);
            guest.wait(0, 1);
            assert_eq!(guest.memory.read(answer, 1), [0]);
            let (response, _) = guest.answer(&asked);
            assert!(matches!(response, 2 | 4), "over before the function is");
            guest.wait(queue, 1);
            if function == LUN_RESET {
                guest.greet(FIRST);
            }
        }
    }
}

#[test]
fn a_control_queue_that_stops_does_not_wait_for_others() {
    let threads = threads();
    let disks = [disk(FIRST, &null_disk(0))];
    let mut guest = Controller::new(&disks);
    let mut vrings = guest.start(&threads, &disks);
    guest.greet(FIRST);
    // Nothing is taken from this one, so that a function about it cannot end.
    vrings[3].send(QueueCommand::Enable(false));
    vrings[3].send_and_wait(QueueCommand::Settle);
    let asked = guest.ask(3, FIRST, &cdb(READ, 0, 1), &[], BLOCK);
    let answer = guest.manage(ABORT_TASK, FIRST, guest.tag);
    // What comes after it is answered at once: it was taken, then.
    let absent = Address { target: 77, lun: 0 };
    guest.manage(ABORT_TASK, absent, 0);
    guest.wait(0, 1);
    guest.good(2, FIRST, &cdb(READ, 0, 1), &[], BLOCK);
    vrings[3].send_and_wait(QueueCommand::Settle);
    vrings[0].send_and_wait(QueueCommand::Settle);
    assert_eq!(guest.memory.read(answer, 1), [0xaa], "not yet");
    assert!(vrings.remove(0).stop().is_some());
    assert_eq!(guest.memory.read(answer, 1), [9], "it failed");
    vrings[2].send(QueueCommand::Enable(true));
    guest.wait(3, 1);
    assert_eq!(guest.answer(&asked).0, 2, "what it was about is ended");
}

#[test]
fn more_commands_than_an_engine_has_room_for_all_complete() {
    let settings = IothreadSettings {
        aio_max_events: 2,
        ..IothreadSettings::with_id("small")
    };
    let threads = [IothreadHandle::spawn(settings).unwrap()];
    for aio in CARRIERS {
        let (node, _folder) = disk_by(aio);
        let disks = [disk(FIRST, &node), disk(SECOND, &node)];
        let mut guest = Controller::new(&disks);
        let vrings = guest.start(&threads, &disks);
        for address in [FIRST, SECOND] {
            guest.greet(address);
        }
        let mut asked = Vec::new();
        for lba in 0..20 {
            for queue in [2, 3] {
                let address = if lba % 2 == 0 { FIRST } else { SECOND };
                asked.push(guest.ask(queue, address, &cdb(READ, lba, 1), &[], BLOCK));
            }
        }
        // Also what was taken and has not been handed over.
        vrings[2].send(QueueCommand::Enable(false));
        vrings[2].send_and_wait(QueueCommand::Settle);
        vrings[2].send(QueueCommand::Enable(true));
        for queue in [2, 3] {
            guest.wait(queue, 20);
        }
        for asked in &asked {
            assert_eq!(guest.answer(asked), (0, 0));
        }
        let others = counted(&guest.rings[0].call);
        assert_eq!(others, 0, "no other queue is signalled");
    }
}
