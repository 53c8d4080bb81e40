//! Signals that end a command which runs until it is told to: noticed, so that the terminal is left as it was.

use std::sync::atomic::{AtomicBool, Ordering};

static END_ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn ask_for_end(_signal: libc::c_int) {
    END_ASKED.store(true, Ordering::Relaxed);
}

extern "C" fn interrupt_only(_signal: libc::c_int) {}

/// From now on Ctrl-C, SIGTERM and SIGHUP only leave a note, the first time. Each interrupts a call that waits, and so
/// does a terminal that has changed its size.
pub(crate) fn notice() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal, ask_for_end, libc::SA_RESETHAND);
    }
    handle(libc::SIGWINCH, interrupt_only, 0);
}

/// Whether one of them has come.
pub(crate) fn end_asked() -> bool {
    END_ASKED.load(Ordering::Relaxed)
}

fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int), flags: libc::c_int) {
    // SAFETY: the structure is one that sigaction(2) takes with all else zero; the handlers do at most store to
    // an atomic, which is allowed in a signal handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        // As by nohup(1).
        if signal == libc::SIGHUP && action.sa_sigaction == libc::SIG_IGN {
            return;
        }
        action = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}
