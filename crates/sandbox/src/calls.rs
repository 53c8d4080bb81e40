//! Lists of the system calls that each kind of thread may make, some with conditions on their arguments.
//!
//! They are listed by name: the filter leaves out those that an architecture does not have. Where C libraries
//! use different calls for one function, all of them are listed.

use ArgumentCondition::{Equals, HasNoBitOf};

use crate::ThreadKind;

/// A call that is allowed, always or if one of the conditions holds.
pub(crate) struct AllowedCall {
    pub name: &'static str,
    pub allowed_if: &'static [ArgumentCondition],
}

/// A condition on the argument of this number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ArgumentCondition {
    /// It has this value.
    Equals(u8, u64),
    /// It has none of these bits.
    HasNoBitOf(u8, u64),
}

/// All calls that a kind of thread may make.
pub(crate) fn allowed_calls(kind: ThreadKind) -> impl Iterator<Item = AllowedCall> {
    let lists: &[&[&str]] = match kind {
        ThreadKind::Worker => &[CALLS_OF_EVERY_THREAD, CALLS_OF_WORKERS],
        ThreadKind::Iothread => &[CALLS_OF_EVERY_THREAD, CALLS_OF_WORKERS, CALLS_OF_IOTHREADS],
        ThreadKind::Control => &[
            CALLS_OF_EVERY_THREAD,
            CALLS_OF_WORKERS,
            CALLS_OF_IOTHREADS,
            CALLS_OF_CONTROL_THREADS,
        ],
        ThreadKind::NetworkClient => &[
            CALLS_OF_EVERY_THREAD,
            CALLS_OF_WORKERS,
            CALLS_OF_IOTHREADS,
            CALLS_OF_CONTROL_THREADS,
            CALLS_OF_NETWORK_CLIENTS,
        ],
    };
    let unconditional = lists.iter().copied().flatten();
    let unconditional = unconditional.map(|name| AllowedCall {
        name,
        allowed_if: &[],
    });
    let conditional = CONDITIONAL_CALLS.iter();
    unconditional.chain(conditional.map(|(name, allowed_if)| AllowedCall { name, allowed_if }))
}

const PROT_EXEC: u64 = libc::PROT_EXEC as u64;

/// Not in `libc` yet.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// Calls that every thread may make with certain arguments.
const CONDITIONAL_CALLS: &[(&str, &[ArgumentCondition])] = &[
    // No memory becomes executable.
    ("mmap", &[HasNoBitOf(2, PROT_EXEC)]),
    ("mprotect", &[HasNoBitOf(2, PROT_EXEC)]),
    // Names of threads and, in newer C libraries, of memory; the auxiliary vector.
    (
        "prctl",
        &[
            Equals(0, libc::PR_SET_NAME as u64),
            Equals(0, libc::PR_GET_NAME as u64),
            Equals(0, libc::PR_SET_VMA as u64),
            Equals(0, PR_GET_AUXV),
        ],
    ),
];

/// Memory, time, locks between threads, signals, text on standard error, exit.
const CALLS_OF_EVERY_THREAD: &[&str] = &[
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
    // A thread installs its filter and drops capabilities after it has started.
    "capget",
    "capset",
    "seccomp",
];

/// I/O on descriptors; reading files, and replacing them (reservations). Landlock restricts which files.
const CALLS_OF_WORKERS: &[&str] = &[
    "fallocate",
    "fcntl",
    "fdatasync",
    "flock",
    "fstat",
    "fsync",
    "ftruncate",
    // A backtrace prints paths relative to the working directory.
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
    // A backtrace follows links to a library's debug information.
    "readlink",
    "readlinkat",
    "renameat",
    "renameat2",
    "statx",
    "unlinkat",
];

/// io_uring and AIO, epoll, eventfds, workers; the sockets of a vfio-user controller, which an iothread serves, and of NBD servers.
const CALLS_OF_IOTHREADS: &[&str] = &[
    "accept4",
    "clone",
    "clone3",
    "epoll_create1",
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
    // The guard of signals to front-ends sleeps until a signal sets its timer.
    "timerfd_settime",
    // A controller that is removed removes its socket.
    "unlink",
];

/// Opening files, making sockets, querying the system.
const CALLS_OF_CONTROL_THREADS: &[&str] = &[
    "access",
    "bind",
    "chdir",
    "connect",
    "dup2",
    "dup3",
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
    "timerfd_create",
    "uname",
];

/// The event loops and timers of librados, and queries of a name server.
const CALLS_OF_NETWORK_CLIENTS: &[&str] = &[
    "epoll_create",
    "epoll_pwait",
    "epoll_wait",
    "get_mempolicy",
    "recvmmsg",
    "sendmmsg",
    "timerfd_gettime",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;
    use syscalls::Sysno;

    /// On x86-64 only: other architectures lack the older calls.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_name_is_a_system_call() {
        for AllowedCall { name, .. } in allowed_calls(ThreadKind::NetworkClient) {
            assert!(Sysno::from_str(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn no_system_call_is_listed_twice() {
        let mut names: Vec<_> = allowed_calls(ThreadKind::NetworkClient)
            .map(|call| call.name)
            .collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
