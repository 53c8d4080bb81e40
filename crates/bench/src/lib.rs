//! Measurements.
//!
//! - [`handlers`]: what the event loop costs per handler, whether few or many are registered;
//! - [`idle`]: what a server costs that has many disks attached and nothing to do;
//! - [`requests`]: how many requests per second a server answers, beside another one.
//!
//! A server is measured from outside: as a process ([`server`], [`procfs`]) and through a
//! vhost-user front-end of our own ([`client`]), light enough not to be what is measured.
//!
//! Results are tables for whoever looks and JSON for scripts. Nothing here judges: figures depend
//! on the machine, their ratios are the claim, and no test asserts a time.

pub mod cli;
pub mod client;
mod cpus;
mod error;
pub mod handlers;
pub mod idle;
pub mod limits;
pub mod procfs;
mod progress;
mod random;
pub mod requests;
pub mod server;
pub mod stats;
pub mod table;

pub use error::{Error, Result};
