//! The kernel that this process runs on, and a record of what it is given and what it completes.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::aio::ContextId;
use engine::aio::abi::{IoEvent, Iocb, RingHeader};
use engine::{AioKernel, Errno, Kernel};

use crate::disk::{DiskOp, gather};
use crate::kernel::aio::{buffers, does};

/// A recorded request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// What it does.
    pub does: DiskOp,
    /// Where, bytes.
    pub offset: usize,
    /// Of a write.
    pub bytes: Vec<u8>,
    /// When the kernel took it.
    pub taken: u64,
    /// When it had succeeded.
    pub done: Option<u64>,
}

/// What has happened so far.
#[derive(Debug, Default)]
pub struct Log {
    /// In the order of taking.
    pub requests: Vec<RecordedRequest>,
    /// How many things have happened.
    pub clock: u64,
    /// What the kernel has, by name.
    under_way: BTreeMap<u64, usize>,
}

/// A kernel that records its requests.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Log>>);

impl Recorder {
    /// What has happened so far.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: it does what the kernel does, without a ring.
unsafe impl AioKernel for Recorder {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        Kernel.setup(max_events)
    }

    unsafe fn submit(&mut self, context: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        let copies = iocbs.iter().map(|&iocb| {
            // SAFETY: the engine promises that control blocks, and what they name, are valid.
            unsafe {
                let list = buffers(&*iocb);
                let does = does(&*iocb);
                let bytes = match does {
                    DiskOp::Write { .. } => gather(&list, usize::MAX),
                    DiskOp::Read | DiskOp::Flush | DiskOp::Zeroes { .. } => Vec::new(),
                };
                (does, bytes)
            }
        });
        let copies: Vec<_> = copies.collect();
        // SAFETY: our caller promises the same.
        let count = unsafe { Kernel.submit(context, iocbs) }?;
        let mut log = self.log();
        for (&iocb, (does, bytes)) in iocbs.iter().zip(copies).take(count) {
            // SAFETY: as above.
            let Iocb { data, offset, .. } = unsafe { *iocb };
            log.clock += 1;
            let taken = log.clock;
            let index = log.requests.len();
            log.under_way.insert(data, index);
            log.requests.push(RecordedRequest {
                does,
                offset: usize::try_from(offset).expect("a small disk"),
                bytes,
                taken,
                done: None,
            });
        }
        Ok(count)
    }

    unsafe fn pread_or_pwrite(&mut self, iocb: &Iocb) -> i64 {
        // SAFETY: our caller promises the same.
        unsafe { Kernel.pread_or_pwrite(iocb) }
    }

    fn now_ns(&self) -> u64 {
        Kernel.now_ns()
    }

    fn getevents(&mut self, context: ContextId, events: &mut [IoEvent]) -> Result<usize, Errno> {
        let count = Kernel.getevents(context, events)?;
        let mut log = self.log();
        for event in &events[..count] {
            log.clock += 1;
            let now = log.clock;
            if let Some(index) = log.under_way.remove(&event.data)
                && event.res >= 0
            {
                log.requests[index].done = Some(now);
            }
        }
        Ok(count)
    }

    fn destroy(&mut self, context: ContextId) {
        Kernel.destroy(context);
    }

    fn ring(&self, _: ContextId) -> Option<NonNull<RingHeader>> {
        // Else completions would not come past here.
        None
    }

    fn supports_fdsync(&mut self, context: ContextId) -> bool {
        Kernel.supports_fdsync(context)
    }
}
