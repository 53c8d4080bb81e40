//! Images of Ceph RBD, through librados and librbd, which are loaded at run time.
//!
//! A [`Connection`] is one client of a cluster. The calls that wait are made by threads of their own, one for each connection and
//! one for each open image, so that a cluster that does not answer blocks no caller for longer than a limit, and so that the threads
//! that librados starts inherit what is set up there (a sandbox's system-call filter). An [`Image`] is opened through it, and each
//! iothread that sends requests to the image has an [`ImageQueue`]: librbd's threads append completions to its list, and wake its
//! owner once per batch.

mod allocations;
mod blocklist;
mod client_record;
mod cluster_handle;
mod connect_error;
mod connection;
mod connection_status;
mod connections;
mod errno;
mod exit;
mod features;
mod ffi;
mod header;
mod header_watch;
mod image;
mod image_handle;
mod image_queue;
mod key;
mod library;
mod lock;
mod lock_error;
mod log;
mod open_error;
mod options;
mod pending_lock;
mod records;
mod request_stats;
mod thread_launcher;
mod waiting_calls;
mod watchers;

pub use allocations::Extent;
pub use connect_error::ConnectError;
pub use connection::Connection;
pub use connection_status::{ConnectionState, ConnectionStatus};
pub use connections::Connections;
pub use exit::{exit_process, wait_for_connections};
pub use header_watch::{OnHeaderChange, OnResize};
pub use image::{Image, LockCheckDone};
pub use image_queue::{ImageQueue, MAX_BYTES_IN_FLIGHT, MAX_IN_FLIGHT};
pub use key::{Key, KeyError};
pub use library::{LoadError, load};
pub use lock::LockFeatureAndOwner;
pub use lock_error::LockError;
pub use open_error::OpenError;
pub use options::{AuthMode, ClusterOptions, ImageGeometry, ImageOptions};
pub use pending_lock::LockDone;
pub use request_stats::RequestStats;
pub use thread_launcher::{has_launcher, start_confined_launcher};
