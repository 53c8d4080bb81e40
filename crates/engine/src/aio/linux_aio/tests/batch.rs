//! The batch limit that adapts, on disks that work while they are submitted to.

use super::*;
use crate::batch::{DefaultBatch, MAX_ADAPTIVE_BATCH, MIN_ADAPTIVE_BATCH};

fn adaptive(max_events: u32, completion_ring: bool) -> Fake {
    let mut kernel = FakeKernel::new((0..=255).collect());
    if !completion_ring {
        kernel = kernel.without_ring();
    }
    let settings = AioSettings {
        max_events,
        default_batch: DefaultBatch::Adaptive,
        ..AioSettings::default()
    };
    LinuxAio::with_kernel(kernel, settings).unwrap()
}

/// Iterations of a loop with `flood` requests in each; the limit at the end.
fn run(aio: &mut Fake, keeps: usize, iterations: usize, flood: u64) -> u32 {
    aio.kernel.keeps = Some(keeps);
    for _ in 0..iterations {
        for token in 0..flood {
            aio.put_flush(token).unwrap();
        }
        aio.submit();
        aio.reaped();
        // Some are under way at any time, but the disk does not stop between two iterations.
        while aio.kernel.held.len() > 5 {
            aio.kernel.complete(0, Outcome::Whole);
        }
    }
    aio.max_batch()
}

#[test]
fn the_limit_follows_the_disk() {
    let mut aio = adaptive(1024, true);
    assert_eq!(aio.max_batch(), 32);
    assert_eq!(run(&mut aio, 300, 20, 200), MAX_ADAPTIVE_BATCH, "slow");
    assert_eq!(aio.kernel.calls.iter().max(), Some(&128));
    assert_eq!(run(&mut aio, 2, 5, 200), MIN_ADAPTIVE_BATCH, "fast");
    assert_eq!(
        run(&mut aio, 0, 10, 200),
        MAX_ADAPTIVE_BATCH,
        "in memory: done when the call returns"
    );
    let some = run(&mut aio, 20, 20, 200);
    assert!((20..=40).contains(&some), "{some}");
    assert_eq!(run(&mut aio, 20, 20, 200), some, "at rest");
    assert_eq!(aio.stats().max_batch, some);
    aio.set_max_batch(7);
    assert_eq!(run(&mut aio, 300, 5, 200), 7, "one that was set stays");
    aio.set_max_batch(0);
    assert_eq!(run(&mut aio, 300, 20, 200), MAX_ADAPTIVE_BATCH);
}

#[test]
fn it_never_exceeds_the_room() {
    let mut aio = adaptive(20, true);
    assert_eq!(run(&mut aio, 0, 30, 20), 20);
    assert_eq!(aio.kernel.calls.iter().max(), Some(&20));
}

#[test]
fn without_the_completion_ring_it_is_fixed() {
    let mut aio = adaptive(1024, false);
    assert_eq!(run(&mut aio, 2, 20, 200), 32);
    assert_eq!(aio.kernel.calls.iter().max(), Some(&32));
}

/// A call that was not taken as a whole says nothing of the disk.
#[test]
fn partial_calls_teach_nothing() {
    let mut aio = adaptive(1024, true);
    aio.kernel.keeps = Some(1);
    aio.kernel.script.extend([Ok(20), Ok(5), Err(Errno::AGAIN)]);
    (0..32).for_each(|token| aio.put_flush(token).unwrap());
    assert!(aio.blocked());
    assert_eq!(aio.max_batch(), 32);
}
