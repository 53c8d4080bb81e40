//! Linux AIO of the simulated kernel.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::aio::ContextId;
use engine::aio::abi::{
    AIO_RING_MAGIC, IOCB_CMD_FDSYNC, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE,
    IOCB_CMD_PWRITEV, IoEvent, Iocb, RWF_DSYNC, RingHeader,
};
use engine::{AioKernel, Errno};

use super::Kernel;
use crate::disk::{DiskOp, segments};

/// A unit of the ring's memory, with the size and alignment of the header and of an event.
#[repr(C, align(32))]
struct RingWord([u8; 32]);

/// The completion ring of an AIO context, which the process reads.
#[derive(Default)]
pub(super) struct CompletionRing(Vec<RingWord>);

impl CompletionRing {
    fn new(max_events: u32) -> Self {
        // The smallest ring for so many events: one entry stays free.
        let count = max_events + 1;
        let mut ring = CompletionRing((0..=count).map(|_| RingWord([0; 32])).collect());
        let new = RingHeader {
            id: 0,
            nr: count,
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            magic: AIO_RING_MAGIC,
            compat_features: 1,
            incompat_features: 0,
            header_length: 32,
        };
        // SAFETY: the header has the size and alignment of a word of the ring.
        unsafe { ring.header().write(new) };
        ring
    }

    /// The header, as a pointer to all of the ring.
    fn header(&mut self) -> *mut RingHeader {
        self.0.as_mut_ptr().cast()
    }

    /// Appends a completion.
    pub(super) fn post(&mut self, data: u64, result: i64) {
        let event = IoEvent {
            data,
            obj: 0,
            res: result,
            res2: 0,
        };
        let header = self.header();
        // SAFETY: the ring begins with the header, and as many events as it says are behind it; the engine accesses head and
        // tail with atomics only.
        unsafe {
            let count = (*header).nr;
            let tail = (*header).tail.load(Ordering::Relaxed);
            let next = (tail + 1) % count;
            assert_ne!(next, (*header).head.load(Ordering::Acquire), "ring overrun");
            let events = header.add(1).cast::<IoEvent>();
            events.add(tail as usize).write(event);
            (*header).tail.store(next, Ordering::Release);
        }
    }
}

/// Address and length of each buffer of a request.
///
/// # Safety
/// The array of a vectored request is valid.
unsafe fn buffers(iocb: &Iocb) -> Vec<(usize, usize)> {
    let to_usize = |number| usize::try_from(number).expect("an address");
    let (address, count) = (to_usize(iocb.buf), to_usize(iocb.nbytes));
    match iocb.opcode {
        IOCB_CMD_FDSYNC => Vec::new(),
        // SAFETY: our caller promises that it is valid.
        IOCB_CMD_PREADV | IOCB_CMD_PWRITEV => unsafe { segments(address, count) },
        _ => vec![(address, count)],
    }
}

/// What a request does.
fn does(iocb: &Iocb) -> DiskOp {
    match iocb.opcode {
        IOCB_CMD_PREAD | IOCB_CMD_PREADV => DiskOp::Read,
        IOCB_CMD_PWRITE | IOCB_CMD_PWRITEV => DiskOp::Write {
            stable: iocb.rw_flags & RWF_DSYNC != 0,
        },
        IOCB_CMD_FDSYNC => DiskOp::Flush,
        other => panic!("no such operation: {other}"),
    }
}

// SAFETY: the ring is allocated in `setup`, and is as large as its header says until the next one; buffers are only
// touched when the simulator completes a request, which it does not after `destroy`.
unsafe impl AioKernel for Kernel {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        let mut state = self.state();
        state.contexts[self.iothread].aio = CompletionRing::new(max_events);
        Ok(ContextId(1))
    }

    unsafe fn submit(&mut self, _: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        let mut state = self.state();
        let answer = state.answers.pop_front();
        let count = answer.unwrap_or(Ok(iocbs.len()))?.min(iocbs.len());
        for &iocb in &iocbs[..count] {
            // SAFETY: the engine promises that control blocks, and what they name, are valid.
            let (iocb, buffers) = unsafe { (*iocb, buffers(&*iocb)) };
            let offset = usize::try_from(iocb.offset).expect("a small disk");
            state
                .came
                .extend(buffers.first().map(|(address, _)| *address));
            let name = self.name(iocb.data);
            let disk = state.disk_of(iocb.fildes.cast_signed());
            disk.take(name, does(&iocb), offset, buffers);
        }
        Ok(count)
    }

    unsafe fn pread_or_pwrite(&mut self, iocb: &Iocb) -> i64 {
        let mut state = self.state();
        // SAFETY: our caller promises that the buffers are valid.
        let moved = unsafe {
            let offset = usize::try_from(iocb.offset).expect("a small disk");
            let buffers = buffers(iocb);
            let name = self.name(iocb.data);
            let disk = state.disk_of(iocb.fildes.cast_signed());
            disk.take(name, does(iocb), offset, buffers);
            let last = disk.held.len() - 1;
            disk.carry_out(last, usize::MAX).1
        };
        i64::try_from(moved).expect("a small disk")
    }

    fn now_ns(&self) -> u64 {
        let mut state = self.state();
        state.now_ns += 100;
        state.now_ns
    }

    fn getevents(&mut self, _: ContextId, _: &mut [IoEvent]) -> Result<usize, Errno> {
        Ok(0)
    }

    fn destroy(&mut self, _: ContextId) {
        self.state().forget(self.iothread);
    }

    fn ring(&self, _: ContextId) -> Option<NonNull<RingHeader>> {
        NonNull::new(self.state().contexts[self.iothread].aio.header())
    }

    fn supports_fdsync(&mut self, _: ContextId) -> bool {
        true
    }
}
