//! A thread that is held as soon as it is made, by its parent's debugger, before it has done anything.

use std::io;

use rustix::process::Pid;
use test_support::deadline::Deadline;

/// It does nothing until it is let go.
pub struct Born(i32);

impl Born {
    /// The first thread that the main thread of a child of ours makes after `ask`.
    pub fn held(process: Pid, ask: impl FnOnce()) -> Self {
        let main = process.as_raw_pid();
        ptrace(
            libc::PTRACE_SEIZE,
            main,
            0,
            libc::PTRACE_O_TRACECLONE as usize,
        );
        ask();
        stopped(main);
        let mut born: libc::c_ulong = 0;
        let place = (&raw mut born).addr();
        ptrace(libc::PTRACE_GETEVENTMSG, main, 0, place);
        let born = i32::try_from(born).unwrap();
        stopped(born);
        ptrace(libc::PTRACE_DETACH, main, 0, 0);
        Born(born)
    }

    pub fn let_go(self) {}

    /// Waits until it has gone with its process, without having done anything.
    pub fn taken_along(self) {
        let status = changed(self.0);
        assert!(!libc::WIFSTOPPED(status), "{status:#x}");
    }
}

impl Drop for Born {
    fn drop(&mut self) {
        // Also when a test fails: its process could not end else. (One that has gone is nothing to let go.)
        // SAFETY: of these requests only PTRACE_GETEVENTMSG writes memory of ours.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

/// Waits until a thread has stopped.
fn stopped(thread: i32) {
    let status = changed(thread);
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
}

/// Waits until a thread has stopped or ended.
fn changed(thread: i32) -> libc::c_int {
    let mut status = 0;
    let deadline = Deadline::default();
    loop {
        // SAFETY: the pointer is valid; the thread is traced by us.
        let waited =
            unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if waited != 0 {
            assert_eq!(waited, thread);
            return status;
        }
        deadline.pause("a thread stops or ends");
    }
}

fn ptrace(request: libc::c_uint, thread: i32, address: usize, data: usize) {
    // SAFETY: of these requests only PTRACE_GETEVENTMSG writes memory of ours, a number of this size at `data`.
    let result = unsafe { libc::ptrace(request, thread, address, data) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}
