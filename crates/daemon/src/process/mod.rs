//! Options of a daemon process, and its limit of open descriptors; in submodules its privileges, signals, daemonizing and pidfile.

pub(crate) mod confine;
pub(crate) mod daemonize;
pub(crate) mod pidfile;
pub(crate) mod signals;

use std::path::Path;
use std::time::Duration;

use options::{Confinement, Directive, MetricsAddr};

pub use signals::ignore_sigxfsz;

/// Options of a daemon process, common to all commands that run one.
pub struct ProcessOptions<'a> {
    /// Objects to create, in this order.
    pub directives: &'a [Directive],
    /// Path of the pidfile.
    pub pidfile: Option<&'a Path>,
    /// Address of the metrics endpoint.
    pub metrics: Option<&'a MetricsAddr>,
    /// How it drops privileges before it creates objects.
    pub confinement: &'a Confinement,
    /// Images that were created for it, and are removed if it fails to start.
    pub created_files: &'a [&'a Path],
    /// It runs in the background.
    pub background: bool,
}

/// How long the end of the process waits until images of Ceph clusters are closed: a cluster that does not answer must not
/// keep it.
const CLOSE_IMAGES_TIMEOUT: Duration = Duration::from_secs(5);

/// Target of the event that ends the log. It is not a line itself: those that were held back are written then.
pub const END_OF_LOG: &str = "daemon::process::end_of_log";

/// Ends the process, after images of Ceph clusters are closed.
pub fn close_images_and_exit(status: i32) -> ! {
    end_log_and_exit(status, CLOSE_IMAGES_TIMEOUT)
}

/// Ends the process without waiting for anything, with status 1. Not for signal handlers: it writes the rest of the log.
pub(crate) fn exit_at_once() -> ! {
    end_log_and_exit(1, Duration::ZERO)
}

fn end_log_and_exit(status: i32, close_images_timeout: Duration) -> ! {
    // At the level that every log has.
    tracing::error!(target: END_OF_LOG, "the log ends");
    ceph::exit_process(status, close_images_timeout)
}

/// Raises the soft limit of descriptors to the hard limit: every queue has three, and the usual soft limit of 1024 only
/// protects programs that use select(2).
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // An error leaves the limit as it is.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}
