//! Bad input over the real socket to the real program: messages, descriptors, memory, rings and
//! invalid requests, one per row, each with its defined answer.
//!
//! For every row: the daemon survives; a guest on another export of the same iothread, which verifies
//! its data all the time, is undisturbed; the next front-end on the same socket works; neither
//! descriptors nor mappings of guest memory are left; and the log has one or two lines about it, or
//! none where the front-end gets an error reply.
//!
//! SIGTERM ends the daemon with status 0, also while an offender is connected: tried with one row for
//! each answer and text in the log, and by the full run with all rows that leave it connected.
//!
//! The tables are in `messages` (with `queues`), `descriptors`, `inflight`, `dirty_log`, `memory` (with `placement` and
//! `removed_memory`), `rings` (with `changing_rings`), `packed`, `requests` and `scsi`. They have a row of each kind; all the forms
//! of bad chains, requests and commands are in the tests of `virtqueue`, `virtio-blk` and `virtio-scsi`.
//! `cargo test --test hostile survived -- --nocapture` prints the rows with what was observed. `floods` repeats hostile input many
//! times; in `blocking_eventfds` a front-end makes signals to it block.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]
#![allow(
    clippy::print_stdout,
    reason = "the table of answers is printed with --nocapture"
)]

mod blocking_eventfds;
mod changing_rings;
mod daemon;
mod descriptors;
mod dirty_log;
mod events;
mod floods;
mod front_end;
mod inflight;
mod memory;
mod messages;
mod new_memory;
mod packed;
mod placement;
mod queues;
mod removed_memory;
mod requests;
mod resets;
mod rings;
mod row;
mod scsi;

use test_support::vhost_user::wire;

use crate::row::{Rows, daemon_survives, stops_in_good_order};

/// All tables.
const TABLES: [fn(&mut Rows); 9] = [
    messages::rows,
    descriptors::rows,
    inflight::rows,
    dirty_log::rows,
    memory::rows,
    rings::rows,
    packed::rows,
    requests::rows,
    scsi::rows,
];

#[test]
fn invalid_messages_are_survived() {
    daemon_survives(&[messages::rows]);
}

#[test]
fn invalid_descriptors_are_survived() {
    daemon_survives(&[descriptors::rows]);
}

#[test]
fn invalid_inflight_regions_and_dirty_logs_are_survived() {
    daemon_survives(&[inflight::rows, dirty_log::rows]);
}

#[test]
fn invalid_memory_is_survived() {
    daemon_survives(&[memory::rows]);
}

#[test]
fn invalid_rings_are_survived() {
    daemon_survives(&[rings::rows]);
}

#[test]
fn invalid_packed_queues_are_survived() {
    daemon_survives(&[packed::rows]);
}

#[test]
fn invalid_requests_are_survived() {
    daemon_survives(&[requests::rows, scsi::rows]);
}

/// One offender for each answer with each text in the log.
#[test]
fn sigterm_works_while_an_offender_is_connected() {
    TABLES
        .iter()
        .for_each(|table| stops_in_good_order(*table, true));
}

#[test]
#[ignore = "full run only"]
fn sigterm_works_while_any_offender_is_connected() {
    TABLES
        .iter()
        .for_each(|table| stops_in_good_order(*table, false));
}
