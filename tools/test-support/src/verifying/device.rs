//! Requests of a block device, and of a disk behind a SCSI controller.

use virtqueue::testing::{Buffer, TestMemory};

use super::blocks::BLOCK;

/// `VHOST_USER_F_PROTOCOL_FEATURES`, `VIRTIO_F_VERSION_1`, `VIRTIO_RING_F_EVENT_IDX`
const FEATURES: u64 = 1 << 30 | 1 << 32 | 1 << 29;
/// `VIRTIO_BLK_F_FLUSH`
const BLK_FLUSH: u64 = 1 << 9;

const BLK_HEADER_BYTES: u32 = 16;
/// A SCSI command and its response, VIRTIO 1.2, section 5.6.6.1.
const COMMAND_BYTES: u32 = 51;
const RESPONSE_BYTES: u32 = 108;
/// In a response: the status, and the sense key.
const STATUS: usize = 10;
const SENSE_KEY: usize = 12 + 2;
const CHECK_CONDITION: u8 = 2;
const UNIT_ATTENTION: u8 = 6;
/// What a device does not answer.
const UNANSWERED: u8 = 0xee;

const SECTORS: usize = BLOCK / 512;

/// The kind of device that a guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// virtio-blk.
    Blk,
    /// virtio-scsi, with one unit.
    Scsi,
}

/// A request, of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// All of the disk is made durable.
    Flush,
}

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// A SCSI disk that was powered on says so once, instead.
    Again,
}

/// Memory of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestMemory {
    header: u64,
    /// That of its block.
    pub data: u64,
    answer: u64,
}

impl RequestMemory {
    /// Memory for a request.
    #[must_use]
    pub fn new(memory: &TestMemory) -> Self {
        RequestMemory {
            header: memory.alloc(COMMAND_BYTES.into(), 16),
            data: memory.alloc(BLOCK as u64, BLOCK as u64),
            answer: memory.alloc(RESPONSE_BYTES.into(), 16),
        }
    }
}

impl Device {
    /// The features that a guest chooses.
    #[must_use]
    pub fn features(self) -> u64 {
        match self {
            Device::Blk => FEATURES | BLK_FLUSH,
            Device::Scsi => FEATURES,
        }
    }

    /// Queues before the first that takes requests.
    #[must_use]
    pub fn first_queue(self) -> usize {
        match self {
            Device::Blk => 0,
            Device::Scsi => 2,
        }
    }

    /// Writes a request, but for its data, and says which buffers it has.
    #[must_use]
    pub fn request(
        self,
        memory: &TestMemory,
        room: RequestMemory,
        op: Op,
        block: usize,
    ) -> Vec<Buffer> {
        let sector = u32::try_from(block * SECTORS).unwrap();
        memory.fill(room.answer, RESPONSE_BYTES as usize, UNANSWERED);
        let len = u32::try_from(BLOCK).unwrap();
        let data_in = (op == Op::Read).then(|| Buffer::writable(room.data, len));
        let data_out = (op == Op::Write).then(|| Buffer::readable(room.data, len));
        match self {
            Device::Blk => {
                let kind: u32 = match op {
                    Op::Read => 0,
                    Op::Write => 1,
                    Op::Flush => 4,
                };
                let sector = if op == Op::Flush { 0 } else { sector };
                let header = [u64::from(kind), u64::from(sector)].map(u64::to_le_bytes);
                memory.write(room.header, &header.concat());
                let header = Buffer::readable(room.header, BLK_HEADER_BYTES);
                let answer = Buffer::writable(room.answer, 1);
                let all = [Some(header), data_out, data_in, Some(answer)];
                all.into_iter().flatten().collect()
            }
            Device::Scsi => {
                let code = match op {
                    Op::Read => 0x28,
                    Op::Write => 0x2a,
                    Op::Flush => 0x35,
                };
                let count = if op == Op::Flush { 0 } else { SECTORS };
                let mut bytes = vec![1, 0, 0x40, 0, 0, 0, 0, 0];
                // Its tag: no other request in flight is in the same place.
                bytes.extend(room.header.to_le_bytes());
                bytes.extend([0, 0, 0, code, 0]);
                bytes.extend(if op == Op::Flush {
                    [0; 4]
                } else {
                    sector.to_be_bytes()
                });
                bytes.extend([0, 0, u8::try_from(count).unwrap(), 0]);
                bytes.resize(COMMAND_BYTES as usize, 0);
                memory.write(room.header, &bytes);
                let header = Buffer::readable(room.header, COMMAND_BYTES);
                let answer = Buffer::writable(room.answer, RESPONSE_BYTES);
                let all = [Some(header), data_out, Some(answer), data_in];
                all.into_iter().flatten().collect()
            }
        }
    }

    /// Panics if it has failed.
    #[must_use]
    pub fn outcome(self, memory: &TestMemory, room: RequestMemory) -> Outcome {
        let answer = memory.read(room.answer, RESPONSE_BYTES as usize);
        match self {
            Device::Blk => {
                assert_eq!(answer[0], 0, "the status");
                Outcome::Done
            }
            Device::Scsi => match (answer[STATUS], answer[STATUS + 1]) {
                (0, 0) => Outcome::Done,
                (CHECK_CONDITION, 0) if answer[SENSE_KEY] & 0xf == UNIT_ATTENTION => Outcome::Again,
                (status, response) => {
                    panic!("status {status:#x}, response {response}: {answer:x?}")
                }
            },
        }
    }
}
