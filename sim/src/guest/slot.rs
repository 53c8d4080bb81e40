//! Memory for one request: header, data and status, with guard bytes around them.

use virtqueue::testing::{Buffer, TestMemory};

use crate::model::SECTOR;
use crate::plan::{Kind, MAX_SECTORS};

/// From one slot to the next, bytes.
pub const SLOT: u64 = 0x1800;
const HEADER: u64 = 0x40;
const RANGE: u64 = 0x60;
const STATUS: u64 = 0x91;
const DATA: u64 = 0x200;
/// What is in a slot where nothing else is.
const FILL: u8 = 0xa5;
/// What a status byte says before the device has.
const UNANSWERED: u8 = 0xaa;
/// Bytes of an answer to `GET_ID`.
const ID_BYTES: usize = 20;

/// The memory of one request.
#[derive(Debug)]
pub struct Slot {
    addr: u64,
    expected: Vec<u8>,
}

/// What the device is to find in it.
pub struct Contents<'a> {
    /// What is asked for.
    pub kind: Kind,
    /// Where on the disk.
    pub sector: u64,
    /// How much.
    pub sectors: u64,
    /// How it lies in memory: bits.
    pub shape: u32,
    /// Of a write.
    pub data: &'a [u8],
    /// Where direct I/O wants data, bytes.
    pub alignment: u32,
}

impl Slot {
    /// At a guest address.
    pub fn new(addr: u64) -> Self {
        Slot {
            addr,
            expected: Vec::new(),
        }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).expect("small");
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Fills the slot and returns the buffers of the request.
    pub fn fill(&mut self, memory: &TestMemory, contents: &Contents<'_>) -> Vec<Buffer> {
        let Contents {
            kind,
            sector,
            sectors,
            shape,
            data,
            alignment,
        } = *contents;
        self.expected.clear();
        self.expected
            .resize(usize::try_from(SLOT).expect("small"), FILL);
        let number: u32 = match kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Flush => 4,
            Kind::GetId => 8,
            Kind::Discard => 11,
            Kind::WriteZeroes => 13,
            Kind::Unknown => 77,
        };
        self.put(HEADER, &number.to_le_bytes());
        self.put(HEADER + 8, &sector.to_le_bytes());
        self.put(STATUS, &[UNANSWERED]);
        let mut buffers = Vec::new();
        // The header may be in two pieces.
        let cut = if shape & 1 == 1 { 7 } else { 16 };
        buffers.push(Buffer::readable(self.addr + HEADER, cut));
        if cut < 16 {
            buffers.push(Buffer::readable(
                self.addr + HEADER + u64::from(cut),
                16 - cut,
            ));
        }
        match kind {
            Kind::Read | Kind::Write | Kind::GetId => {
                let len = match kind {
                    Kind::GetId => ID_BYTES,
                    _ => usize::try_from(sectors).expect("few") * SECTOR,
                };
                // Often where direct I/O can have it, else anywhere.
                let odd = if shape >> 1 & 7 == 1 {
                    1 + u64::from(shape >> 4 & 15)
                } else {
                    0
                };
                let at = (self.addr + DATA).next_multiple_of(u64::from(alignment).max(64))
                    - self.addr
                    + odd;
                self.put(at, data);
                let writable = kind != Kind::Write;
                self.pieces(&mut buffers, (at, len), shape >> 8, writable);
            }
            Kind::Discard | Kind::WriteZeroes => {
                let count = u32::try_from(sectors).expect("few");
                let unmap = u32::from(kind == Kind::WriteZeroes && shape >> 8 & 1 == 1);
                self.put(RANGE, &sector.to_le_bytes());
                self.put(RANGE + 8, &count.to_le_bytes());
                self.put(RANGE + 12, &unmap.to_le_bytes());
                buffers.push(Buffer::readable(self.addr + RANGE, 16));
            }
            Kind::Flush | Kind::Unknown => {}
        }
        buffers.push(Buffer::writable(self.addr + STATUS, 1));
        memory.write(self.addr, &self.expected);
        buffers
    }

    /// Data in one piece or several, at sectors or anywhere.
    fn pieces(
        &self,
        buffers: &mut Vec<Buffer>,
        (at, len): (u64, usize),
        shape: u32,
        writable: bool,
    ) {
        let mut left = u32::try_from(len).expect("small");
        let mut addr = self.addr + at;
        let mut bits = shape;
        while left > 0 {
            let here = match bits & 3 {
                0 | 1 => left,
                2 => left.min(512),
                _ if shape >> 16 & 3 == 0 => left.min(104),
                _ => left.min(1024),
            };
            buffers.push(Buffer {
                addr,
                len: here,
                writable,
            });
            addr += u64::from(here);
            left -= here;
            bits >>= 2;
        }
    }

    /// The status byte, if it was written.
    pub fn status(&self, memory: &TestMemory) -> Option<u8> {
        let status = memory.read(self.addr + STATUS, 1)[0];
        (status != UNANSWERED).then_some(status)
    }

    /// The device may have written these buffers and the status; what it wrote into the buffers. Nothing else has changed.
    pub fn written(&mut self, memory: &TestMemory, buffers: &[Buffer]) -> Result<Vec<u8>, String> {
        let found = memory.read(self.addr, self.expected.len());
        let mut data = Vec::new();
        for buffer in buffers.iter().filter(|buffer| buffer.writable) {
            let at = usize::try_from(buffer.addr - self.addr).expect("small");
            let range = at..at + buffer.len as usize;
            data.extend_from_slice(&found[range.clone()]);
            self.expected[range.clone()].copy_from_slice(&found[range]);
        }
        // The last of it is the status.
        data.pop();
        if found == self.expected {
            return Ok(data);
        }
        if let Some(at) = (0..found.len()).find(|at| found[*at] != self.expected[*at]) {
            return Err(format!(
                "byte {at:#x} of a request's memory was changed from {:#04x} to {:#04x}: no request allows that",
                self.expected[at], found[at]
            ));
        }
        Ok(data)
    }

    /// Whether the memory is unchanged.
    pub fn is_as_left(&self, memory: &TestMemory) -> bool {
        memory.read(self.addr, self.expected.len()) == self.expected
    }
}

const _: () = assert!(DATA + 512 + 32 + MAX_SECTORS as u64 * SECTOR as u64 <= SLOT);
