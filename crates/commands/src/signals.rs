//! Signals: noticed, so that files and processes are cleaned up and a terminal is left as it was.
//!
//! Each of them interrupts a call that waits. One that comes right before such a call does not: who waits for long
//! waits in pieces of [`LOOK_INTERVAL`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So late, at most, is a signal seen that came at a bad moment.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(50);

static END_ASKED: AtomicBool = AtomicBool::new(false);
static STOP_ASKED: AtomicBool = AtomicBool::new(false);
static CONTINUED: AtomicBool = AtomicBool::new(false);

extern "C" fn noted(signal: libc::c_int) {
    let note = match signal {
        libc::SIGTSTP => &STOP_ASKED,
        libc::SIGCONT => &CONTINUED,
        // It only interrupts.
        libc::SIGWINCH => return,
        _ => &END_ASKED,
    };
    note.store(true, Ordering::Relaxed);
}

/// From now on Ctrl-C and SIGTERM only leave a note, the first time; and so does SIGHUP, unless nohup(1) had it
/// ignored.
pub fn notice_end() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if signal != libc::SIGHUP || !is_ignored(signal) {
            handle(signal, noted as *const () as usize, libc::SA_RESETHAND);
        }
    }
}

/// From now on Ctrl-Z, being continued, and another size of the terminal are noticed as well: for who draws on it.
/// SIGQUIT, the first time, is an end as others are, so that the terminal is given back.
pub fn notice_terminal() {
    handle(
        libc::SIGQUIT,
        noted as *const () as usize,
        libc::SA_RESETHAND,
    );
    for signal in [libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH] {
        handle(signal, noted as *const () as usize, 0);
    }
}

/// Whether this program is to end.
#[must_use]
pub fn end_asked() -> bool {
    END_ASKED.load(Ordering::Relaxed)
}

/// Whether Ctrl-Z was pressed since this was asked last.
#[must_use]
pub fn take_stop() -> bool {
    STOP_ASKED.swap(false, Ordering::Relaxed)
}

/// Whether this program was continued since this was asked last.
#[must_use]
pub fn take_continued() -> bool {
    CONTINUED.swap(false, Ordering::Relaxed)
}

/// Stops, as Ctrl-Z does to who does not notice it; returns when somebody has it continued.
pub fn stop() {
    handle(libc::SIGTSTP, libc::SIG_DFL, 0);
    // SAFETY: raise(3) has no preconditions.
    unsafe { libc::raise(libc::SIGTSTP) };
    handle(libc::SIGTSTP, noted as *const () as usize, 0);
}

/// Waits for so long; false when this program is to end, at once.
#[must_use]
pub fn sleep(time: Duration) -> bool {
    let until = Instant::now() + time;
    while !end_asked() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(LOOK_INTERVAL));
    }
    false
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: the structure is one that sigaction(2) fills.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

fn handle(signal: libc::c_int, handler: libc::sighandler_t, flags: libc::c_int) {
    // SAFETY: the structure is one that sigaction(2) takes with all else zero; the handler, where it is not the
    // default, does at most store to an atomic, which is allowed in a signal handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}
