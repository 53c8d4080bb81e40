//! Images of a real cluster: requests, locks, errors of connecting, faults of the cluster, state for operators. What users see of them
//! is in blockplane's tests (`rbd`).

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
mod status;

const MIB: u64 = 1 << 20;
