//! io_uring of the simulator: the trait that its ring implements, and the engine on such a ring.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use engine::uring::{BufferError, Ring};
use engine::{Errno, UringSettings, UringStats};
use io_uring::squeue;

/// A ring of the simulator: [`engine::uring::Ring`] without types of the `io_uring` crate.
///
/// # Safety
/// As for that trait: every submitted entry completes once, with its own user data, and after that nothing that it names is
/// accessed.
pub unsafe trait SimulatedRing {
    /// Entries of the submission queue.
    fn sq_entries(&self) -> u32;
    /// Writes an entry in the kernel's format, `struct io_uring_sqe`.
    ///
    /// # Safety
    /// What it names is valid until its completion.
    unsafe fn push(&mut self, entry: [u64; 8]);
    /// io_uring_enter(2) for the oldest `count` entries, which may finish completions as well.
    ///
    /// # Errors
    /// The kernel's error; no entry was taken.
    fn submit(&mut self, count: u32, finish: bool) -> Result<usize, Errno>;
    /// io_uring_enter(2) that makes completions visible, one at least with `wait`.
    fn make_completions_visible(&mut self, wait: bool);
    /// Whether there are completions that `make_completions_visible` would make visible.
    fn has_unflushed_completions(&self) -> bool;
    /// How many completions are visible.
    fn visible_completion_count(&self) -> usize;
    /// Takes the next visible completion: user data and result.
    fn pop_completion(&mut self) -> Option<(u64, i32)>;
    /// Switches writes to the eventfd off or on.
    fn set_eventfd_disabled_if_possible(&mut self, quiet: bool);
}

/// Makes the simulator's ring a [`Ring`] for the engine.
pub(crate) struct SimulatedRingAdapter(Box<dyn SimulatedRing>);

// SAFETY: what it promises is what the ring inside does.
unsafe impl Ring for SimulatedRingAdapter {
    fn sq_entries(&self) -> u32 {
        self.0.sq_entries()
    }

    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: an entry is 64 bytes that the kernel would read; for what they name our caller promises the same.
        unsafe {
            self.0
                .push(std::ptr::from_ref(entry).cast::<[u64; 8]>().read())
        };
    }

    fn submit(&mut self, count: u32, finish: bool) -> Result<usize, Errno> {
        self.0.submit(count, finish)
    }

    fn make_completions_visible(&mut self, wait: bool) -> Result<(), Errno> {
        self.0.make_completions_visible(wait);
        Ok(())
    }

    fn has_unflushed_completions(&self) -> bool {
        self.0.has_unflushed_completions()
    }

    fn has_completions(&self) -> bool {
        self.0.visible_completion_count() > 0
    }

    fn drain_completions(&mut self, mut each: impl FnMut(u64, i32)) {
        while let Some((user_data, result)) = self.0.pop_completion() {
            each(user_data, result);
        }
    }

    fn can_disable_eventfd(&self) -> bool {
        true
    }

    fn set_eventfd_disabled_if_possible(&mut self, quiet: bool) {
        self.0.set_eventfd_disabled_if_possible(quiet);
    }
}

/// The engine on a simulated ring, with the operations that only the kernel's ring has.
pub(crate) struct Uring {
    engine: engine::Uring<SimulatedRingAdapter>,
    eventfd: OwnedFd,
}

impl Deref for Uring {
    type Target = engine::Uring<SimulatedRingAdapter>;

    fn deref(&self) -> &Self::Target {
        &self.engine
    }
}

impl DerefMut for Uring {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.engine
    }
}

impl Uring {
    /// An engine on the simulator's ring, with an eventfd that is never written.
    pub fn with_ring(ring: Box<dyn SimulatedRing>, settings: UringSettings) -> Result<Self, Errno> {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        Ok(Uring {
            engine: engine::Uring::with_ring(SimulatedRingAdapter(ring), settings),
            eventfd: rustix::event::eventfd(0, flags)?,
        })
    }

    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    pub fn max_events(&self) -> u32 {
        self.engine.max_events()
    }

    pub fn stats(&self) -> UringStats {
        self.engine.stats()
    }

    pub fn set_max_workers(&mut self, _: u32) {}

    /// Requests have the descriptors of files, by which the simulator knows its disks.
    pub fn try_register_file(&mut self, _: u32, _: RawFd) -> bool {
        false
    }

    pub fn unregister_file(&mut self, _: u32) {}

    pub unsafe fn register_memory(&mut self, _: usize, _: usize) -> Result<(), BufferError> {
        Err(BufferError::TooOld)
    }

    pub fn unregister_memory_if_idle(&mut self, _: usize, _: usize) -> bool {
        true
    }
}
