//! The state of the daemon: what runs, by name. It knows nothing of who changes it.

pub(crate) mod chardev;
pub(crate) mod export;
pub(crate) mod iothread;

pub(crate) mod node;
pub(crate) mod objects;
pub(crate) mod reports;
pub(crate) mod slow_requests;
