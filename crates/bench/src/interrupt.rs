//! Ctrl-C: noticed, so that servers that were started are ended and files removed. The second one
//! ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const LOOK_INTERVAL: Duration = Duration::from_millis(20);

static PRESSED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C is noticed, once; and so are SIGTERM and, unless nohup(1) had it ignored, SIGHUP.
pub(crate) fn notice() {
    extern "C" fn pressed(_signal: libc::c_int) {
        PRESSED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the structure is one that sigaction(2) fills, and takes with all else zero; the handler
        // only stores to an atomic, which is allowed in a signal handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            if signal == libc::SIGHUP && action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action = std::mem::zeroed();
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

/// An error once it was pressed: for what takes long between two measurements.
pub(crate) fn check() -> Result<()> {
    if pressed() {
        return Err(Error::Interrupted);
    }
    Ok(())
}

/// Waits for so long, or until it is pressed.
pub(crate) fn sleep(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    loop {
        check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK_INTERVAL));
    }
}
