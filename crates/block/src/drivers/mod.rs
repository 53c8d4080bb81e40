//! The drivers of nodes: a file here for each kind of node, which opens nodes of that kind and makes their routes.
//!
//! A driver is a file here. It opens nodes, and implements [`Driver`](crate::node::Driver) for them.

pub(crate) mod blkdebug;
pub(crate) mod copier;
pub(crate) mod file;
mod file_route;
pub(crate) mod host_device;
pub(crate) mod nbd;
mod network_route;
pub(crate) mod null_co;
pub(crate) mod open;
pub(crate) mod raw;
pub(crate) mod rbd;
mod ring_range;
pub(crate) mod snapshot_access;
pub(crate) mod throttle;
