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

use test_support::vhost_user::wire;

/// Two tests of each table: one daemon survives its rows, and SIGTERM works after each of them.
macro_rules! tests_of_tables {
    ($($table:ident: $survived:ident, $stops:ident;)*) => {$(
        #[test]
        fn $survived() {
            row::one_daemon_survives($table::rows);
        }

        #[test]
        fn $stops() {
            row::each_stops_in_good_order($table::rows);
        }
    )*};
}

tests_of_tables! {
    messages: invalid_messages_are_survived, sigterm_works_after_invalid_messages;
    descriptors: invalid_descriptors_are_survived, sigterm_works_after_invalid_descriptors;
    inflight: invalid_inflight_regions_are_survived, sigterm_works_after_invalid_inflight_regions;
    dirty_log: invalid_dirty_logs_are_survived, sigterm_works_after_invalid_dirty_logs;
    memory: invalid_memory_is_survived, sigterm_works_after_invalid_memory;
    rings: invalid_rings_are_survived, sigterm_works_after_invalid_rings;
    packed: invalid_packed_queues_are_survived, sigterm_works_after_invalid_packed_queues;
    requests: invalid_requests_are_survived, sigterm_works_after_invalid_requests;
    scsi: invalid_scsi_requests_are_survived, sigterm_works_after_invalid_scsi_requests;
}
