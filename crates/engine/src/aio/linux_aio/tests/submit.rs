//! Tests of submission: batches, room, order, refusals.

use super::*;

#[test]
fn taking_the_last_room_submits() {
    let mut aio = engine(4, 32);
    assert_eq!(aio.room(), 4);
    for token in 0..3 {
        aio.put_flush(token).unwrap();
    }
    assert_eq!((aio.room(), aio.kernel.calls.len()), (1, 0));
    aio.put_flush(3).unwrap();
    assert_eq!((aio.room(), aio.in_flight_count()), (0, 4));
    assert_eq!(aio.put_flush(4), Err(Full));
    aio.kernel.complete(2, Outcome::Whole);
    assert_eq!(aio.room(), 0, "not reaped yet");
    assert_eq!(aio.reaped(), [(2, Ok(()))]);
    assert_eq!(aio.room(), 1);
    // One place is free, so one request is a full batch.
    aio.put_flush(4).unwrap();
    assert_eq!(
        (aio.kernel.calls.as_slice(), aio.room()),
        ([4, 1].as_slice(), 0)
    );
}

#[test]
fn eagain_keeps_the_order_and_is_retried_after_a_completion() {
    let mut aio = engine(16, 4);
    (0..2).for_each(|token| aio.put_flush(token).unwrap());
    aio.submit();
    aio.kernel.script.push_back(Err(Errno::AGAIN));
    (2..5).for_each(|token| aio.put_flush(token).unwrap());
    aio.submit();
    assert!(aio.is_blocked());
    let calls = aio.kernel.calls.len();
    // Neither the submit phase nor a full batch retries before something has changed.
    aio.submit();
    (5..9).for_each(|token| aio.put_flush(token).unwrap());
    assert_eq!(aio.reaped(), []);
    assert_eq!((aio.kernel.calls.len(), aio.pending_count()), (calls, 7));
    aio.kernel.complete(1, Outcome::Whole);
    assert_eq!(aio.reaped(), [(1, Ok(()))]);
    assert!(!aio.is_blocked());
    assert_eq!(
        aio.kernel.calls.len(),
        calls,
        "the guest hears of completions before anything is submitted"
    );
    aio.submit();
    // Slot 1 is token 1's; tokens 2.. have the slots of their number.
    assert_eq!(aio.held(), [0, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(aio.stats().eagain, 1);
}

#[test]
fn eagain_with_nothing_in_flight_is_retried_by_the_submit_phase() {
    let mut aio = engine(16, 4);
    aio.kernel
        .script
        .extend([Err(Errno::AGAIN), Err(Errno::AGAIN), Ok(0)]);
    aio.put_flush(0).unwrap();
    for _ in 0..3 {
        aio.submit();
        assert!(aio.is_blocked() && aio.in_flight_count() == 0 && aio.pending_count() == 1);
    }
    aio.submit();
    assert!(!aio.is_blocked());
    assert_eq!(aio.held(), [0]);
}

#[test]
fn a_hard_error_fails_the_first_request_and_no_other() {
    let mut aio = engine(16, 8);
    // All pending at once: EAGAIN holds them back until submit.
    aio.kernel.script.push_back(Err(Errno::AGAIN));
    aio.kernel
        .script
        .extend([Ok(2), Err(Errno::BADF), Err(Errno::INVAL), Ok(3)]);
    (0..7).for_each(|token| aio.put_flush(token).unwrap());
    assert!(!aio.eventfd_readable());
    aio.submit();
    assert_eq!(aio.held(), [0, 1, 4, 5, 6]);
    assert!(aio.has_completions(), "a polling loop must see it");
    assert!(aio.eventfd_readable(), "a blocking loop must see it");
    assert_eq!(aio.room(), 9, "the completion is still to be reaped");
    assert_eq!(
        aio.reaped(),
        [(2, Err(Errno::BADF)), (3, Err(Errno::INVAL))]
    );
    assert!(!aio.has_completions());
    assert_eq!((aio.in_flight_count(), aio.room()), (5, 11));
    assert_eq!((aio.stats().refused, aio.stats().completed), (2, 2));
}
