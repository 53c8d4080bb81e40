//! Commands for operators of a running daemon.
//!
//! - [`ask`]: `blockplane qmp`: one command, or many, and the answers;
//! - [`info`]: `blockplane info`: exports, nodes and iothreads as tables;
//! - [`top`]: `blockplane top`: what each disk does now: [`rates`] between two [`sample`]s;
//! - [`upgrade`]: `blockplane upgrade`: a new version takes over;
//! - [`schema`]: what a monitor can be asked, in lines for people;
//! - [`client`]: the connection to a monitor that all speak over.
//!
//! It knows QMP and nothing of the daemon's insides: what a monitor does not say is not shown, so that it
//! works with monitors of other versions, and of other daemons as far as these answer.

pub mod ask;
pub mod cli;
pub mod client;
mod error;
mod histogram;
pub mod info;
pub mod rates;
pub mod sample;
pub mod schema;
mod table;
#[cfg(test)]
mod testing;
pub mod top;
mod units;
pub mod upgrade;
mod words;

pub use error::{Error, Result};
