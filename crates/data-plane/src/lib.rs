//! What an iothread runs: rings, devices and engines in five phases.
//!
//! A [`StoragePlane`] is the `Plane` of an `IoThread`. It owns the thread's engines and the started
//! virtqueues ([`vring`]) that are mapped to it; nothing on a request's way leaves the thread. The
//! control plane reaches it by messages only, through [`DataThread`] and [`VringHandle`].

mod affinity;
mod control;
mod controller;
mod controllers;
mod cpu_time;
mod descriptors;
mod give_back;
mod handles;
mod lists;
mod message;
mod on_error;
mod plane;
mod reports;
mod scsi;
mod served;
mod submits;
mod totals;
mod trace;
mod vring;
mod vrings;
mod waiting;

pub use affinity::AffinityError;
pub use control::{DataThread, DataThreadError, DataThreadSettings, IothreadTotals};
pub use controller::{Carriers, Controller, SOURCES};
pub use cpu_time::thread_cpu_time_ns;
pub use descriptors::Descriptors;
pub use engine::Errno;
pub use handles::{ControllerHandle, VringHandle};
pub use message::Message;
pub use on_error::{ErrorAction, ErrorPolicy, OnError};
pub use plane::StoragePlane;
pub use reports::{ExportReports, IoErrors, Lost, QueueReports, Report, Reports, mailbox};
pub use scsi::{ScsiDisk, ScsiMail, ScsiSetup};
pub use served::Serves;
pub use submits::SubmitTotals;
pub use vring::{StartError, VringSetup};
pub use waiting::{IoStatus, Resume, WaitingRequests};
