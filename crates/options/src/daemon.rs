//! A run of the daemon as data: what to create, and what to do at start.

use std::path::PathBuf;

use crate::{Confinement, Directive, MetricsAddr};

/// A run as a drop-in for qemu-storage-daemon.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Daemon {
    /// `--daemonize`: go to the background once everything is started.
    pub daemonize: bool,
    /// `--pidfile`: where to write the process id once everything is started. The last one counts.
    pub pidfile: Option<PathBuf>,
    /// `--metrics`: where figures are served.
    pub metrics: Option<MetricsAddr>,
    /// `--sandbox` and `--user`. The last of each counts.
    pub confinement: Confinement,
    /// What to create, in this order.
    pub directives: Vec<Directive>,
}
