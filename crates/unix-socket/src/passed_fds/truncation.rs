//! Handler of SIGBUS, which protects the daemon against front-ends that truncate the file behind the memory that they
//! share.
//!
//! An access to the lost pages raises SIGBUS, which would end the daemon and with it all other guests' disks.
//! The handler here replaces the whole region by zeroes instead: the queues of that front-end
//! break, and no other is affected. (systemd does this for mapped journals.) A SIGBUS
//! at any other address ends the process as usual.
//!
//! A signal handler may neither lock nor allocate, so the regions are in a table of atomics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// Most regions of all front-ends together: 128 front-ends with the most slots. Unused pages of the
/// table cost nothing.
const MAX_REGIONS: usize = 1 << 16;

/// An entry of the table.
struct GuardedRegion {
    start: AtomicUsize,
    /// 0: the entry is free.
    len: AtomicUsize,
}

static REGIONS: [GuardedRegion; MAX_REGIONS] = [const {
    GuardedRegion {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
    }
}; MAX_REGIONS];

/// Messages of the handler that are written at once after a time without any; further ones once per second, as log lines are.
const MESSAGE_BURST: u64 = 10;

/// Moves on by one second for each message; one may be written while this is less than a burst of seconds ahead of now (a token bucket).
static FULL_RATE_UNTIL: AtomicU64 = AtomicU64::new(0);

/// The number of entries that were ever used.
static EVER_USED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Used entries that are free again.
static FREE_ENTRIES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The table is full.
#[derive(Debug)]
pub(crate) struct TooManyRegions {
    pub max: usize,
}

/// Catches SIGBUS in a region while it lives. It must be dropped before the region is unmapped.
pub(crate) struct TruncationGuard {
    entry: usize,
}

impl TruncationGuard {
    /// Adds a region to the table of those that the SIGBUS handler replaces as a whole by zeroes, and installs the handler at the first.
    pub fn register_region(start: *const u8, len: usize) -> Result<Self, TooManyRegions> {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install_sigbus_handler);
        let mut free = FREE_ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match free.pop() {
            Some(entry) => entry,
            None => {
                let entry = EVER_USED_COUNT.load(Ordering::Relaxed);
                if entry == MAX_REGIONS {
                    return Err(TooManyRegions { max: MAX_REGIONS });
                }
                EVER_USED_COUNT.store(entry + 1, Ordering::Release);
                entry
            }
        };
        REGIONS[entry].start.store(start.addr(), Ordering::Relaxed);
        REGIONS[entry].len.store(len, Ordering::Release);
        Ok(TruncationGuard { entry })
    }
}

impl Drop for TruncationGuard {
    fn drop(&mut self) {
        REGIONS[self.entry].len.store(0, Ordering::Release);
        FREE_ENTRIES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.entry);
    }
}

/// Installs the handler for SIGBUS.
fn install_sigbus_handler() {
    // SAFETY: an all-zero sigaction is valid; the handler is async-signal-safe: it only reads
    // atomics and makes system calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle_sigbus;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // Only fails for signals that cannot be handled.
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Handles SIGBUS: replaces the guarded region with the address by zeroes, or ends the process if there is none.
extern "C" fn handle_sigbus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo, with an address for SIGBUS.
    let address = unsafe { (*info).si_addr() }.addr();
    let found = REGIONS[..EVER_USED_COUNT.load(Ordering::Acquire)]
        .iter()
        .find_map(|range| {
            let len = range.len.load(Ordering::Acquire);
            let start = range.start.load(Ordering::Relaxed);
            (address.wrapping_sub(start) < len).then_some((start, len))
        });
    if let Some((start, len)) = found
        && map_zeroes_over_region(start, len)
    {
        if count_message_if_allowed(&FULL_RATE_UNTIL, now_seconds()) {
            const MESSAGE: &[u8] =
                b"blockplane: a front-end truncated guest memory that it shares: \
                read as zeroes from now on, its queues will break\n";
            // SAFETY: a valid buffer. An error is ignored.
            unsafe { libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
        }
        return;
    }
    // SAFETY: valid arguments. The access is repeated and ends the process.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// Counts a message, and whether it may be written: front-ends may truncate memory again and again.
fn count_message_if_allowed(full_rate_until: &AtomicU64, now: u64) -> bool {
    let after = |until: u64| {
        let after = until.max(now) + 1;
        (after <= now + MESSAGE_BURST).then_some(after)
    };
    full_rate_until
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after)
        .is_ok()
}

/// Seconds since the host's start.
fn now_seconds() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid buffer. The call is async-signal-safe, and does not fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs()
}

/// Maps zeroes in place of a region. False if the kernel refuses.
fn map_zeroes_over_region(start: usize, len: usize) -> bool {
    // SAFETY: the range is a mapping of ours, which lives at least as long as its guard; all users of it expect its
    // bytes to change at any time.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(start),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vm_memory::{FileOffset, MmapRegion};

    #[test]
    fn truncated_memory_reads_as_zeroes_and_its_neighbour_is_untouched() {
        const BYTES: usize = 1 << 20;
        let map = || {
            let file = std::fs::File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
            ftruncate(&file, BYTES as u64).unwrap();
            let handle = file.try_clone().unwrap();
            let mapping = MmapRegion::<()>::from_file(FileOffset::new(file, 0), BYTES).unwrap();
            (handle, mapping)
        };
        let (file, lost) = map();
        let (_kept_file, kept) = map();
        let _guards = [&lost, &kept]
            .map(|mapping| TruncationGuard::register_region(mapping.as_ptr(), BYTES).unwrap());
        // SAFETY: both mappings are BYTES long; bytes of shared memory are accessed as volatile.
        unsafe {
            for mapping in [&lost, &kept] {
                mapping.as_ptr().write_volatile(7);
                mapping.as_ptr().add(BYTES - 1).write_volatile(9);
            }
            ftruncate(&file, 0).unwrap();
            assert_eq!(lost.as_ptr().add(BYTES - 1).read_volatile(), 0);
            assert_eq!(lost.as_ptr().read_volatile(), 0);
            lost.as_ptr().write_volatile(1);
            assert_eq!(kept.as_ptr().read_volatile(), 7);
            assert_eq!(kept.as_ptr().add(BYTES - 1).read_volatile(), 9);
        }
    }

    #[test]
    fn messages_are_written_in_a_burst_and_then_once_per_second() {
        let until = AtomicU64::new(0);
        let mut written = |second| {
            let messages = (0..100).filter(|_| count_message_if_allowed(&until, second));
            messages.count() as u64
        };
        assert_eq!([5, 5, 6].map(&mut written), [MESSAGE_BURST, 0, 1]);
        assert_eq!(written(100), MESSAGE_BURST);
    }

    #[test]
    fn table_entries_are_reused() {
        let memory = [0u8; 16];
        for _ in 0..2 * MAX_REGIONS {
            TruncationGuard::register_region(memory.as_ptr(), memory.len()).unwrap();
        }
    }
}
