//! The disk: what it holds, what of that survives a power failure, and the requests that it has.
//!
//! Everything that was written is in a *history* until it is stable. A flush makes stable what had been carried out when it
//! came to the disk, and nothing else. At a power failure each piece of what is not stable survives or does not.

use std::collections::{BTreeMap, VecDeque};

use block::{Op, Request};
use engine::Errno;

use crate::dirty_sectors::DirtySectors;
use crate::model::SECTOR;
use crate::random::Random;

/// A power failure tears sectors into these, bytes.
const PIECE: usize = 128;

/// A completed write.
#[derive(Debug)]
struct CompletedWrite {
    number: u64,
    offset: usize,
    bytes: Vec<u8>,
    stable: bool,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// Read.
    Read,
    /// Write, to be stable when it is done or not.
    Write {
        /// It is.
        stable: bool,
    },
    /// Flush.
    Flush,
    /// Write zeroes, so many.
    Zeroes {
        /// Bytes.
        len: usize,
    },
}

/// Identifies a request in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId {
    /// Whose it is.
    pub iothread: usize,
    /// What that calls it.
    pub cookie: u64,
}

/// What workers do has no name.
const OF_WORKER: RequestId = RequestId {
    iothread: usize::MAX,
    cookie: 0,
};

/// A request in flight in the kernel.
#[derive(Debug)]
pub struct DiskRequest {
    /// Its name.
    pub name: RequestId,
    /// What it does.
    pub does: DiskOp,
    /// Where, bytes.
    pub offset: usize,
    /// Address and length of each of its buffers.
    pub buffers: Vec<(usize, usize)>,
    /// Of a flush: what it makes stable.
    covers: Vec<u64>,
    /// Where the request began that this is the rest of.
    pub began: usize,
}

impl DiskRequest {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.does {
            DiskOp::Zeroes { len } => len,
            _ => self.buffers.iter().map(|(_, len)| len).sum(),
        }
    }

    /// Whether it transfers nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The disk.
#[derive(Debug)]
pub struct Disk {
    bytes: Vec<u8>,
    stable: Vec<u8>,
    history: VecDeque<CompletedWrite>,
    next: u64,
    /// Requests that were carried out in part, by name: where the rest begins, and where they began.
    parts: BTreeMap<RequestId, (usize, usize)>,
    /// The requests in flight in the kernel, in order.
    pub held: Vec<DiskRequest>,
    /// The first violation of an invariant.
    pub wrong: Option<String>,
    /// What has changed.
    pub marks: DirtySectors,
}

impl Disk {
    /// Of zeroes.
    #[must_use]
    pub fn new(sectors: usize) -> Self {
        Disk {
            bytes: vec![0; sectors * SECTOR],
            stable: vec![0; sectors * SECTOR],
            history: VecDeque::new(),
            next: 0,
            parts: BTreeMap::new(),
            held: Vec::new(),
            wrong: None,
            marks: DirtySectors::default(),
        }
    }

    /// What it holds.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it would hold after a power failure that loses all that may be lost.
    #[must_use]
    pub fn stable_bytes(&self) -> &[u8] {
        &self.stable
    }

    /// The beginning of the next data or hole from a byte on, if there is any. Sectors of zeroes are holes.
    #[must_use]
    pub fn next_data_or_hole(&self, is_data: bool, from: u64) -> Option<u64> {
        let first = to_usize(from) / SECTOR;
        let sectors = self.bytes.chunks(SECTOR).enumerate().skip(first);
        let mut found = sectors.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0) == is_data);
        let (sector, _) = found.next()?;
        Some(from.max((sector * SECTOR) as u64))
    }

    /// Another size; what it gains is zeroes, and no power failure changes that.
    pub fn resize(&mut self, sectors: usize) {
        let len = sectors * SECTOR;
        self.bytes.resize(len, 0);
        self.stable.resize(len, 0);
        for written in &mut self.history {
            let fits = len.saturating_sub(written.offset);
            written.bytes.truncate(fits);
        }
    }

    /// The kernel takes a request.
    pub fn take(
        &mut self,
        name: RequestId,
        does: DiskOp,
        offset: usize,
        buffers: Vec<(usize, usize)>,
    ) {
        let covers = match does {
            DiskOp::Flush => self.history.iter().map(|written| written.number).collect(),
            _ => Vec::new(),
        };
        let began = match self.parts.get(&name) {
            Some(&(rest, began)) if rest == offset => began,
            _ => offset,
        };
        let held = DiskRequest {
            name,
            does,
            offset,
            buffers,
            covers,
            began,
        };
        let end = offset + held.len();
        if end > self.bytes.len() && does != DiskOp::Flush {
            self.wrong.get_or_insert(format!(
                "a request reaches byte {end} of a disk of {} bytes",
                self.bytes.len()
            ));
        }
        self.held.push(held);
    }

    /// Carries out as much as `max` bytes of a held request, which is not held any more; how many bytes that were.
    ///
    /// # Safety
    /// Its buffers are valid.
    pub unsafe fn carry_out(&mut self, index: usize, max: usize) -> (DiskRequest, usize) {
        let held = self.held.remove(index);
        // SAFETY: our caller promises the same.
        let moved = unsafe { self.transfer(&held, max) };
        if moved < held.len() {
            let rest = held.offset + moved;
            self.parts.insert(held.name, (rest, held.began));
        }
        (held, moved)
    }

    /// # Safety
    /// Its buffers are valid.
    unsafe fn transfer(&mut self, held: &DiskRequest, max: usize) -> usize {
        match held.does {
            DiskOp::Flush => {
                self.flush(|number| held.covers.contains(&number));
                0
            }
            DiskOp::Read => {
                let end = (held.offset + max.min(held.len())).min(self.bytes.len());
                let bytes = self.bytes.get(held.offset..end).unwrap_or_default();
                // SAFETY: our caller promises the same.
                unsafe { scatter(&held.buffers, bytes) };
                bytes.len()
            }
            DiskOp::Write { stable } => {
                // SAFETY: our caller promises the same.
                let bytes = unsafe { gather(&held.buffers, max) };
                let len = bytes.len();
                self.write(held.offset, bytes, stable);
                len
            }
            DiskOp::Zeroes { len } => {
                self.write(held.offset, vec![0; len.min(max)], false);
                0
            }
        }
    }

    fn write(&mut self, offset: usize, mut bytes: Vec<u8>, stable: bool) {
        bytes.truncate(self.bytes.len().saturating_sub(offset));
        let end = offset + bytes.len();
        self.bytes[offset..end].copy_from_slice(&bytes);
        self.marks.changed(offset as u64..end as u64);
        self.next += 1;
        self.history.push_back(CompletedWrite {
            number: self.next,
            offset,
            bytes,
            stable,
        });
        self.settle();
    }

    /// All that was written is stable.
    pub fn flush_all(&mut self) {
        self.flush(|_| true);
    }

    fn flush(&mut self, covers: impl Fn(u64) -> bool) {
        for written in &mut self.history {
            written.stable |= covers(written.number);
        }
        self.settle();
    }

    /// What is stable at the beginning of the history leaves it.
    fn settle(&mut self) {
        while let Some(written) = self.history.pop_front_if(|written| written.stable) {
            put(&mut self.stable, &written, |_| true);
        }
    }

    /// The requests of an iothread are not held any more.
    pub fn forget(&mut self, iothread: usize) {
        self.held.retain(|held| held.name.iothread != iothread);
    }

    /// The process that had requests here has ended: each of them is carried out, or is not, or in part.
    ///
    /// # Safety
    /// Their buffers are valid.
    pub unsafe fn abandon(&mut self, random: &mut Random) {
        self.parts.clear();
        while !self.held.is_empty() {
            let index = random.index(self.held.len());
            let len = self.held[index].len();
            let max = match random.below(4) {
                0 => 0,
                1 => random.index(len / 8 + 1) * 8,
                _ => len,
            };
            if self.held[index].does == DiskOp::Flush && max == 0 && random.one_in(2) {
                self.held.remove(index);
                continue;
            }
            // SAFETY: our caller promises the same.
            unsafe { self.carry_out(index, max) };
        }
    }

    /// Power has failed. What was under way may have happened, and of what is not stable each piece survives or does not.
    ///
    /// # Safety
    /// The buffers of what is held are valid.
    pub unsafe fn fail(&mut self, random: &mut Random) {
        // SAFETY: our caller promises the same.
        unsafe { self.abandon(random) };
        let mut left = std::mem::take(&mut self.stable);
        // All, nothing, or some of it.
        let odds = random.pick(&[0, 1, 2, 2, 8]);
        for written in self.history.drain(..) {
            put(&mut left, &written, |_| {
                written.stable || odds != 0 && random.one_in(odds)
            });
        }
        self.bytes.clone_from(&left);
        self.stable = left;
    }

    /// What a worker thread does.
    ///
    /// # Safety
    /// The request's segments are valid.
    pub unsafe fn work(&mut self, request: &Request) -> Result<(), Errno> {
        let Request {
            offset, len, fua, ..
        } = *request;
        let (offset, len) = (to_usize(offset), to_usize(len));
        // SAFETY: our caller vouches for the list.
        let buffers = unsafe { segments(request.iov as usize, request.iov_count as usize) };
        let does = match request.op {
            Op::Read => DiskOp::Read,
            Op::Write => DiskOp::Write { stable: fua },
            Op::Flush => DiskOp::Flush,
            Op::Discard | Op::WriteZeroes { .. } => {
                self.write(offset, vec![0; len], fua);
                return Ok(());
            }
        };
        self.take(OF_WORKER, does, offset, buffers);
        let last = self.held.len() - 1;
        // SAFETY: our caller promises the same.
        unsafe { self.carry_out(last, len) };
        Ok(())
    }
}

/// Puts those pieces of what was written where they belong.
fn put(to: &mut [u8], written: &CompletedWrite, mut survives: impl FnMut(usize) -> bool) {
    let CompletedWrite { offset, bytes, .. } = written;
    let mut from = 0;
    while from < bytes.len() {
        let at = offset + from;
        let end = (from + PIECE - at % PIECE).min(bytes.len());
        if survives(at) {
            to[at..offset + end].copy_from_slice(&bytes[from..end]);
        }
        from = end;
    }
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("a small disk")
}

/// Address and length of each of the `count` segments in the array at this address.
///
/// # Safety
/// The array is valid.
pub unsafe fn segments(address: usize, count: usize) -> Vec<(usize, usize)> {
    if count == 0 {
        return Vec::new();
    }
    let list = std::ptr::with_exposed_provenance::<libc::iovec>(address);
    // SAFETY: our caller promises that it is valid.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    list.iter()
        .map(|segment| (segment.iov_base as usize, segment.iov_len))
        .collect()
}

/// What is in these buffers (address, length), `max` bytes of it at most.
///
/// # Safety
/// The buffers are valid.
unsafe fn gather(buffers: &[(usize, usize)], max: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for &(address, len) in buffers {
        let len = len.min(max - bytes.len());
        let from = std::ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: our caller promises that they can be read; guest memory has no references to it.
        unsafe {
            bytes.reserve(len);
            from.copy_to_nonoverlapping(bytes.as_mut_ptr().add(bytes.len()), len);
            bytes.set_len(bytes.len() + len);
        }
    }
    bytes
}

/// # Safety
/// The buffers are valid, and together as long as the bytes at least.
unsafe fn scatter(buffers: &[(usize, usize)], mut bytes: &[u8]) {
    for &(address, len) in buffers {
        let (here, rest) = bytes.split_at(len.min(bytes.len()));
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: our caller promises that they can be written.
        unsafe { to.copy_from_nonoverlapping(here.as_ptr(), here.len()) };
        bytes = rest;
    }
}
