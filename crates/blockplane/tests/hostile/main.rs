//! Bad input over the real socket to the real program: messages, descriptors, memory, rings and
//! requests that nobody should send, one per row, each with its defined answer.
//!
//! For every row: the daemon lives; a guest on another export of the same iothread, which verifies
//! what it reads all the time, is undisturbed; the next front-end on the same socket works; neither
//! descriptors nor mappings of guest memory are left; the log has said it in one or two lines, or
//! nothing where the offender hears it himself; and SIGTERM ends the daemon with status 0, also
//! while the offender is connected and in the middle of it.
//!
//! The tables are in `messages` (with `attached` and `queues`), `descriptors`, `inflight`, `dirty_log`, `memory` (with
//! `placement` and `gone`), `rings` (with `changing`), `packed`, `requests` and `scsi` (with `scsi_control`);
//! `cargo test --test hostile survived -- --nocapture` prints them with what was observed. `floods` does one thing many times.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]
#![allow(
    clippy::print_stdout,
    reason = "the table of answers is for whoever asks for it"
)]

mod attached;
mod bystander;
mod changing;
mod daemon;
mod descriptors;
mod device_reset;
mod dirty_log;
mod floods;
mod gone;
mod guest;
mod inflight;
mod memory;
mod messages;
mod new_memory;
mod packed;
mod placement;
mod queues;
mod requests;
mod ring_reset;
mod rings;
mod row;
mod scsi;
mod scsi_control;

use row::{each_stops_in_good_order, one_daemon_survives};
use test_support::vhost_user::wire;

#[test]
fn messages_survived() {
    one_daemon_survives(messages::rows());
}

#[test]
fn messages_and_sigterm() {
    each_stops_in_good_order(messages::rows());
}

#[test]
fn descriptors_survived() {
    one_daemon_survives(descriptors::rows());
}

#[test]
fn descriptors_and_sigterm() {
    each_stops_in_good_order(descriptors::rows());
}

#[test]
fn inflight_survived() {
    one_daemon_survives(inflight::rows());
}

#[test]
fn inflight_and_sigterm() {
    each_stops_in_good_order(inflight::rows());
}

#[test]
fn dirty_log_survived() {
    one_daemon_survives(dirty_log::rows());
}

#[test]
fn dirty_log_and_sigterm() {
    each_stops_in_good_order(dirty_log::rows());
}

#[test]
fn memory_survived() {
    one_daemon_survives(memory::rows());
}

#[test]
fn memory_and_sigterm() {
    each_stops_in_good_order(memory::rows());
}

#[test]
fn rings_survived() {
    one_daemon_survives(rings::rows());
}

#[test]
fn rings_and_sigterm() {
    each_stops_in_good_order(rings::rows());
}

#[test]
fn packed_survived() {
    one_daemon_survives(packed::rows());
}

#[test]
fn packed_and_sigterm() {
    each_stops_in_good_order(packed::rows());
}

#[test]
fn requests_survived() {
    one_daemon_survives(requests::rows());
}

#[test]
fn requests_and_sigterm() {
    each_stops_in_good_order(requests::rows());
}

#[test]
fn scsi_survived() {
    one_daemon_survives(scsi::rows());
}

#[test]
fn scsi_and_sigterm() {
    each_stops_in_good_order(scsi::rows());
}
