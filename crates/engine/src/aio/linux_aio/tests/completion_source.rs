//! Tests of reaping, from the ring and without it. That the ring wraps is in `model_tests.rs`.

use super::*;
use crate::aio::abi::RingHeader;

/// Completions come by io_getevents(2) then, which is called only for requests in flight.
#[test]
fn a_ring_that_is_not_as_expected_is_not_read() {
    type Change = fn(&mut Option<RingHeader>);
    let changes: [(&str, Change); 5] = [
        ("hidden", |header| *header = None),
        ("magic", |header| header.as_mut().unwrap().magic ^= 1),
        ("incompat", |header| {
            header.as_mut().unwrap().incompat_features = 4
        }),
        ("header length", |header| {
            header.as_mut().unwrap().header_length = 64
        }),
        ("smaller than asked for", |header| {
            header.as_mut().unwrap().nr = 4
        }),
    ];
    for (name, change) in changes {
        let mut kernel = FakeKernel::new(vec![0; 64]);
        change(&mut kernel.header);
        kernel.ring_unused = true;
        // More than one io_getevents array full.
        let mut aio = engine_on(kernel, 300, 0);
        assert!(!aio.uses_completion_ring(), "{name}");
        (0..300).for_each(|token| aio.put_flush(token).unwrap());
        aio.submit();
        assert_eq!(aio.reaped(), []);
        aio.kernel.complete_all();
        assert!(!aio.has_completions(), "it takes a system call to see them");
        let all = (0..300).map(|token| (token, Ok(())));
        assert!(aio.reaped().into_iter().eq(all), "{name}");
        let calls = aio.stats().getevents_calls;
        assert_eq!(aio.reaped(), []);
        assert_eq!(aio.stats().getevents_calls, calls, "nothing in flight");
    }
}
