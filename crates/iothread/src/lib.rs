//! A thread that runs queues: an [event loop](event_loop) of five phases, and on it rings, devices and backends.
//!
//! A [`StoragePlane`] is the `Plane` of an `IoThread`. It owns the thread's engines and the started
//! virtqueues ([`vring`]) that are mapped to it; nothing on a request's way leaves the thread. The
//! control plane reaches it by messages only, through [`DataThread`] and [`VringHandle`].

mod affinity;
mod control;
mod cpu_time;
mod device;
mod dispatch;
mod epochs;
pub mod event_loop;
mod handles;
mod in_flight;
mod lists;
mod message;
mod on_error;
mod parked_requests;
mod place_set;
mod plane;
mod reports;
mod socket_device;
mod socket_devices;
mod submits;
mod totals;
mod trace;
mod vring;
mod vrings;

/// The models of `interleavings/` have that of loom here.
use std::sync;

pub use affinity::AffinityError;
pub use control::{DataThread, DataThreadError, DataThreadSettings, IothreadTotals};
pub use cpu_time::thread_cpu_time_ns;
pub use device::{DeviceSetup, ScsiDisk, ScsiMessage, ScsiSetup};
pub use engine::{Completion, Errno};
pub use handles::{SocketDeviceHandle, VringHandle};
pub use message::{DeviceCommand, Message, SocketDeviceCommand};
pub use on_error::{ErrorAction, ErrorPolicy, OnError};
pub use parked_requests::{IoStatus, Resume, WaitingRequests};
pub use plane::StoragePlane;
pub use reports::{
    DroppedReports, ExportReports, IoErrors, QueueReports, Report, Reports, mailbox,
};
pub use socket_device::{SOURCES, SocketDevice};
pub use submits::SubmitTotals;
pub use vring::VringSetup;
