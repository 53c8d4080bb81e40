//! A thread of a child process that ptrace(2) has stopped: a new one before it runs, or one that runs.

use std::io;

use rustix::process::Pid;

use crate::deadline::Deadline;
use crate::threads::threads_named;

/// A thread that is stopped until it is resumed or dropped.
pub struct StoppedThread(i32);

impl StoppedThread {
    /// The first thread that the main thread of a child process creates after `ask`.
    pub fn first_after(process: Pid, ask: impl FnOnce()) -> Self {
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
        StoppedThread(born)
    }

    /// The thread of this name of a child process.
    pub fn of_name(process: Pid, name: &str) -> Self {
        let folder = threads_named(process, name).swap_remove(0);
        let thread = folder.file_name().unwrap().to_str().unwrap();
        let thread = thread.parse().unwrap();
        ptrace(libc::PTRACE_SEIZE, thread, 0, 0);
        ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
        stopped(thread);
        StoppedThread(thread)
    }

    /// Lets it run.
    pub fn resume(self) {}

    /// Waits until it has ended with its process, without having run.
    pub fn ended_with_its_process(self) {
        let status = changed(self.0);
        assert!(!libc::WIFSTOPPED(status), "{status:#x}");
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // Also when a test fails, because its process could not end otherwise. (It fails for a thread that has ended.)
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
