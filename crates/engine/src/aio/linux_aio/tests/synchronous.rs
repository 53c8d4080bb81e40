//! Tests of synchronous transfers, for disks that answer within the call.

use super::*;
use crate::aio::synchronous::{CALLS_TO_ENTER, PROBE_EVERY, REQUESTS_PER_STEP};

/// The file of all requests, see `Buffers::io`.
const FD: i32 = 7;

/// An engine that watches the file, on a disk that answers within the call.
fn watching(max_events: u32, max_batch: u32) -> Fake {
    let mut aio = engine(max_events, max_batch);
    aio.kernel.keeps = Some(0);
    aio.start_detecting_synchronous(FD);
    aio
}

/// The same, with the file in synchronous mode.
fn fd_for_synchronous_transfer(max_events: u32, max_batch: u32) -> Fake {
    let mut aio = watching(max_events, max_batch);
    (0..CALLS_TO_ENTER).for_each(|_| one(&mut aio));
    assert!(aio.synchronous.next_uses_pread_pwrite(FD));
    aio.kernel.calls.clear();
    aio.kernel.transferred.clear();
    aio
}

/// Runs one read to its completion.
fn one(aio: &mut Fake) {
    let mut buffers = Buffers::sized(&[4], 0xee);
    aio.put(buffers.io(Op::Read, 20, 5)).unwrap();
    aio.submit();
    aio.kernel.complete_all();
    assert_eq!(aio.reaped(), [(5, Ok(()))]);
    assert_eq!(buffers.bytes(), [20, 21, 22, 23]);
}

fn reads(sizes: &[usize]) -> Vec<Buffers> {
    sizes
        .iter()
        .map(|&size| Buffers::sized(&[size], 0))
        .collect()
}

fn put_reads(aio: &mut Fake, buffers: &mut [Buffers]) {
    for (token, buffers) in (0..).zip(buffers) {
        aio.put(buffers.io(Op::Read, token, token)).unwrap();
    }
}

fn all_ok(count: u64) -> Vec<(u64, Result<(), Errno>)> {
    (0..count).map(|token| (token, Ok(()))).collect()
}

#[test]
fn no_transfer_is_synchronous_before_so_many_calls() {
    let mut aio = watching(16, 0);
    for calls in 1..=CALLS_TO_ENTER {
        assert!(!aio.synchronous.next_uses_pread_pwrite(FD));
        one(&mut aio);
        assert_eq!(aio.kernel.calls.len(), calls as usize);
    }
    one(&mut aio);
    assert_eq!(aio.kernel.calls.len(), CALLS_TO_ENTER as usize);
    assert_eq!(aio.stats().synchronous, 1);
    assert_eq!(aio.stats().submitted, u64::from(CALLS_TO_ENTER));
}

#[test]
fn disks_that_answer_later_or_are_not_watched_or_have_no_ring_stay_asynchronous() {
    let mut later = watching(16, 0);
    later.kernel.keeps = None;
    let mut unwatched = engine(16, 0);
    unwatched.kernel.keeps = Some(0);
    let mut forgotten = fd_for_synchronous_transfer(16, 0);
    forgotten.stop_detecting_synchronous(FD);
    let kernel = FakeKernel::new((0..=255).collect()).without_ring();
    let mut ringless = engine_on(kernel, 16, 0);
    ringless.kernel.keeps = Some(0);
    ringless.start_detecting_synchronous(FD);
    for aio in [&mut later, &mut unwatched, &mut forgotten, &mut ringless] {
        (0..3 * CALLS_TO_ENTER).for_each(|_| one(aio));
        assert_eq!((aio.stats().synchronous, aio.kernel.calls.len()), (0, 192));
    }
}

#[test]
fn completions_of_other_disks_do_not_hide_an_answer_within_the_call() {
    let mut aio = watching(64, 0);
    let mut other = Buffers::sized(&[1], 0);
    aio.kernel.newest_first = true;
    for _ in 0..CALLS_TO_ENTER {
        aio.kernel.keeps = None;
        let io = other.io(Op::Read, 0, 9);
        aio.put_to(3, io).unwrap();
        aio.submit();
        let mut mine = Buffers::sized(&[4], 0);
        aio.put(mine.io(Op::Read, 0, 5)).unwrap();
        aio.kernel.keeps = Some(0);
        aio.submit();
        assert_eq!(aio.reaped(), [(5, Ok(())), (9, Ok(()))]);
    }
    assert!(aio.synchronous.next_uses_pread_pwrite(FD));
}

#[test]
fn synchronous_transfers_wait_for_the_reap_and_polling_sees_them() {
    let mut aio = fd_for_synchronous_transfer(64, 0);
    let mut buffers = reads(&[4; 3]);
    put_reads(&mut aio, &mut buffers);
    assert_eq!((aio.pending_count(), aio.has_completions()), (3, false));
    // The descriptor has the counts of the calls before.
    let _ = rustix::io::read(aio.eventfd(), &mut [0; 8]);
    aio.submit();
    assert_eq!(
        (aio.pending_count(), aio.in_flight_count(), aio.room()),
        (0, 0, 61)
    );
    assert!(aio.has_completions());
    assert!(aio.kernel.calls.is_empty() && !aio.eventfd_readable());
    assert_eq!(aio.reaped(), all_ok(3));
    assert_eq!((aio.has_completions(), aio.room()), (false, 64));
    for (first, buffers) in (0..).zip(&buffers) {
        assert_eq!(buffers.bytes(), (first..first + 4).collect::<Vec<u8>>());
    }
}

#[test]
fn flushes_and_durable_writes_are_submitted_in_their_order() {
    let mut aio = fd_for_synchronous_transfer(16, 0);
    let mut single = Buffers::sized(&[3], 1);
    let mut several = Buffers::sized(&[2, 0, 3], 2);
    let mut durable = Buffers::sized(&[2], 3);
    let mut last = Buffers::sized(&[1], 4);
    aio.put(single.io(WRITE, 0, 0)).unwrap();
    aio.put(several.io(WRITE, 3, 1)).unwrap();
    aio.put(durable.durable(8, 2)).unwrap();
    aio.put_flush(3).unwrap();
    aio.put(last.io(WRITE, 10, 4)).unwrap();
    aio.submit();
    assert_eq!(aio.kernel.calls, [2]);
    assert_eq!(aio.kernel.disk[..12], [1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4, 11]);
    let mut done = aio.reaped();
    done.sort_unstable_by_key(|done| done.0);
    assert_eq!(done, all_ok(5));
    assert_eq!(aio.stats().synchronous, 3);
    assert!(
        aio.synchronous.next_uses_pread_pwrite(FD),
        "they say nothing about it"
    );
}

#[test]
fn requests_of_other_files_are_submitted_in_their_order() {
    let mut aio = fd_for_synchronous_transfer(16, 0);
    aio.kernel.keeps = None;
    let mut buffers = reads(&[1; 6]);
    for (token, buffers) in (0..).zip(&mut buffers) {
        let fd = if [2, 3, 5].contains(&token) { 3 } else { FD };
        let io = buffers.io(Op::Read, token, token);
        aio.put_to(fd, io).unwrap();
    }
    aio.submit();
    assert_eq!(
        (aio.kernel.calls.as_slice(), aio.in_flight_count()),
        (&[2, 1][..], 3)
    );
    assert_eq!(aio.reaped(), [(0, Ok(())), (1, Ok(())), (4, Ok(()))]);
    aio.kernel.complete_all();
    assert_eq!(aio.reaped(), [(2, Ok(())), (3, Ok(())), (5, Ok(()))]);
}

#[test]
fn requests_refused_with_eagain_keep_their_order() {
    let mut aio = fd_for_synchronous_transfer(16, 0);
    aio.kernel.script.push_back(Err(Errno::AGAIN));
    let mut buffers = reads(&[1; 3]);
    for (token, buffers) in (0..).zip(&mut buffers) {
        let io = buffers.io(Op::Read, token, token);
        let fd = if token == 1 { 3 } else { FD };
        aio.put_to(fd, io).unwrap();
    }
    aio.submit();
    assert_eq!(
        (aio.pending_count(), aio.in_flight_count(), aio.is_blocked()),
        (2, 0, true)
    );
    assert_eq!(aio.reaped(), [(0, Ok(()))]);
    aio.submit();
    assert_eq!((aio.pending_count(), aio.reaped().len()), (0, 2));
}

#[test]
fn an_error_of_a_transfer_fails_its_request_only() {
    let mut aio = fd_for_synchronous_transfer(16, 0);
    aio.kernel.transfers = [Outcome::Whole, Outcome::Error(Errno::IO)].into();
    let mut buffers = reads(&[1; 3]);
    put_reads(&mut aio, &mut buffers);
    aio.submit();
    let expected = [(0, Ok(())), (1, Err(Errno::IO)), (2, Ok(()))];
    assert_eq!(aio.reaped(), expected);
    assert_eq!(aio.room(), 16);
}

#[test]
fn a_probe_that_is_not_answered_within_the_call_ends_synchronous_mode() {
    let mut aio = fd_for_synchronous_transfer(16, 0);
    for _ in 0..2 {
        (0..PROBE_EVERY).for_each(|_| one(&mut aio));
        assert!(aio.kernel.calls.is_empty());
        one(&mut aio);
        assert_eq!(aio.kernel.calls, [1], "the probe");
        aio.kernel.calls.clear();
    }
    (0..PROBE_EVERY).for_each(|_| one(&mut aio));
    aio.kernel.keeps = None;
    (0..CALLS_TO_ENTER).for_each(|_| one(&mut aio));
    assert_eq!(aio.kernel.calls.len(), CALLS_TO_ENTER as usize);
    aio.kernel.keeps = Some(0);
    (0..2 * CALLS_TO_ENTER).for_each(|_| one(&mut aio));
    assert_eq!(
        aio.kernel.calls.len(),
        3 * CALLS_TO_ENTER as usize,
        "not so soon again"
    );
    one(&mut aio);
    assert_eq!(aio.kernel.calls.len(), 3 * CALLS_TO_ENTER as usize);
}

#[test]
fn a_disk_that_has_become_slow_delays_the_loop_for_one_step() {
    let mut aio = fd_for_synchronous_transfer(64, 0);
    // In flight on another disk, so that a call may have as many.
    aio.kernel.keeps = None;
    let mut other = Buffers::sized(&[1], 0);
    for token in 100..130 {
        let io = other.io(Op::Read, 0, token);
        aio.put_to(3, io).unwrap();
    }
    aio.submit();
    aio.kernel.calls.clear();
    aio.kernel.keeps = Some(30);
    aio.kernel.transfer_ns = 10_000_000;
    let mut buffers = reads(&[1; 30]);
    put_reads(&mut aio, &mut buffers);
    aio.submit();
    assert_eq!(aio.kernel.transferred.len(), REQUESTS_PER_STEP as usize);
    assert_eq!(aio.kernel.calls, [30 - REQUESTS_PER_STEP as usize]);
    aio.kernel.complete_all();
    let mut done = aio.reaped();
    done.retain(|(token, _)| *token < 100);
    assert_eq!(done, all_ok(30));
}
