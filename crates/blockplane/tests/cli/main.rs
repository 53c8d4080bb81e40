//! The command line, tried on the real program: what it prints, what it makes and removes, with
//! which status it ends, and what signals do to it.
//!
//! What a guest reads and writes is looked at in `iothreads` only; the interoperability suite does that. `client` and `manual` need
//! no daemon.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

mod activation;
mod affinity;
mod client;
mod config;
mod control_threads;
mod daemon_options;
mod daemonize;
mod front_end;
mod help;
mod image_locking;
mod inherited;
mod invalid_command_lines;
mod iothreads;
mod limits;
mod log;
mod manual;
mod many_exports;
mod pidfile;
mod sandbox;
mod serve;
mod serve_device;
mod service;
mod shutdown;
mod socket;
mod tracing;

use test_support::{guest, process};
