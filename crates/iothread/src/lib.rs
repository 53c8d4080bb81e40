//! Iothreads, which run queues and socket devices: an [event loop](event_loop) of five phases, and on it rings, devices and
//! backends.
//!
//! A [`QueuesRunner`] is the `Runner` of an `EventLoop`. It owns the thread's engines and the started
//! virtqueues ([`vring`]) that are mapped to it; a request is processed on this thread alone. The
//! control plane reaches it only by messages, through [`IothreadHandle`] and [`VringHandle`].

mod admit_budget;
mod affinity;
mod awaited_side;
mod completion_dispatcher;
mod cpu_time;
mod device;
pub mod event_loop;
mod handles;
mod iothread_handle;
mod latency_trace;
mod log_engine_counters;
mod messages;
mod older_generations;
mod on_error;
mod queue_lists;
mod queue_runner;
mod socket_device;
mod socket_devices;
mod socket_in_flight;
mod source_set;
mod source_table;
mod submit_totals;
mod vring;

/// Replaced by loom's in the models of `interleavings/`.
use std::sync;

pub use affinity::AffinityError;
pub use cpu_time::thread_cpu_time_ns;
pub use engine::{Completion, Errno};
pub use handles::{SocketDeviceHandle, VringHandle};
pub use iothread_handle::{IothreadError, IothreadHandle, IothreadSettings, IothreadTotals};
pub use messages::{
    DeviceCommand, DeviceSetup, DroppedReports, ExportQueues, ExportReporter, IoStatus,
    LastIoError, Message, QueueReporter, Report, ReportSender, ReportedExport, ResumeAction,
    ScsiDisk, ScsiMessage, ScsiSetup, SocketDeviceCommand, VringSetup, report_channel,
};
pub use on_error::{ErrorAction, ErrorPolicy, OnError};
pub use queue_runner::QueuesRunner;
pub use socket_device::{MAX_WATCHED_DESCRIPTORS, SocketDevice};
pub use submit_totals::SubmitTotals;
