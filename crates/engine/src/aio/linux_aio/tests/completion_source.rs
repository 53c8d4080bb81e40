//! Tests of reaping, from the ring and without it. That the ring wraps is in `model_test.rs`.

use super::*;

#[test]
fn completions_come_in_the_kernels_order_with_the_kernels_error() {
    let mut aio = engine(16, 0);
    (0..4).for_each(|token| aio.put_flush(100 + token).unwrap());
    aio.submit();
    for (index, outcome) in [
        (2, Outcome::Whole),
        (0, Outcome::Error(Errno::IO)),
        (1, Outcome::Error(Errno::NOSPC)),
        (0, Outcome::Whole),
    ] {
        aio.kernel.complete(index, outcome);
    }
    assert!(aio.has_completions());
    assert_eq!(
        aio.reaped(),
        [
            (102, Ok(())),
            (100, Err(Errno::IO)),
            (103, Err(Errno::NOSPC)),
            (101, Ok(()))
        ]
    );
    assert!(!aio.has_completions());
}

#[test]
fn a_ring_that_is_not_as_expected_is_not_read() {
    type Change = fn(&mut FakeKernel);
    let changes: [(&str, Change); 5] = [
        ("hidden", |k| k.header = None),
        ("magic", |k| k.header.as_mut().unwrap().magic ^= 1),
        ("incompat", |k| {
            k.header.as_mut().unwrap().incompat_features = 4
        }),
        ("header length", |k| {
            k.header.as_mut().unwrap().header_length = 64
        }),
        ("smaller than asked for", |k| {
            k.header.as_mut().unwrap().nr = 4
        }),
    ];
    for (name, change) in changes {
        let mut kernel = FakeKernel::new(vec![0; 64]);
        change(&mut kernel);
        kernel.ring_unused = true;
        check_fallback(name, kernel);
    }
}

/// Checks that completions on a kernel without a usable ring come by io_getevents(2), and that it is called only for requests in flight.
fn check_fallback(name: &str, kernel: FakeKernel) {
    // More than one io_getevents array full.
    let settings = AioSettings {
        max_events: 300,
        ..AioSettings::default()
    };
    let mut aio = LinuxAio::with_kernel(kernel, settings).unwrap();
    assert!(!aio.uses_completion_ring(), "{name}");
    (0..300).for_each(|token| aio.put_flush(token).unwrap());
    aio.submit();
    assert_eq!(aio.reaped(), []);
    aio.kernel.complete_all();
    assert!(
        !aio.has_completions(),
        "nothing can be seen without a system call"
    );
    assert_eq!(
        aio.reaped(),
        (0..300).map(|token| (token, Ok(()))).collect::<Vec<_>>(),
        "{name}"
    );
    let calls = aio.stats().getevents_calls;
    assert_eq!(aio.reaped(), []);
    assert_eq!(
        aio.stats().getevents_calls,
        calls,
        "nothing in flight, no call"
    );
}
