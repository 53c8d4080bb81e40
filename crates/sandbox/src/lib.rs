//! The sandbox: privileges that the daemon drops before it serves guests, so that a guest that breaks out of its VMM finds little.
//!
//! [`confine_process`] is called once, while the process has one thread: files (Landlock), system calls (seccomp),
//! capabilities, new privileges. Threads that need less drop more when they start: [`confine_thread_if_process_is`].
//! A mechanism that the kernel does not have is left out, and [`EnforcedRestrictions`] reports which.

mod calls;
mod capabilities;
mod filter;
mod landlock_rules;
mod user;
mod violation;

use std::fmt;
use std::io;
use std::sync::OnceLock;

pub use landlock_rules::{Access, AccessibleFiles, PathRule};
pub use user::{UserError, become_user};

use filter::ThreadFilter;

/// Kinds of threads, from the most to the least privileged. A thread's children have at most its privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// The main thread and threads that serve sockets: everything that the process may do.
    Control,
    /// An iothread: I/O on descriptors, its io_uring and its epoll, memory, threads of its own.
    Iothread,
    /// A worker of an iothread: I/O, files.
    Worker,
    /// A thread that connects to servers over TCP, or calls librados, and the threads that librados starts.
    NetworkClient,
}

/// Error of a sandbox mechanism that the kernel has.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}; --sandbox off starts without")]
pub struct Error {
    what: &'static str,
    source: io::Error,
}

impl Error {
    fn new(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self {
            what,
            source: source.into(),
        }
    }
}

/// The seccomp filters of threads that start later.
struct ThreadFilters {
    iothread: ThreadFilter,
    worker: ThreadFilter,
}

static THREAD_FILTERS: OnceLock<ThreadFilters> = OnceLock::new();

/// The restrictions in effect. The log shows its `Display` form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnforcedRestrictions {
    files: landlock_rules::FileRestriction,
    kept_capabilities: Vec<&'static str>,
    /// The kernel has seccomp filters.
    has_seccomp: bool,
}

impl EnforcedRestrictions {
    /// Whether the kernel has all of the mechanisms.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.has_seccomp && self.files.is_enforced()
    }
}

impl fmt::Display for EnforcedRestrictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; system calls: ", self.files)?;
        f.write_str(if self.has_seccomp {
            "those of each kind of thread (seccomp)"
        } else {
            "all, since this kernel has no seccomp filters"
        })?;
        f.write_str("; capabilities: ")?;
        if self.kept_capabilities.is_empty() {
            f.write_str("none")?;
        } else {
            f.write_str(&self.kept_capabilities.join(", "))?;
        }
        f.write_str("; no new privileges")
    }
}

/// Drops the privileges that the process does not need. This cannot be undone.
///
/// # Errors
/// [`Error`], when the kernel has a mechanism and refuses to use it. A missing mechanism is no error: see
/// [`EnforcedRestrictions`].
pub fn confine_process(files: AccessibleFiles<'_>) -> Result<EnforcedRestrictions, Error> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| Error::new("give up new privileges", errno))?;
    let kept_capabilities = capabilities::drop_all_but(capabilities::PROCESS_CAPABILITIES)
        .map_err(|errno| Error::new("drop capabilities", errno))?;
    let files = landlock_rules::apply_landlock(files)
        .map_err(|error| Error::new("restrict files", io::Error::other(error)))?;
    let has_seccomp = filter::is_seccomp_available();
    if has_seccomp {
        violation::install_sigsys_handler();
        THREAD_FILTERS.get_or_init(|| ThreadFilters {
            iothread: ThreadFilter::compile(ThreadKind::Iothread),
            worker: ThreadFilter::compile(ThreadKind::Worker),
        });
        ThreadFilter::compile(ThreadKind::Control)
            .install()
            .map_err(|error| Error::new("restrict system calls", error))?;
    }
    Ok(EnforcedRestrictions {
        files,
        kept_capabilities,
        has_seccomp,
    })
}

/// Restricts the calling thread, and the threads that it starts, to what clients of a Ceph cluster or of an NBD server need: files
/// to read, connections over TCP. It has to be called before [`confine_process`], and the libraries be loaded before this: no memory
/// becomes executable afterwards.
///
/// # Errors
/// As for [`confine_process`].
pub fn confine_network_client_thread(files: &[PathRule<'_>]) -> Result<(), Error> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| Error::new("give up new privileges", errno))?;
    capabilities::drop_all_but(capabilities::NETWORK_CLIENT_CAPABILITIES)
        .map_err(|errno| Error::new("drop capabilities", errno))?;
    landlock_rules::apply_landlock_allowing_tcp(files)
        .map_err(|error| Error::new("restrict files", io::Error::other(error)))?;
    if filter::is_seccomp_available() {
        ThreadFilter::compile(ThreadKind::NetworkClient)
            .install()
            .map_err(|error| Error::new("restrict system calls", error))?;
    }
    Ok(())
}

/// Whether [`confine_process`] was called, on a kernel with seccomp filters.
#[must_use]
pub fn is_process_confined() -> bool {
    THREAD_FILTERS.get().is_some()
}

/// Restricts the calling thread to what threads of this kind need. Does nothing without [`confine_process`].
///
/// # Errors
/// The kernel's. It has accepted the process's filter before, so this is lack of memory, for instance.
pub fn confine_thread_if_process_is(kind: ThreadKind) -> io::Result<()> {
    let Some(filters) = THREAD_FILTERS.get() else {
        return Ok(());
    };
    let filter = match kind {
        ThreadKind::Control | ThreadKind::NetworkClient => return Ok(()),
        ThreadKind::Iothread => &filters.iothread,
        ThreadKind::Worker => &filters.worker,
    };
    capabilities::drop_all_but(capabilities::IOTHREAD_CAPABILITIES)?;
    filter.install()
}
