//! The result of parsing the options of qemu-storage-daemon, or a configuration file: process options, and objects to
//! create.

use std::path::PathBuf;

use crate::{Confinement, Directive, MetricsAddr};

/// Settings of a run: process options and the objects to create.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DaemonSettingsAndDirectives {
    /// `--daemonize`: detach from the terminal once everything is started.
    pub daemonize: bool,
    /// `--pidfile`: file for the process id, written once everything is started. The last one counts.
    pub pidfile: Option<PathBuf>,
    /// `--metrics`: address of the metrics server.
    pub metrics: Option<MetricsAddr>,
    /// `--sandbox` and `--user`. The last of each counts.
    pub confinement: Confinement,
    /// The objects to create, in this order.
    pub directives: Vec<Directive>,
}
