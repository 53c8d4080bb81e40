//! Images of a real cluster: requests, sizes, locks, errors of connecting, faults of the cluster, state for operators.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod client;
mod connect;
mod faults;
mod lock;
mod log;
mod requester;
mod requests;
mod size;
mod status;
