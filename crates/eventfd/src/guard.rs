//! The guard: a thread that interrupts system calls in which a front-end holds a thread.
//!
//! A watched thread counts the beginnings and ends of its guarded calls. The guard looks at the counts periodically, and
//! sends SIGURG to a thread that has been in the same call since the last check: the signal has a handler that does nothing, so
//! the call ends with `EINTR`.
//!
//! The guard waits for a timer, which it sets again after each check. While no thread makes calls it does not, and the next
//! call sets the timer: that wakes no thread, so it delays the call by less than a microsecond. All other calls cost their
//! thread two stores, a fence and a load, and the process at most twenty wake-ups of the guard per second.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::call_count::{CallCount, GuardSleep, is_in_call};

/// Time between two checks. A call is interrupted in its second check, so after twice that time at most.
const CHECK_PERIOD: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Its default action is none, so it is harmless wherever it arrives.
const INTERRUPT: libc::c_int = libc::SIGURG;

/// The guard of the process, once it was started.
static GUARD: OnceLock<Guard> = OnceLock::new();

thread_local! {
    /// This thread's entry in the guard's list.
    static WATCHED: Registration = Registration::add_this_thread();
}

/// The guard and the threads that it watches.
struct Guard {
    threads: Mutex<Vec<WatchedThread>>,
    sleep: GuardSleep,
    /// Expires once for each time that it was set. It is not set while the guard sleeps.
    timer: OwnedFd,
}

/// A thread that has made guarded calls, and has not ended.
struct WatchedThread {
    id: libc::pid_t,
    calls: Arc<CallCount>,
    /// The count at the last check.
    checked_count: u64,
}

/// The entry of a thread in the guard's list, until the thread ends.
struct Registration {
    guard: &'static Guard,
    calls: Arc<CallCount>,
}

/// Starts the guard of this process, unless it runs. Calls that were made before are not guarded.
///
/// # Errors
/// The thread cannot be started, or its timer cannot be created.
pub fn start_guard() -> io::Result<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if GUARD.get().is_some() {
        return Ok(());
    }
    handle_interrupts();
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    thread::Builder::new()
        .name("eventfd-guard".into())
        .spawn(|| GUARD.wait().run())?;
    GUARD.get_or_init(|| Guard {
        threads: Mutex::new(Vec::new()),
        sleep: GuardSleep::new(),
        timer,
    });
    Ok(())
}

/// Makes a system call that a front-end may cause to block. It is interrupted then, which the caller sees as `EINTR`. Without a
/// guard it is not.
#[inline]
pub fn interrupt_if_blocked<T>(call: impl FnOnce() -> T) -> T {
    if GUARD.get().is_none() {
        return call();
    }
    WATCHED.with(|watched| {
        if watched.guard.sleep.begin_call(&watched.calls) {
            watched.guard.set_timer();
        }
        let result = call();
        watched.calls.end_call();
        result
    })
}

impl Guard {
    /// The guard's thread.
    fn run(&self) -> ! {
        loop {
            if self.check_and_interrupt() || !self.try_begin_sleep() {
                self.set_timer();
            }
            // Waits until the timer has been set and has expired.
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        }
    }

    /// The next check follows after [`CHECK_PERIOD`].
    #[cold]
    fn set_timer(&self) {
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: CHECK_PERIOD,
        };
        // Cannot fail: the time is valid.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Interrupts threads that are in the same call as at the last check. False: no thread has begun or ended a call since,
    /// and none is in one.
    fn check_and_interrupt(&self) -> bool {
        let mut are_calls_made = false;
        for thread in self.lock_threads().iter_mut() {
            let count = thread.calls.get();
            let has_changed = count != thread.checked_count;
            if is_in_call(count) && !has_changed {
                // The list is locked, so the thread has not ended and the id is its own.
                send_interrupt(thread.id);
            }
            are_calls_made |= has_changed || is_in_call(count);
            thread.checked_count = count;
        }
        are_calls_made
    }

    /// False: a call has begun or ended since the last check.
    fn try_begin_sleep(&self) -> bool {
        self.sleep.try_begin_sleep(|| {
            let threads = self.lock_threads();
            threads
                .iter()
                .any(|thread| thread.calls.get() != thread.checked_count)
        })
    }

    fn lock_threads(&self) -> MutexGuard<'_, Vec<WatchedThread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Adds the current thread to the list of the guard, which was started.
    fn add_this_thread() -> Self {
        let guard = GUARD.wait();
        let calls = Arc::new(CallCount::new());
        guard.lock_threads().push(WatchedThread {
            id: rustix::thread::gettid().as_raw_pid(),
            calls: calls.clone(),
            checked_count: 0,
        });
        Registration { guard, calls }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut threads = self.guard.lock_threads();
        threads.retain(|thread| !Arc::ptr_eq(&thread.calls, &self.calls));
    }
}

/// Installs a handler that does nothing. A signal without a handler would not end a system call; with `SA_RESTART` the call
/// would begin again.
fn handle_interrupts() {
    extern "C" fn do_nothing(_: libc::c_int) {}
    // SAFETY: an all-zero sigaction is valid: no flags, no further signals blocked. The handler is async-signal-safe. Only
    // signals that cannot be handled make the call fail.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(INTERRUPT, &raw const action, std::ptr::null_mut());
    }
}

/// Sends the signal to a thread of this process.
fn send_interrupt(thread: libc::pid_t) {
    let process = rustix::process::getpid().as_raw_pid();
    // SAFETY: takes no memory.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, INTERRUPT) };
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::GUARD;
    use crate::Signaller;

    /// Most threads end without having blocked; the guard forgets them.
    #[test]
    fn threads_that_end_are_not_watched() {
        crate::start_guard().unwrap();
        let signaller = Signaller::new("e");
        for _ in 0..20 {
            let signaller = signaller.clone();
            let may_block = move || signaller.signal(&eventfd(1, EventfdFlags::CLOEXEC).unwrap());
            std::thread::spawn(may_block).join().unwrap();
        }
        assert!(GUARD.wait().lock_threads().len() < 20);
    }
}
