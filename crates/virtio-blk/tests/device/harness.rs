//! A device, its queue, a guest driver, and a sink that keeps what it is given.

use std::sync::Arc;

use block::{DiscardLimits, DiskCall, DiskIo, Geometry, Op, Request, SECTOR_BYTES};
use engine::{Completion, Errno};
use libc::iovec;
use telemetry::queue::{AdmissionEnd, QueueName, QueueStats};
use virtio_blk::{AdmitError, Device, DeviceOptions, Queue, Status};
use virtqueue::testing::{Buffer, DriverRing, TestMemory};
use virtqueue::{Chain, RingFeatures};

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
pub const UNSUPP: u8 = 2;
/// What a status byte holds before the device has answered.
pub const UNANSWERED: u8 = 0xaa;
/// What a buffer for the device to write holds before it has.
pub const UNTOUCHED: u8 = 0x55;

pub const CAPACITY_SECTORS: u64 = 2048;
pub const MAX_DISCARD_SECTORS: u32 = 1024;

/// What the sink was given.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub op: Op,
    pub fua: bool,
    pub offset: u64,
    pub len: u64,
    pub segments: Vec<iovec>,
    pub slot: u32,
}

/// A sink with as much room as a test says.
pub struct FakeSink {
    pub room: usize,
    pub merging_helps: bool,
    pub disk_bytes: u64,
    pub submitted: Vec<Submitted>,
}

impl DiskIo for FakeSink {
    fn room(&self, _: u32) -> usize {
        self.room
    }

    fn merging_helps(&self, _: u32) -> bool {
        self.merging_helps
    }

    unsafe fn submit(&mut self, _: u32, request: Request) {
        assert!(self.room > 0, "a request beyond the room");
        self.room -= 1;
        // SAFETY: the queue promises a valid list.
        let list = unsafe { std::slice::from_raw_parts(request.iov, request.iov_count as usize) };
        let bytes: u64 = list.iter().map(|segment| segment.iov_len as u64).sum();
        match request.op {
            Op::Read | Op::Write => assert_eq!(bytes, request.len, "segments are the length"),
            _ => assert_eq!(bytes, 0, "no data"),
        }
        assert!(request.offset + request.len <= self.disk_bytes);
        self.submitted.push(Submitted {
            op: request.op,
            fua: request.fua,
            offset: request.offset,
            len: request.len,
            segments: list.to_vec(),
            slot: u32::try_from(request.token).unwrap(),
        });
    }

    fn submit_blocking_call(&mut self, _: u32, _: DiskCall, _: u32) {
        unreachable!("a virtio-blk device calls nothing");
    }
}

/// A request that the guest made.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub head: u16,
    /// Where its data is.
    pub data: u64,
    pub status: u64,
}

pub struct Rig {
    pub device: Arc<Device>,
    pub memory: TestMemory,
    pub driver: DriverRing,
    pub ring: virtqueue::Queue,
    pub queue: Queue,
    pub chain: Chain,
    pub sink: FakeSink,
    pub stats: Arc<QueueStats>,
    /// The clock, in ticks.
    pub now: u64,
}

/// The geometry of the tests' disk.
pub fn geometry() -> Geometry {
    Geometry {
        size: CAPACITY_SECTORS * SECTOR_BYTES,
        logical_block_size: 512,
        physical_block_size: 4096,
        min_io_size: 0,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: 4096,
            max_bytes: u64::from(MAX_DISCARD_SECTORS) * SECTOR_BYTES,
        },
    }
}

pub fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    // The reserved field is ignored, whatever it says.
    bytes[4..8].fill(0x99);
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

/// The segment of a discard or write-zeroes request.
pub fn range(sector: u64, num_sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(num_sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

impl Rig {
    pub fn new(options: DeviceOptions) -> Rig {
        Rig::with(options, TestMemory::new(8 << 20), 128)
    }

    /// A device with these options, and its queue of `size` entries in `memory`.
    pub fn with(options: DeviceOptions, memory: TestMemory, size: u16) -> Rig {
        let features = RingFeatures {
            event_idx: false,
            indirect: true,
            packed: false,
        };
        let device = Arc::new(Device::new(options, geometry()).unwrap());
        let driver = DriverRing::new(&memory, size, features);
        let ring = driver.device_queue().into();
        let stats = Arc::new(QueueStats::new());
        Rig {
            queue: Queue::new(QueueName::new("test", 0), device.clone(), size, &stats),
            device,
            memory,
            driver,
            ring,
            chain: Chain::new(),
            sink: FakeSink {
                room: usize::MAX,
                merging_helps: true,
                disk_bytes: CAPACITY_SECTORS * SECTOR_BYTES,
                submitted: Vec::new(),
            },
            stats,
            now: 0,
        }
    }

    pub fn status_byte(&self) -> u64 {
        self.memory.alloc_bytes(&[UNANSWERED])
    }

    pub fn status(&self, asked: &Asked) -> u8 {
        self.memory.read(asked.status, 1)[0]
    }

    /// A request in the usual form: header, data out, data in, status, each a descriptor of its own.
    pub fn ask(&mut self, kind: u32, sector: u64, out: &[u8], in_len: u32) -> Asked {
        let status = self.status_byte();
        let mut buffers = vec![Buffer::readable(
            self.memory.alloc_bytes(&header(kind, sector)),
            16,
        )];
        let mut data = 0;
        if !out.is_empty() {
            data = self.memory.alloc_bytes(out);
            buffers.push(Buffer::readable(data, u32::try_from(out.len()).unwrap()));
        }
        if in_len > 0 {
            data = self.memory.alloc(u64::from(in_len), 512);
            self.memory.fill(data, in_len as usize, UNTOUCHED);
            buffers.push(Buffer::writable(data, in_len));
        }
        buffers.push(Buffer::writable(status, 1));
        let head = self.driver.add_indirect(&buffers);
        Asked { head, data, status }
    }

    pub fn read(&mut self, sector: u64, sectors: u32) -> Asked {
        self.ask(IN, sector, &[], sectors * 512)
    }

    pub fn write(&mut self, sector: u64, sectors: usize, byte: u8) -> Asked {
        self.ask(OUT, sector, &vec![byte; sectors * 512], 0)
    }

    /// Publishes what was asked, and admits.
    pub fn admit(&mut self, budget: usize) -> Result<AdmissionEnd, AdmitError> {
        self.driver.publish();
        let memory = &self.memory.guest_memory();
        self.queue.begin_batch(self.now);
        self.queue.admit_from_ring(
            &mut self.ring,
            memory,
            &mut self.chain,
            &mut self.sink,
            budget,
        )
    }

    /// Admits all there is.
    pub fn admit_all(&mut self) {
        assert_eq!(self.admit(usize::MAX), Ok(AdmissionEnd::Drained));
    }

    /// Completes one block request. One that has failed is answered as failed.
    pub fn complete(&mut self, submitted: &Submitted, result: Result<(), Errno>) {
        self.complete_batch(&[(submitted, result)]);
    }

    /// Completes block requests together.
    pub fn complete_batch(&mut self, done: &[(&Submitted, Result<(), Errno>)]) {
        let completion = |(submitted, result): &(&Submitted, _)| Completion {
            token: submitted.slot.into(),
            result: *result,
        };
        let done: Vec<_> = done.iter().map(completion).collect();
        let failed = |_: &Queue, _, _| Some(Status::IoErr);
        self.queue
            .complete_block_requests(&mut self.ring, &done, self.now, failed);
    }

    /// Completes everything that the sink has, in the order of submission.
    pub fn complete_all(&mut self) {
        let submitted = std::mem::take(&mut self.sink.submitted);
        let done: Vec<_> = submitted.iter().map(|one| (one, Ok(()))).collect();
        self.complete_batch(&done);
    }

    /// Publishes, and what the guest finds then.
    pub fn used(&mut self) -> Vec<(u16, u32)> {
        self.queue.record_batch_statistics();
        self.ring.publish();
        self.driver.take_used()
    }

    /// One request from beginning to end: its status, and what was asked of the disk.
    pub fn answer(
        &mut self,
        kind: u32,
        sector: u64,
        out: &[u8],
        in_len: u32,
    ) -> (u8, Vec<Submitted>) {
        let asked = self.ask(kind, sector, out, in_len);
        self.admit_all();
        let submitted = self.sink.submitted.clone();
        assert_eq!(
            self.queue.take_has_unpublished(),
            submitted.is_empty(),
            "answered at once, or by a completion"
        );
        self.complete_all();
        assert_eq!(
            self.used(),
            [(asked.head, in_len + 1)],
            "used.len is all that is writable"
        );
        assert_eq!(self.queue.in_flight(), 0);
        (self.status(&asked), submitted)
    }
}
