//! Commands for operators of a running daemon.
//!
//! - [`qmp`]: `blockplane qmp`: sends commands and prints the replies;
//! - [`info`]: `blockplane info`: exports, nodes and iothreads as tables;
//! - [`top`]: `blockplane top`: current load of each disk: [`rates`] between two [`sample`]s;
//! - [`backup`]: `blockplane backup`: copies a disk while its guest works;
//! - [`mirror`]: `blockplane mirror`: moves a disk while its guest works;
//! - [`bitmap`]: `blockplane bitmap`: dirty bitmaps of disks;
//! - [`upgrade`]: `blockplane upgrade`: live upgrade to a new version;
//! - [`schema`]: commands and events of a monitor, one per line;
//! - [`client`]: the QMP connection that all of them use.
//!
//! The commands use QMP only and omit what a monitor does not report, so that they work with monitors of other
//! versions, and with those of other daemons as far as they have the commands.

pub mod backup;
pub mod bitmap;
pub mod cli;
pub mod client;
mod disk;
mod error;
mod histogram;
mod image;
pub mod info;
pub mod interval_load;
pub mod job;
pub mod mirror;
pub mod monitor_args;
mod new_bitmap;
mod output;
pub mod qmp;
mod request;
pub mod sample;
pub mod schema;
mod table;
mod target;
#[cfg(test)]
mod testing;
mod throttle;
pub mod top;
mod units;
pub mod upgrade;

pub use error::{Error, Result};
