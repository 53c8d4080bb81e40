//! Tests of submission: batches, room, order, refusals.

use super::*;

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
