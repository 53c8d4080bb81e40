//! Measurements of blockplane and other servers.
//!
//! - [`run`]: what any vhost-user-blk server answers to a load;
//! - [`compare`]: that of several servers, and of the host itself, in turn.
//!
//! A server is measured from outside: as a process ([`server`], [`procfs`]) and through a
//! vhost-user front-end on rust-vmm's ([`client`], and [`load`], which drives it), light enough not to
//! be what is measured. The package `experiments` uses all of it as well.
//!
//! Results are tables for people and JSON for scripts, without a verdict: figures depend
//! on the machine, their ratios are the claim, and no test asserts a time.

pub mod aio;
pub mod cli;
pub mod client;
pub mod compare;
mod contenders;
pub mod cpus;
mod error;
pub mod load;
pub mod places;
pub mod procfs;
pub mod program;
mod progress;
pub mod run;
pub mod server;
pub mod stats;
pub mod storage;
pub mod table;
pub mod units;

pub use contenders::Contender;
pub use error::{Error, Result};
