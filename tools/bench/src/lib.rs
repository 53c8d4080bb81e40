//! Measurements of blockplane and other servers.
//!
//! - [`handlers`]: what the event loop costs per handler, whether few or many are registered;
//! - [`idle`]: what a server costs that has many disks attached and nothing to do;
//! - [`experiments`]: what single mechanisms are worth, each with and without;
//! - [`run`]: what any vhost-user-blk server answers to a load;
//! - [`compare`]: that of several servers, and of the host itself, in turn;
//! - [`throttle`]: what limits let pass, and how evenly;
//! - [`neighbours`]: what a greedy disk leaves to another one;
//! - [`backup`]: what a backup leaves to the guest;
//! - [`nbd`]: what NBD servers answer to a load of fio's;
//! - [`targets`]: what is to be reached, beside what is.
//!
//! A server is measured from outside: as a process ([`server`], [`procfs`]) and through a
//! vhost-user front-end of our own ([`client`], and [`load`], which drives it), light enough not to
//! be what is measured.
//!
//! Results are tables for people and JSON for scripts, without a verdict: figures depend
//! on the machine, their ratios are the claim, and no test asserts a time.

pub mod aio;
mod background_load;
pub mod backup;
pub mod cli;
pub mod client;
pub mod compare;
pub mod comparison_options;
pub mod contenders;
mod cpus;
mod error;
pub mod experiments;
pub mod handlers;
pub mod idle;
mod idle_disks;
mod interrupt;
pub mod limits;
pub mod load;
mod monitor;
pub mod nbd;
pub mod neighbours;
pub mod procfs;
pub mod program;
mod progress;
mod random;
pub mod rbd_image;
pub mod run;
pub mod server;
pub mod server_programs;
pub mod stats;
pub mod storage;
pub mod svg;
pub mod table;
pub mod targets;
pub mod throttle;
mod turns;
mod units;

pub use error::{Error, Result};
