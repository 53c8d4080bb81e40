//! The command line, tried on the real program: what it prints, what it makes and removes, with
//! which status it ends, and what signals do to it.
//!
//! What a guest reads and writes is not looked at here; the interoperability suite does that.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

mod activation;
mod affinity;
mod config;
mod control_threads;
mod daemon_options;
mod daemonize;
mod front_end;
mod help;
mod image_locking;
mod inherited;
mod invalid_command_lines;
mod limits;
mod log;
mod many_exports;
mod pidfile;
mod sandbox;
mod serve;
mod serve_device;
mod service;
mod shutdown;
mod socket;
mod tracing;

use test_support::process;
