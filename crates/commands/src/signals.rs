//! Records signals of a command (terminate, suspend, resume), so that it can clean up files, processes and the terminal
//! before it ends.
//!
//! A signal interrupts a blocking call. One that arrives just before the call does not, so a long wait is split into waits of
//! [`POLL_INTERVAL`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest delay until a signal is noticed that arrived just before a blocking call.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

static TERMINATION_REQUESTED: AtomicBool = AtomicBool::new(false);
static SUSPEND_REQUESTED: AtomicBool = AtomicBool::new(false);
static RESUMED: AtomicBool = AtomicBool::new(false);

/// Signals within this time are one, in milliseconds: timeout(1) sends its signal to a process and to its group.
const REPETITION_MS: u64 = 500;

/// The time of the first signal of each kind to terminate, by its number, in milliseconds of the monotonic clock; 0: none yet.
static FIRST_MS: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// Records the first signal of a kind to terminate. A later one ends the process. It may only store to atomics and call async-signal-safe
/// functions, since it runs in a signal handler: see signal-safety(7).
extern "C" fn record_termination(signal: libc::c_int) {
    TERMINATION_REQUESTED.store(true, Ordering::Relaxed);
    let now = monotonic_ms();
    let Some(first) = usize::try_from(signal)
        .ok()
        .and_then(|index| FIRST_MS.get(index))
    else {
        return;
    };
    let first = first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|first| now.saturating_sub(first) >= REPETITION_MS) {
        // SAFETY: both are async-signal-safe, and have no preconditions.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Milliseconds of the monotonic clock.
fn monotonic_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Sets the flag of a signal. It may only store to atomics, since it runs in a signal handler.
extern "C" fn record_signal(signal: libc::c_int) {
    let flag = match signal {
        libc::SIGTSTP => &SUSPEND_REQUESTED,
        libc::SIGCONT => &RESUMED,
        // It only interrupts a call.
        libc::SIGWINCH => return,
        _ => &TERMINATION_REQUESTED,
    };
    flag.store(true, Ordering::Relaxed);
}

/// Records Ctrl-C, SIGTERM or SIGHUP instead of ending the process, which the same does again, half a second later or more. SIGHUP
/// stays ignored under nohup(1).
pub fn record_termination_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if signal != libc::SIGHUP || !is_ignored(signal) {
            set_handler(signal, record_termination as *const () as usize);
        }
    }
}

/// Records Ctrl-Z, SIGCONT and changes of the terminal's size as well, for commands that draw on it. The first SIGQUIT is a
/// request to terminate, so that the terminal is restored.
pub fn record_terminal_signals() {
    set_handler(libc::SIGQUIT, record_termination as *const () as usize);
    for signal in [libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH] {
        set_handler(signal, record_signal as *const () as usize);
    }
}

/// Whether a signal has requested the end of this command.
#[must_use]
pub fn termination_requested() -> bool {
    TERMINATION_REQUESTED.load(Ordering::Relaxed)
}

/// Whether Ctrl-Z was pressed since the last call.
#[must_use]
pub fn take_suspend_request() -> bool {
    SUSPEND_REQUESTED.swap(false, Ordering::Relaxed)
}

/// Whether this command was resumed since the last call.
#[must_use]
pub fn take_resumption() -> bool {
    RESUMED.swap(false, Ordering::Relaxed)
}

/// Suspends this process, as Ctrl-Z does by default. Returns when it is resumed.
pub fn suspend() {
    set_handler(libc::SIGTSTP, libc::SIG_DFL);
    // SAFETY: raise(3) has no preconditions.
    unsafe { libc::raise(libc::SIGTSTP) };
    set_handler(libc::SIGTSTP, record_signal as *const () as usize);
}

/// Sleeps for `time`. Returns false, at once, if this command is to end.
#[must_use]
pub fn sleep_unless_terminated(time: Duration) -> bool {
    let until = Instant::now() + time;
    while !termination_requested() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
    false
}

/// Whether the parent process has set the signal to be ignored, as nohup(1) does.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: the structure is one that sigaction(2) fills.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

/// Sets the handler of a signal.
fn set_handler(signal: libc::c_int, handler: libc::sighandler_t) {
    // SAFETY: the structure is one that sigaction(2) takes with all else zero; the handler, where it is not the
    // default, stores to atomics and calls async-signal-safe functions, which is allowed in a signal handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}
