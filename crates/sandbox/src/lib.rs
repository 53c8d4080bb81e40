//! Drops privileges before serving guests, so that one who breaks into the daemon finds little.
//!
//! [`confine`] is called once, while the process has one thread: files (Landlock), system calls (seccomp),
//! capabilities, new privileges. Threads that do less give more away when they begin: [`enter`].
//! A part that the kernel does not have is left out, and [`Confined`] says so.

mod calls;
mod capabilities;
mod files;
mod filter;
mod user;
mod violation;

use std::fmt;
use std::io;
use std::sync::OnceLock;

pub use files::{Access, Files, Rule};
pub use user::{UserError, become_user};

use filter::Filter;

/// Kinds of threads, from the one that may do most to the one that may do least. A thread's own threads may
/// do at most what it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Whoever serves sockets and carries out commands: everything that the process may.
    Control,
    /// An iothread: I/O on descriptors, its ring and its handlers, memory, threads of its own.
    Iothread,
    /// A worker of an iothread: I/O, files.
    Worker,
}

/// The system calls that threads of this kind may make, whatever their arguments are. (Those of other kinds of machines among them.)
pub fn allowed(thread: Thread) -> impl Iterator<Item = &'static str> {
    let calls = calls::of(thread).filter(|call| call.allowed_if.is_empty());
    calls.map(|call| call.name)
}

/// Why the sandbox cannot be had, although the kernel has what it needs.
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

/// The filters of threads that are still to begin.
struct Filters {
    iothread: Filter,
    worker: Filter,
}

static FILTERS: OnceLock<Filters> = OnceLock::new();

/// What is on, in words for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    files: files::Enforced,
    kept: Vec<&'static str>,
    /// seccomp(2) is there.
    system_calls: bool,
}

impl Confined {
    /// Whether the kernel has all of it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.system_calls && self.files.is_complete()
    }
}

impl fmt::Display for Confined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; system calls: ", self.files)?;
        f.write_str(if self.system_calls {
            "those of each kind of thread (seccomp)"
        } else {
            "all, since this kernel has no seccomp filters"
        })?;
        f.write_str("; capabilities: ")?;
        if self.kept.is_empty() {
            f.write_str("none")?;
        } else {
            f.write_str(&self.kept.join(", "))?;
        }
        f.write_str("; no new privileges")
    }
}

/// Gives away what the process does not need. It cannot be taken back.
///
/// # Errors
/// [`Error`], when the kernel has something and refuses it. What lacks is no error: see [`Confined`].
pub fn confine(files: Files<'_>) -> Result<Confined, Error> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| Error::new("give up new privileges", errno))?;
    let kept = capabilities::keep(capabilities::OF_PROCESS)
        .map_err(|errno| Error::new("drop capabilities", errno))?;
    let files = files::restrict(files)
        .map_err(|error| Error::new("restrict files", io::Error::other(error)))?;
    let system_calls = filter::available();
    if system_calls {
        violation::report();
        FILTERS.get_or_init(|| Filters {
            iothread: Filter::of(Thread::Iothread),
            worker: Filter::of(Thread::Worker),
        });
        Filter::of(Thread::Control)
            .install()
            .map_err(|error| Error::new("restrict system calls", error))?;
    }
    Ok(Confined {
        files,
        kept,
        system_calls,
    })
}

/// The calling thread is of this kind from now on. Without [`confine`] nothing happens.
///
/// # Errors
/// The kernel's, which has accepted the process's filter before: out of memory, for instance.
pub fn enter(thread: Thread) -> io::Result<()> {
    let Some(filters) = FILTERS.get() else {
        return Ok(());
    };
    let filter = match thread {
        Thread::Control => return Ok(()),
        Thread::Iothread => &filters.iothread,
        Thread::Worker => &filters.worker,
    };
    capabilities::keep(capabilities::OF_IOTHREAD)?;
    filter.install()
}
