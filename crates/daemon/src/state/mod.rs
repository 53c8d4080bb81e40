//! The state of the daemon: iothreads, secrets, throttle groups, nodes, exports and chardevs by name. It does not know its callers.

pub(crate) mod chardev;
pub(crate) mod export;
pub(crate) mod iothread;
pub(crate) mod job;
mod job_guests;
pub(crate) mod job_status;
pub(crate) mod job_work;
pub(crate) mod mirror_job;
pub(crate) mod nbd_server;
pub(crate) mod node;
mod object_ids;
pub(crate) mod objects;
mod old_data;
mod own_exports;
pub(crate) mod reports;
pub(crate) mod secret;
pub(crate) mod slow_requests;
pub(crate) mod throttle_group;
pub(crate) mod tls;
