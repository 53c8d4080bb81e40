//! Ctrl-C: noticed, so that servers that were started are ended and files removed. The second one
//! ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

static PRESSED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C (and SIGTERM) is noticed, once.
pub(crate) fn notice() {
    extern "C" fn pressed(_signal: libc::c_int) {
        PRESSED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the structure is one that sigaction(2) takes with all else zero; the handler only
        // stores to an atomic, which is allowed in a signal handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = pressed as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Whether it was pressed.
pub(crate) fn pressed() -> bool {
    PRESSED.load(Ordering::Relaxed)
}
