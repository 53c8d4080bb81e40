//! Signals: SIGTERM, SIGINT and SIGHUP end the daemon, SIGUSR2 starts a live upgrade, SIGXFSZ is ignored.
//!
//! The first four have no handlers: a thread waits for them with sigwait(3). They are blocked before the first thread
//! starts, so that all threads inherit the mask.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// Ignores SIGXFSZ, so that a write beyond the file size limit (`ulimit -f`) fails instead of killing the daemon: a guest
/// that fills its disk must not end the disks of all other guests.
pub fn ignore_sigxfsz() {
    // SAFETY: no other code changes the disposition of this signal, and no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The blocked signals that end the daemon in an orderly way, or start a live upgrade.
pub(crate) struct BlockedSignals {
    blocked_signals: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks the signals. Must be called while the process has one thread.
    pub fn block() -> io::Result<Self> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset makes the set valid before anything reads it; the calls get valid
        // pointers and valid signal numbers.
        let (set, result) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR2] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let result = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            (set.assume_init(), result)
        };
        if result == 0 {
            Ok(BlockedSignals {
                blocked_signals: set,
            })
        } else {
            Err(io::Error::from_raw_os_error(result))
        }
    }

    /// Starts a thread that waits for signals: calls `on_upgrade` for each SIGUSR2, and `on_end` for the first of the
    /// others, for which it also makes the returned eventfd readable. After that, a second signal ends the program at
    /// once, without waiting for the disks. A signal that closely follows the first is ignored: timeout(1), for example,
    /// signals the process and then its group.
    pub fn spawn_thread_exiting_on_second_signal(
        self,
        on_end: impl FnOnce() + Send + 'static,
        on_upgrade: impl Fn() + Send + 'static,
    ) -> io::Result<OwnedFd> {
        let ended = eventfd(0, EventfdFlags::CLOEXEC)?;
        let ended_sender = ended.try_clone()?;
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || {
            while self.wait_for_signal() == libc::SIGUSR2 {
                on_upgrade();
            }
            // Cannot fail: the counter is written once.
            let _ = rustix::io::write(&ended_sender, &1u64.to_ne_bytes());
            on_end();
            std::thread::sleep(REPEAT_INTERVAL);
            self.discard_pending();
            while self.wait_for_signal() == libc::SIGUSR2 {}
            tracing::warn!("second signal: exit without waiting for requests in flight");
            crate::process::exit_at_once();
        })?;
        Ok(ended)
    }

    /// Waits for one of the signals and returns its number.
    fn wait_for_signal(&self) -> libc::c_int {
        let mut signal = 0;
        // SAFETY: both pointers are valid. The only possible error is an invalid set.
        unsafe { libc::sigwait(&raw const self.blocked_signals, &raw mut signal) };
        signal
    }

    /// Discards signals that have arrived and were not waited for.
    fn discard_pending(&self) {
        let no_wait = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointers are valid, or null where information is not needed.
        while unsafe {
            libc::sigtimedwait(
                &raw const self.blocked_signals,
                std::ptr::null_mut(),
                &raw const no_wait,
            )
        } > 0
        {}
    }
}

/// Time in which a further signal counts as a repeated delivery of the first.
const REPEAT_INTERVAL: std::time::Duration = std::time::Duration::from_millis(100);
