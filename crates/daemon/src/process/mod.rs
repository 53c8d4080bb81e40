//! The process: what it is to do, its privileges, signals, and pidfile.

pub(crate) mod confine;
pub(crate) mod daemonize;
pub(crate) mod pidfile;
pub(crate) mod signals;

use std::path::Path;

use options::{Confinement, Directive, MetricsAddr};

pub use signals::survive_file_size_limit;

/// What a process is to do, whichever command asks for it.
pub struct Process<'a> {
    /// What is made.
    pub directives: &'a [Directive],
    /// Where it writes its number.
    pub pidfile: Option<&'a Path>,
    /// Where figures are served.
    pub metrics: Option<&'a MetricsAddr>,
    /// The privileges that it drops before.
    pub confinement: &'a Confinement,
    /// Files that were made for it, and that are removed if it comes to nothing.
    pub made: &'a [&'a Path],
    /// It is in the background.
    pub background: bool,
}

/// Every queue has three descriptors; the usual soft limit of 1024 is for programs that use
/// select(2).
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Fails only where the limit is what it may be at most already.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}
