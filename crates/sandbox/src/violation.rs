//! Handler of SIGSYS, which reports the system call that a seccomp filter refuses, and ends the process.

use std::mem::MaybeUninit;

use syscalls::Sysno;

/// Installs the handler of SIGSYS, which the filters raise.
pub(crate) fn install_sigsys_handler() {
    // SAFETY: all zeroes are a valid action; the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_refused_call as *const () as usize;
        // The second SIGSYS has its default action, which ends the process.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
    }
}

/// The layout of `siginfo_t` for SIGSYS, to read `si_syscall` (sigaction(2)), which `libc` does not expose.
#[repr(C)]
struct SigsysInfo {
    _signo: libc::c_int,
    _errno: libc::c_int,
    _code: libc::c_int,
    _call_addr: *const libc::c_void,
    syscall: libc::c_int,
}

/// Called at SIGSYS: writes the name of the thread and of the call to standard error, and ends the process. It
/// may only make calls that are safe in a signal handler.
extern "C" fn on_refused_call(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo_t, which for SIGSYS has this layout.
    let number = unsafe { (*info.cast::<SigsysInfo>()).syscall };
    let mut line = SignalSafeLine::default();
    line.push(b"blockplane: the sandbox does not let the thread '");
    let mut name = [0_u8; 16];
    // SAFETY: the name has at most 16 bytes, and ends with a zero.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    line.push(name.split(|byte| *byte == 0).next().unwrap_or_default());
    line.push(b"' make the system call ");
    match usize::try_from(number).ok().and_then(Sysno::new) {
        Some(call) => line.push(call.name().as_bytes()),
        None => line.push(b"of this number:"),
    }
    line.push(b" (");
    line.push_number(number);
    line.push(b"). A guest has broken in, or this is a bug in blockplane: please report it; --sandbox off disables the sandbox.\n");
    // SAFETY: the bytes are initialized. An error of the write cannot be handled here.
    unsafe {
        libc::write(2, line.bytes.as_ptr().cast(), line.len);
        libc::raise(libc::SIGSYS);
        libc::_exit(128 + libc::SIGSYS);
    }
}

/// A line of text in a fixed buffer, since a signal handler may not allocate.
struct SignalSafeLine {
    bytes: [u8; 256],
    len: usize,
}

impl Default for SignalSafeLine {
    fn default() -> Self {
        SignalSafeLine {
            bytes: [0; 256],
            len: 0,
        }
    }
}

impl SignalSafeLine {
    /// Appends text. What does not fit is left out.
    fn push(&mut self, text: &[u8]) {
        let room = &mut self.bytes[self.len..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text[..count]);
        self.len += count;
    }

    /// Appends a decimal number.
    fn push_number(&mut self, number: libc::c_int) {
        let mut digits = [0; 11];
        let mut left = number.unsigned_abs();
        let mut at = digits.len();
        loop {
            at -= 1;
            // Less than ten.
            digits[at] = b'0' + u8::try_from(left % 10).unwrap_or(0);
            left /= 10;
            if left == 0 {
                break;
            }
        }
        if number < 0 {
            self.push(b"-");
        }
        self.push(&digits[at..]);
    }
}
