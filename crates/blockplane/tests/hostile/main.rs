//! Bad input over the real socket to the real program: messages, descriptors, memory, rings and
//! invalid requests, one per row, each with its defined answer.
//!
//! For every row: the daemon survives; a guest on another export of the same iothread, which verifies
//! its data all the time, is undisturbed; the next front-end on the same socket works; neither
//! descriptors nor mappings of guest memory are left; the log has one or two lines about it, or
//! none where the front-end gets an error reply; and SIGTERM ends the daemon with status 0, also
//! while the offender is connected.
//!
//! The tables are in `messages` (with `attached_descriptors` and `queues`), `descriptors`, `inflight`, `dirty_log`, `memory` (with
//! `placement` and `removed_memory`), `rings` (with `changing_rings`), `packed`, `requests` and `scsi` (with `scsi_control`);
//! `cargo test --test hostile survived -- --nocapture` prints them with what was observed. `floods` repeats hostile input many
//! times; in `blocking_eventfds` a front-end makes signals to it block.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]
#![allow(
    clippy::print_stdout,
    reason = "the table of answers is printed with --nocapture"
)]

mod attached_descriptors;
mod blocking_eventfds;
mod changing_rings;
mod daemon;
mod descriptors;
mod device_reset;
mod dirty_log;
mod floods;
mod guest;
mod inflight;
mod memory;
mod messages;
mod new_memory;
mod packed;
mod placement;
mod queues;
mod removed_memory;
mod requests;
mod ring_reset;
mod rings;
mod row;
mod scsi;
mod scsi_control;
mod verifying_guest;

use row::{each_stops_in_good_order, one_daemon_survives};
use test_support::vhost_user::wire;

#[test]
fn invalid_messages_are_survived() {
    one_daemon_survives(messages::rows());
}

#[test]
fn sigterm_works_after_invalid_messages() {
    each_stops_in_good_order(messages::rows());
}

#[test]
fn invalid_descriptors_are_survived() {
    one_daemon_survives(descriptors::rows());
}

#[test]
fn sigterm_works_after_invalid_descriptors() {
    each_stops_in_good_order(descriptors::rows());
}

#[test]
fn invalid_inflight_regions_are_survived() {
    one_daemon_survives(inflight::rows());
}

#[test]
fn sigterm_works_after_invalid_inflight_regions() {
    each_stops_in_good_order(inflight::rows());
}

#[test]
fn invalid_dirty_logs_are_survived() {
    one_daemon_survives(dirty_log::rows());
}

#[test]
fn sigterm_works_after_invalid_dirty_logs() {
    each_stops_in_good_order(dirty_log::rows());
}

#[test]
fn invalid_memory_is_survived() {
    one_daemon_survives(memory::rows());
}

#[test]
fn sigterm_works_after_invalid_memory() {
    each_stops_in_good_order(memory::rows());
}

#[test]
fn invalid_rings_are_survived() {
    one_daemon_survives(rings::rows());
}

#[test]
fn sigterm_works_after_invalid_rings() {
    each_stops_in_good_order(rings::rows());
}

#[test]
fn invalid_packed_queues_are_survived() {
    one_daemon_survives(packed::rows());
}

#[test]
fn sigterm_works_after_invalid_packed_queues() {
    each_stops_in_good_order(packed::rows());
}

#[test]
fn invalid_requests_are_survived() {
    one_daemon_survives(requests::rows());
}

#[test]
fn sigterm_works_after_invalid_requests() {
    each_stops_in_good_order(requests::rows());
}

#[test]
fn invalid_scsi_requests_are_survived() {
    one_daemon_survives(scsi::rows());
}

#[test]
fn sigterm_works_after_invalid_scsi_requests() {
    each_stops_in_good_order(scsi::rows());
}
