//! System calls that each kind of thread may make.
//!
//! Names, not numbers: what a machine does not have is left out there. Calls that the C library makes in
//! another way on other systems are all in.

use crate::Thread;
use crate::filter::Condition::{self, HasNot, Is};

/// A call that is allowed, always or if one of the conditions holds.
pub(crate) struct Call {
    pub name: &'static str,
    pub allowed_if: &'static [Condition],
}

/// All of one kind.
pub(crate) fn of(thread: Thread) -> impl Iterator<Item = Call> {
    let lists: &[&[&str]] = match thread {
        Thread::Worker => &[EVERY_THREAD, WORKER],
        Thread::Iothread => &[EVERY_THREAD, WORKER, IOTHREAD],
        Thread::Control => &[EVERY_THREAD, WORKER, IOTHREAD, CONTROL],
    };
    let whole = lists.iter().copied().flatten();
    let whole = whole.map(|name| Call {
        name,
        allowed_if: &[],
    });
    let conditional = CONDITIONAL.iter();
    whole.chain(conditional.map(|(name, allowed_if)| Call { name, allowed_if }))
}

const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

/// Not in `libc` yet.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// What every thread may do with certain arguments.
const CONDITIONAL: &[(&str, &[Condition])] = &[
    // Nothing becomes code that was none before.
    ("mmap", &[HasNot(2, EXECUTABLE)]),
    ("mprotect", &[HasNot(2, EXECUTABLE)]),
    // A thread's name, and that of its memory (newer C libraries); what the kernel told the process at its start.
    (
        "prctl",
        &[
            Is(0, libc::PR_SET_NAME as u64),
            Is(0, libc::PR_GET_NAME as u64),
            Is(0, libc::PR_SET_VMA as u64),
            Is(0, PR_GET_AUXV),
        ],
    ),
];

/// Memory, time, locks between threads, signals, text on standard error, the end.
const EVERY_THREAD: &[&str] = &[
    "brk",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "close",
    "exit",
    "exit_group",
    "futex",
    "futex_wait",
    "futex_wake",
    "getcpu",
    "getpid",
    "getrandom",
    "gettid",
    "gettimeofday",
    "madvise",
    "membarrier",
    "mremap",
    "munmap",
    "nanosleep",
    "poll",
    "ppoll",
    "read",
    "readv",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_yield",
    "set_robust_list",
    "sigaltstack",
    "tgkill",
    "write",
    "writev",
    // A thread takes its filter after it has begun, and drops capabilities then.
    "capget",
    "capset",
    "seccomp",
];

/// I/O on descriptors; files to read, and those that are replaced by new ones (reservations). Landlock says which.
const WORKER: &[&str] = &[
    "fallocate",
    "fcntl",
    "fdatasync",
    "flock",
    "fstat",
    "fsync",
    "ftruncate",
    // Names in a backtrace are relative to it.
    "getcwd",
    "ioctl",
    "lseek",
    "newfstatat",
    "openat",
    "pread64",
    "preadv",
    "preadv2",
    "pwritev",
    "pwritev2",
    // For a backtrace, to where a library's debug information may be.
    "readlink",
    "readlinkat",
    "renameat",
    "renameat2",
    "statx",
    "unlinkat",
];

/// Rings, handlers, signals to guests, workers; the socket of a controller that has no thread of its own.
const IOTHREAD: &[&str] = &[
    "accept4",
    "clone",
    "clone3",
    "epoll_ctl",
    "epoll_pwait2",
    "eventfd2",
    "fstatfs",
    "getsockname",
    "getsockopt",
    "io_destroy",
    "io_getevents",
    "io_setup",
    "io_submit",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "memfd_create",
    "prlimit64",
    "pwrite64",
    "recvfrom",
    "recvmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    // A controller's socket goes with it.
    "unlink",
];

/// Files to open, sockets to make, and what is asked of the system.
const CONTROL: &[&str] = &[
    "access",
    "bind",
    "chdir",
    "connect",
    "dup2",
    "dup3",
    "epoll_create1",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fchmod",
    "getdents64",
    "getegid",
    "geteuid",
    "getgid",
    "getpeername",
    "getpriority",
    "getrlimit",
    "getrusage",
    "getuid",
    "listen",
    "lstat",
    "open",
    "pipe2",
    "rename",
    "rt_sigtimedwait",
    "sched_getparam",
    "sched_getscheduler",
    "setpriority",
    "socket",
    "socketpair",
    "stat",
    "statfs",
    "sysinfo",
    "uname",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;
    use syscalls::Sysno;

    /// (Other machines do not have the older ones.)
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_name_is_one() {
        for Call { name, .. } in of(Thread::Control) {
            assert!(Sysno::from_str(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn no_name_is_there_twice() {
        let mut names: Vec<_> = of(Thread::Control).map(|call| call.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
