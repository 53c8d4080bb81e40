//! SIGTERM, SIGINT and SIGHUP, which end the program, and SIGUSR2, which upgrades it: waited for instead of handled.
//! SIGXFSZ, ignored.
//!
//! The first four are blocked before the first thread starts, so that all threads inherit that and
//! only the one that waits gets them.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// A write beyond the limit on file sizes (`ulimit -f`) is to fail, as the one write that it is, and
/// not to end the program: a guest that fills its disk would end every other guest's disk as well.
pub fn survive_file_size_limit() {
    // SAFETY: nobody else sets what this signal does, and no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The signals that end the program in good order, or let another one take over.
pub(crate) struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks them; to be called while there is one thread.
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
            Ok(Signals { set })
        } else {
            Err(io::Error::from_raw_os_error(result))
        }
    }

    /// Waits for the first on a thread of its own, and calls `end`, or `upgrade`; what is returned is
    /// readable then. From then on a signal ends the program at once: whoever sends a second one
    /// does not want to wait for the disks. One that comes right behind the first is the same one:
    /// timeout(1), for example, tells the process and then its group.
    pub fn watch(
        self,
        end: impl FnOnce() + Send + 'static,
        upgrade: impl Fn() + Send + 'static,
    ) -> io::Result<OwnedFd> {
        let ours = eventfd(0, EventfdFlags::CLOEXEC)?;
        let theirs = ours.try_clone()?;
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || {
            while self.wait() == libc::SIGUSR2 {
                upgrade();
            }
            // Cannot fail: the counter is written once.
            let _ = rustix::io::write(&theirs, &1u64.to_ne_bytes());
            end();
            std::thread::sleep(SAME_SIGNAL);
            self.discard_pending();
            while self.wait() == libc::SIGUSR2 {}
            tracing::warn!("second signal: exit without waiting for requests in flight");
            std::process::exit(1);
        })?;
        Ok(ours)
    }

    fn wait(&self) -> libc::c_int {
        let mut signal = 0;
        // SAFETY: both pointers are valid. An error could only mean an invalid set.
        unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
        signal
    }

    fn discard_pending(&self) {
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointers are valid, or null where that means that nothing is wanted.
        while unsafe {
            libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), &raw const now)
        } > 0
        {}
    }
}

/// How far apart two deliveries of what somebody meant as one signal may be.
const SAME_SIGNAL: std::time::Duration = std::time::Duration::from_millis(100);
