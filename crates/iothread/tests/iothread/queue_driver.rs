//! Simulated guest for the tests: a driver with one virtio-blk queue, and disks for it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

pub use block::testing::fault;
use block::testing::file_options;
use block::{
    Aio, BackendSettings, FaultRule, FaultRules, Faults, IoContext, Node, NodeOptions, NullOptions,
};
use engine::AioSettings;
use iothread::event_loop::{EventLoop, PollSettings, Poller};
use iothread::{DeviceSetup, IothreadHandle, IothreadSettings, QueuesRunner, VringSetup};
use telemetry::queue::QueueName;
use tempfile::TempDir;
use test_support::deadline::Deadline;
use test_support::events::wait_for_any;
pub use test_support::events::{event, signal as add_one, take as counted};
use virtio_blk::{Device, DeviceOptions};
use virtqueue::queue_setup::{QueueFds, QueueSetup};
use virtqueue::testing::{Buffer, DriverRing, TestMemory};
use virtqueue::{GuestMemory, RingFeatures};

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub const REQUEST_BYTES: u32 = 4096;
pub const DISK_BYTES: u64 = 4 << 20;
const UNANSWERED: u8 = 0xaa;

/// Memory for one request.
#[derive(Clone, Copy)]
struct Slot {
    header: u64,
    data: u64,
    status: u64,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub tag: u64,
    pub status: u8,
    /// First byte of its data.
    pub byte: u8,
}

/// The driver of one queue, on the same memory as the iothread: there is no front-end.
pub struct QueueDriver {
    pub memory: TestMemory,
    pub driver: DriverRing,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub err: OwnedFd,
    free: Vec<Slot>,
    /// By head: what a request was called, and its memory.
    asked: HashMap<u16, (u64, Slot)>,
    /// How often it was signalled.
    pub signals: u64,
}

/// Waits until an eventfd has counted something, and takes it.
#[track_caller]
pub fn wait_for(event: &OwnedFd, what: &str) -> u64 {
    wait_for_any(what, Deadline::default(), &[event.as_fd()]);
    counted(event)
}

/// What starts the queue with this number, enabled: with its kick, call and err descriptors.
pub fn vring_setup(
    device: DeviceSetup,
    number: u16,
    driver: &DriverRing,
    descriptors: [&OwnedFd; 3],
) -> VringSetup {
    let [kick, call, err] = descriptors.map(|fd| Some(fd.try_clone().unwrap()));
    VringSetup {
        name: QueueName::new("test", number),
        device,
        queue: QueueSetup {
            memory: driver.memory().guest_memory(),
            layout: driver.layout(),
            features: driver.features(),
            base: 0,
            inflight: None,
            log: None,
            descriptors: QueueFds { kick, call, err },
            enabled: true,
        },
        fixed_buffers: false,
        stats: Arc::default(),
        reports: None,
    }
}

/// An iothread.
pub fn iothread(id: &str) -> IothreadHandle {
    IothreadHandle::spawn(IothreadSettings::with_id(id)).unwrap()
}

/// Settings by which an engine takes so many requests at a time.
pub fn aio_room(max_events: u32) -> BackendSettings {
    let defaults = BackendSettings::default();
    BackendSettings {
        aio: AioSettings {
            max_events,
            ..defaults.aio
        },
        ..defaults
    }
}

/// The loop of one, which a test runs by hand.
pub fn queues_loop(
    poller: impl Poller + 'static,
    polling: PollSettings,
    settings: BackendSettings,
) -> EventLoop<QueuesRunner> {
    let made = EventLoop::new(Box::new(poller), polling, move |_, remote| {
        let waker = remote.waker();
        let io = IoContext::new(settings, Arc::new(move || waker.wake())).unwrap();
        Ok::<_, std::io::Error>(QueuesRunner::new(remote, io))
    });
    made.unwrap()
}

impl QueueDriver {
    /// With a queue of `size` entries, a request taking three of them.
    pub fn new(size: u16, event_idx: bool) -> QueueDriver {
        QueueDriver::at_base(size, event_idx, 0)
    }

    /// The same, with a ring whose indices begin at `base`.
    pub fn at_base(size: u16, event_idx: bool, base: u16) -> QueueDriver {
        let features = RingFeatures {
            event_idx,
            ..RingFeatures::default()
        };
        let slots = size / 3;
        // Each with a page for the alignment of its data.
        let bytes = u64::from(slots) * 2 * u64::from(REQUEST_BYTES);
        let memory = TestMemory::new(bytes + (1 << 18));
        let driver = DriverRing::with_base(&memory, size, features, base);
        let free = (0..slots)
            .map(|_| Slot {
                header: memory.alloc(16, 16),
                data: memory.alloc(u64::from(REQUEST_BYTES), 4096),
                status: memory.alloc(1, 1),
            })
            .collect();
        QueueDriver {
            memory,
            driver,
            kick: event(),
            call: event(),
            err: event(),
            free,
            asked: HashMap::new(),
            signals: 0,
        }
    }

    /// What starts its queue at `base`, enabled.
    pub fn setup(&self, node: &Arc<Node>, base: u32) -> VringSetup {
        let options = DeviceOptions::default();
        let device = DeviceSetup::Blk {
            device: Arc::new(Device::new(options, node.geometry()).unwrap()),
            node: node.clone(),
        };
        let descriptors = [&self.kick, &self.call, &self.err];
        let mut setup = vring_setup(device, 0, &self.driver, descriptors);
        setup.queue.base = base;
        setup
    }

    /// How many more requests can be asked.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    pub fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// A request of [`REQUEST_BYTES`] that is found again by `tag`; not shown to the device yet.
    /// A write's data is `byte` all over.
    pub fn ask(&mut self, tag: u64, kind: u32, sector: u64, byte: u8) {
        let slot = self.slot(kind, sector);
        let bytes = REQUEST_BYTES;
        let mut buffers = vec![Buffer::readable(slot.header, 16)];
        match kind {
            OUT => {
                self.memory.fill(slot.data, bytes as usize, byte);
                buffers.push(Buffer::readable(slot.data, bytes));
            }
            IN | GET_ID => buffers.push(Buffer::writable(slot.data, bytes)),
            _ => {}
        }
        self.add(tag, slot, buffers);
    }

    /// A discard or write of zeroes, as [`ask`](Self::ask). `unmap`: what becomes zero needs no space.
    pub fn ask_range(&mut self, tag: u64, kind: u32, sector: u64, sectors: u32, unmap: bool) {
        let slot = self.slot(kind, 0);
        let fields = [sectors, u32::from(unmap)].map(u32::to_le_bytes);
        let range = [&sector.to_le_bytes(), fields.as_flattened()].concat();
        self.memory.write(slot.data, &range);
        let header = Buffer::readable(slot.header, 16);
        self.add(tag, slot, vec![header, Buffer::readable(slot.data, 16)]);
    }

    /// Memory with a request's header.
    fn slot(&mut self, kind: u32, sector: u64) -> Slot {
        let slot = self.free.pop().expect("room for a request");
        let header = [u64::from(kind), sector].map(u64::to_le_bytes);
        self.memory.write(slot.header, &header.concat());
        self.memory.write(slot.status, &[UNANSWERED]);
        slot
    }

    fn add(&mut self, tag: u64, slot: Slot, mut buffers: Vec<Buffer>) {
        buffers.push(Buffer::writable(slot.status, 1));
        let head = self.driver.add(&buffers);
        let other = self.asked.insert(head, (tag, slot));
        assert!(other.is_none());
    }

    /// A read of the block with this number.
    pub fn read(&mut self, tag: u64, block: u64) {
        self.ask(tag, IN, block * u64::from(REQUEST_BYTES) / 512, 0);
    }

    /// Publishes so many reads, each of the block that its tag is the number of.
    pub fn publish_reads(&mut self, count: u64) {
        (0..count).for_each(|tag| self.read(tag, tag));
        self.driver.publish();
    }

    pub fn write(&mut self, tag: u64, block: u64, byte: u8) {
        self.ask(tag, OUT, block * u64::from(REQUEST_BYTES) / 512, byte);
    }

    /// Shows the device what was asked, and kicks it if it wants that.
    pub fn submit(&mut self) {
        if self.driver.publish() {
            add_one(&self.kick);
        }
    }

    /// Asks for as many reads as there is room for.
    pub fn submit_all(&mut self) {
        while self.room() > 0 {
            self.read(0, 0);
        }
        self.submit();
    }

    /// One read from the first to the last.
    #[track_caller]
    pub fn read_once(&mut self, tag: u64) {
        self.read(tag, tag % 1000);
        self.submit();
        let done = self.wait_all();
        assert!(matches!(done[..], [Done { status: 0, .. }]), "{done:?}");
    }

    /// What came back since the last time.
    pub fn take_done(&mut self) -> Vec<Done> {
        let mut done = Vec::new();
        for (head, _) in self.driver.take_used() {
            let (tag, slot) = self
                .asked
                .remove(&head)
                .expect("was asked, and not answered");
            self.free.push(slot);
            done.push(Done {
                tag,
                status: self.memory.read(slot.status, 1)[0],
                byte: self.memory.read(slot.data, 1)[0],
            });
        }
        done
    }

    /// Sleeps until at least one request came back, as a driver does.
    #[track_caller]
    pub fn wait_some(&mut self) -> Vec<Done> {
        loop {
            let done = self.take_done();
            if !done.is_empty() {
                return done;
            }
            if !self.driver.wait_for_next_used() {
                self.signals += wait_for(&self.call, "a signal");
            }
        }
    }

    /// Sleeps until all is answered, and sorts the answers by tag.
    #[track_caller]
    pub fn wait_all(&mut self) -> Vec<Done> {
        let mut done = self.take_done();
        while self.in_flight() > 0 {
            done.extend(self.wait_some());
        }
        done.sort_unstable_by_key(|done| done.tag);
        done
    }
}

/// Guest memory that has nothing to do with a guest's.
pub fn elsewhere() -> Arc<GuestMemory> {
    TestMemory::with_regions(&[(0x4000_0000, 1 << 20)]).guest_memory()
}

/// A disk that takes `latency_ns` for everything.
pub fn null_disk(latency_ns: u64) -> Arc<Node> {
    let options = NodeOptions::Null(NullOptions {
        size: DISK_BYTES,
        read_zeroes: false,
        latency_ns,
    });
    Node::open("null", false, &options).unwrap()
}

/// A file behind direct I/O and Linux AIO, gone with the folder.
pub fn file_disk() -> (Arc<Node>, TempDir) {
    disk_by(Aio::Native)
}

/// A filter in front of a node.
pub fn filter(node: &Arc<Node>, rules: &[FaultRule]) -> (Arc<Node>, Arc<Faults>) {
    let (rules, seed) = (rules.to_vec(), 0);
    let faults = Faults::new(FaultRules { rules, seed });
    let filter = Node::new_filter("filter", node, faults.clone(), false, true);
    (filter, faults)
}

/// The engines that carry requests by themselves.
pub const CARRIERS: [Aio; 2] = [Aio::Native, Aio::IoUring];

/// A file behind direct I/O, gone with the folder.
pub fn disk_by(aio: Aio) -> (Arc<Node>, TempDir) {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0; usize::try_from(DISK_BYTES).unwrap()]).unwrap();
    let options = NodeOptions::File(file_options(&path, aio));
    (Node::open("disk", false, &options).unwrap(), folder)
}
