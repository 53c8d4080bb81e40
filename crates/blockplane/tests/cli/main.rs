//! The command line, tried on the real program: what it prints, what it makes and removes, with
//! which status it ends, and what signals do to it.
//!
//! Only `iothreads` checks the data that a guest reads and writes; the interoperability suite does that for everything else. `client`
//! and `manual` need no daemon.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

mod affinity;
mod client;
mod config;
mod control_threads;
mod daemonize;
mod export;
mod help;
mod image_calls;
mod image_locking;
mod image_resize;
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
mod stub_image;
mod tracing;

use test_support::vhost_user::wire::{GET_FEATURES, GET_QUEUE_NUM};
use test_support::{process, request_driver};

use process::Folder;
use request_driver::RequestDriver;

/// A guest of the export at a socket of the folder, with so many queues, whose driver wants no features.
fn front_end(folder: &Folder, socket: &str, queues: u32) -> RequestDriver {
    RequestDriver::connect_without_flush(&folder.join(socket), queues)
}

/// The size of the disk at a socket of the folder, in bytes.
fn capacity(folder: &Folder, socket: &str) -> u64 {
    front_end(folder, socket, 0).capacity()
}

/// The number that answers a question of a front-end.
fn answer(folder: &Folder, socket: &str, request: u32) -> u64 {
    let reply = front_end(folder, socket, 0).query(request);
    u64::from_ne_bytes(reply.try_into().unwrap())
}

fn num_queues(folder: &Folder, socket: &str) -> u64 {
    answer(folder, socket, GET_QUEUE_NUM)
}

/// Whether the device offers `VIRTIO_BLK_F_RO`.
fn is_read_only(folder: &Folder, socket: &str) -> bool {
    answer(folder, socket, GET_FEATURES) & 1 << 5 != 0
}
