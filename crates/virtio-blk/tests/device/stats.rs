//! Statistics of a queue: requests, bytes and latencies by kind, and those that were merged, failed or invalid.

use std::sync::Arc;

use engine::Errno;
use telemetry::counters::{BinBoundaries, Scale, SingleWriterU64};
use telemetry::queue::RequestKind;
use virtio_blk::DeviceOptions;

use crate::harness::{CAPACITY_SECTORS, DISCARD, FLUSH, GET_ID, IN, OUT, Rig, WRITE_ZEROES, range};

/// Asserts requests, bytes, ticks, merged, failed, invalid of these kinds.
#[track_caller]
fn check_figures<const KINDS: usize>(rig: &Rig, expected: [(RequestKind, [u64; 6]); KINDS]) {
    for (kind, expected) in expected {
        let stats = rig.stats.of_kind(kind);
        let counters = [
            &stats.bytes,
            &stats.ticks,
            &stats.merged,
            &stats.failed,
            &stats.invalid,
        ];
        let mut figures = vec![stats.latency.total()];
        figures.extend(counters.map(SingleWriterU64::get));
        assert_eq!(figures, expected, "{kind:?}");
    }
}

fn rig() -> Rig {
    Rig::new(DeviceOptions::default())
}

/// Takes what was asked at one time and finishes it at another.
fn run(rig: &mut Rig, from: u64, to: u64) {
    rig.now = from;
    rig.admit_all();
    rig.now = to;
    rig.complete_all();
    rig.used();
}

#[test]
fn each_request_counts_by_its_kind_with_its_bytes_and_its_time() {
    let mut rig = rig();
    rig.read(0, 2);
    rig.read(100, 1);
    run(&mut rig, 1000, 3000);
    rig.write(100, 3, 7);
    rig.ask(FLUSH, 0, &[], 0);
    rig.ask(GET_ID, 0, &[], 20);
    run(&mut rig, 4000, 4400);
    rig.ask(DISCARD, 0, &range(8, 16, 0), 0);
    rig.ask(WRITE_ZEROES, 0, &range(8, 8, 0), 0);
    run(&mut rig, 8000, 9000);
    let expected = [
        (RequestKind::Read, [2, 1536, 4000, 0, 0, 0]),
        (RequestKind::Write, [2, 5632, 1400, 0, 0, 0]),
        (RequestKind::Flush, [1, 0, 400, 0, 0, 0]),
        (RequestKind::Unmap, [1, 8192, 1000, 0, 0, 0]),
    ];
    check_figures(&rig, expected);
    assert_eq!(rig.stats.wr_highest_offset().get(), 103 * 512);
    assert_eq!(rig.stats.last_success_ticks().get(), 9000);
    // Without data it is done at once.
    rig.ask(IN, 3, &[], 0);
    run(&mut rig, 9000, 9100);
    check_figures(&rig, [(RequestKind::Read, [3, 1536, 4000, 0, 0, 0])]);
}

#[test]
fn completions_of_one_batch_count_each_by_its_kind_and_failed_ones_apart() {
    let mut rig = rig();
    rig.now = 1000;
    rig.ask(FLUSH, 0, &[], 0);
    rig.read(7, 2);
    // Two pairs that are joined, and requests that the disk fails.
    for sector in [100, 101, 200, 201, 300] {
        rig.write(sector, 1, 7);
    }
    rig.read(500, 1);
    rig.read(600, 1);
    rig.admit_all();
    rig.now = 6000;
    let submitted = std::mem::take(&mut rig.sink.submitted);
    let result = |sector| match sector {
        200 | 500 => Err(Errno::IO),
        _ => Ok(()),
    };
    let done: Vec<_> = submitted
        .iter()
        .map(|one| (one, result(one.offset / 512)))
        .collect();
    rig.complete_batch(&done);
    rig.queue.record_batch_statistics();
    assert_eq!(rig.stats.in_flight().get(), 0);
    let expected = [
        (RequestKind::Flush, [1, 0, 5000, 0, 0, 0]),
        (RequestKind::Read, [2, 1536, 10_000, 0, 1, 0]),
        (RequestKind::Write, [3, 1536, 15_000, 2, 2, 0]),
    ];
    check_figures(&rig, expected);
    assert_eq!(rig.stats.wr_highest_offset().get(), 301 * 512);
    assert_eq!(rig.stats.last_success_ticks().get(), 6000);
}

#[test]
fn invalid_requests_are_counted_by_their_kind_and_not_as_done() {
    let mut rig = rig();
    // Beyond the end, by kind; half a sector; an unknown type.
    rig.ask(IN, CAPACITY_SECTORS, &[], 512);
    rig.ask(OUT, CAPACITY_SECTORS, &[0; 512], 0);
    rig.ask(OUT, 0, &[0; 100], 0);
    rig.ask(DISCARD, 0, &range(CAPACITY_SECTORS, 1, 0), 0);
    rig.ask(WRITE_ZEROES, 0, &range(0, 1, 0x80), 0);
    rig.ask(77, 0, &[], 0);
    run(&mut rig, 1000, 1000);
    let expected = [
        (RequestKind::Read, [0, 0, 0, 0, 0, 1]),
        (RequestKind::Write, [0, 0, 0, 0, 0, 3]),
        (RequestKind::Unmap, [0, 0, 0, 0, 0, 1]),
        (RequestKind::Flush, [0; 6]),
    ];
    check_figures(&rig, expected);
    assert_eq!(rig.stats.wr_highest_offset().get(), 0);
}

#[test]
fn a_histogram_has_each_request_once_between_its_boundaries() {
    let mut rig = rig();
    let scale = Scale::measure();
    let ends = [1000, 4000].map(|ticks| scale.to_ns(ticks)).to_vec();
    let boundaries = Arc::new(BinBoundaries::new(ends, scale).unwrap());
    for kind in RequestKind::ALL {
        rig.stats
            .configured_histograms()
            .replace_or_remove_bins_of_kind(kind, Some(boundaries.clone()));
    }
    // For nothing; refused; two joined, and a write beside them; failed.
    rig.ask(IN, 3, &[], 0);
    rig.ask(IN, CAPACITY_SECTORS, &[], 512);
    run(&mut rig, 8000, 8000);
    rig.read(0, 1);
    rig.read(1, 1);
    rig.write(100, 3, 7);
    run(&mut rig, 8000, 10_000);
    rig.read(0, 1);
    rig.admit_all();
    let failing = rig.sink.submitted.remove(0);
    rig.complete(&failing, Err(Errno::IO));
    rig.used();
    rig.ask(FLUSH, 0, &[], 0);
    run(&mut rig, 20_000, 28_000);
    let histograms = rig.stats.configured_histograms();
    for (kind, expected) in [
        (RequestKind::Read, [1, 2, 0]),
        (RequestKind::Write, [0, 1, 0]),
        (RequestKind::Flush, [0, 0, 1]),
        (RequestKind::Unmap, [0; 3]),
    ] {
        let bins = histograms.bins_of_kind(kind).unwrap();
        assert!(bins.counts().eq(expected), "{kind:?}");
    }
}

#[test]
fn requests_in_flight_are_shown_and_count_when_their_batch_ends() {
    let mut rig = rig();
    rig.read(0, 1);
    rig.read(10, 1);
    rig.now = 1000;
    rig.admit_all();
    assert_eq!(rig.stats.in_flight().get(), 2);
    let first = rig.sink.submitted.remove(0);
    rig.now = 1500;
    rig.complete(&first, Ok(()));
    rig.queue.record_batch_statistics();
    // Admitted before the other one is published.
    rig.read(20, 1);
    rig.admit_all();
    rig.used();
    assert_eq!(rig.stats.in_flight().get(), 2);
    check_figures(&rig, [(RequestKind::Read, [1, 512, 500, 0, 0, 0])]);
    rig.complete_all();
    rig.used();
    assert_eq!(rig.stats.in_flight().get(), 0);
    check_figures(&rig, [(RequestKind::Read, [3, 1536, 1000, 0, 0, 0])]);
}
