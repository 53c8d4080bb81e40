//! Support for tests: the program as a process, front-ends, clients of monitors, deadlines, reports.
//!
//! Everything here panics where it cannot go on, with what it was about: a test that cannot go on fails where it is. Every wait
//! has a [deadline] and says what was waited for.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

pub mod allocations;
#[cfg(feature = "ceph")]
pub mod ceph;
pub mod certificates;
pub mod corpus;
pub mod deadline;
#[cfg(feature = "disk")]
pub mod disk;
#[cfg(feature = "process")]
pub mod events;
#[cfg(feature = "process")]
pub mod fds;
#[cfg(feature = "limited-host")]
pub mod limited_host;
#[cfg(feature = "process")]
pub mod lock_contender;
#[cfg(any(feature = "limited-host", feature = "process"))]
pub mod loop_device;
#[cfg(feature = "lsi-chip")]
pub mod lsi_chip;
#[cfg(any(feature = "limited-host", feature = "process"))]
pub mod mounted_folder;
#[cfg(feature = "process")]
pub mod nbd_server;
#[cfg(all(feature = "process", target_arch = "x86_64"))]
pub mod probes;
#[cfg(feature = "process")]
pub mod process;
#[cfg(feature = "qmp")]
pub mod prometheus_client;
#[cfg(feature = "qmp")]
pub mod qmp;
pub mod repeating_thread;
pub mod report;
#[cfg(feature = "vhost-user")]
pub mod request_driver;
#[cfg(feature = "process")]
pub mod reserved_port;
#[cfg(feature = "process")]
pub mod sockets;
#[cfg(feature = "process")]
pub mod stopped_thread;
#[cfg(feature = "process")]
pub mod threads;
#[cfg(all(feature = "process", target_arch = "x86_64"))]
pub mod tracer;
#[cfg(feature = "vhost-user")]
pub mod undisturbed_guest;
#[cfg(feature = "qmp")]
pub mod upgraded_daemon;
#[cfg(feature = "vhost-user")]
pub mod verifying;
#[cfg(feature = "vfio-user")]
pub mod vfio_user;
#[cfg(feature = "vhost-user")]
pub mod vhost_user;
