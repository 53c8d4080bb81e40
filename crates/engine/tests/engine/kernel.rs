//! The real kernel, with its completion ring or without one.

use std::ptr::NonNull;

use engine::aio::ContextId;
use engine::aio::abi::{IoEvent, Iocb, RingHeader};
use engine::{AioKernel, Errno, Kernel};

/// The kernel that this process runs on, optionally with a ring that cannot be read.
#[derive(Clone, Copy)]
pub struct MaybeRing {
    pub ring: bool,
}

// SAFETY: it does what the kernel does; a ring that is not shown is not read.
unsafe impl AioKernel for MaybeRing {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        Kernel.setup(max_events)
    }

    unsafe fn submit(&mut self, context: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        // SAFETY: our caller promises the same.
        unsafe { Kernel.submit(context, iocbs) }
    }

    unsafe fn pread_or_pwrite(&mut self, iocb: &Iocb) -> i64 {
        // SAFETY: our caller promises the same.
        unsafe { Kernel.pread_or_pwrite(iocb) }
    }

    fn now_ns(&self) -> u64 {
        Kernel.now_ns()
    }

    fn getevents(&mut self, context: ContextId, events: &mut [IoEvent]) -> Result<usize, Errno> {
        Kernel.getevents(context, events)
    }

    fn destroy(&mut self, context: ContextId) {
        Kernel.destroy(context);
    }

    fn ring(&self, context: ContextId) -> Option<NonNull<RingHeader>> {
        self.ring.then(|| Kernel.ring(context)).flatten()
    }

    fn supports_fdsync(&mut self, context: ContextId) -> bool {
        Kernel.supports_fdsync(context)
    }
}
