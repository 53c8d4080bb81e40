//! Statistics of a queue: requests, bytes and latencies by kind, and those that were merged, failed or invalid.

use std::sync::Arc;

use engine::Errno;
use telemetry::counters::{BinBoundaries, Scale};
use telemetry::queue::RequestKind;
use virtio_blk::DeviceOptions;

use crate::harness::{CAPACITY_SECTORS, DISCARD, FLUSH, GET_ID, IN, OUT, Rig, WRITE_ZEROES, range};

/// Requests, bytes, ticks, merged, failed, invalid.
fn figures(rig: &Rig, kind: RequestKind) -> [u64; 6] {
    let stats = rig.stats.of_kind(kind);
    let counters = [
        &stats.bytes,
        &stats.ticks,
        &stats.merged,
        &stats.failed,
        &stats.invalid,
    ];
    let [bytes, ticks, merged, failed, invalid] =
        counters.map(telemetry::counters::SingleWriterU64::get);
    [stats.latency.total(), bytes, ticks, merged, failed, invalid]
}

const NOTHING: [u64; 6] = [0; 6];

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
    let mut rig = Rig::new(DeviceOptions::default());
    rig.read(0, 2);
    rig.read(100, 1);
    run(&mut rig, 1000, 3000);
    assert_eq!(figures(&rig, RequestKind::Read), [2, 1536, 4000, 0, 0, 0]);
    rig.write(100, 3, 7);
    rig.ask(FLUSH, 0, &[], 0);
    rig.ask(GET_ID, 0, &[], 20);
    run(&mut rig, 4000, 4400);
    rig.ask(DISCARD, 0, &range(8, 16, 0), 0);
    rig.ask(WRITE_ZEROES, 0, &range(8, 8, 0), 0);
    run(&mut rig, 8000, 9000);
    assert_eq!(figures(&rig, RequestKind::Read), [2, 1536, 4000, 0, 0, 0]);
    assert_eq!(figures(&rig, RequestKind::Write), [2, 5632, 1400, 0, 0, 0]);
    assert_eq!(figures(&rig, RequestKind::Flush), [1, 0, 400, 0, 0, 0]);
    assert_eq!(figures(&rig, RequestKind::Unmap), [1, 8192, 1000, 0, 0, 0]);
    assert_eq!(rig.stats.wr_highest_offset().get(), 103 * 512);
    assert_eq!(rig.stats.last_success_ticks().get(), 9000);
}

#[test]
fn completions_of_one_batch_count_each_by_its_kind() {
    let mut rig = Rig::new(DeviceOptions::default());
    rig.now = 1000;
    rig.ask(FLUSH, 0, &[], 0);
    rig.read(7, 2);
    // Two that are joined, and one that the disk fails.
    rig.write(100, 1, 7);
    rig.write(101, 1, 7);
    rig.read(500, 1);
    rig.admit_all();
    rig.now = 6000;
    let submitted = std::mem::take(&mut rig.sink.submitted);
    let done: Vec<_> = submitted
        .iter()
        .map(|one| {
            let fails = one.offset == 500 * 512;
            (one, if fails { Err(Errno::IO) } else { Ok(()) })
        })
        .collect();
    rig.complete_batch(&done);
    rig.queue.record_batch_statistics();
    assert_eq!(rig.stats.in_flight().get(), 0);
    assert_eq!(figures(&rig, RequestKind::Flush), [1, 0, 5000, 0, 0, 0]);
    assert_eq!(figures(&rig, RequestKind::Read), [1, 1024, 5000, 0, 1, 0]);
    assert_eq!(
        figures(&rig, RequestKind::Write),
        [2, 1024, 10_000, 1, 0, 0]
    );
    assert_eq!(rig.stats.last_success_ticks().get(), 6000);
}

#[test]
fn merged_requests_count_each_and_their_bytes_once() {
    let mut rig = Rig::new(DeviceOptions::default());
    for sector in [4, 0, 2, 100] {
        rig.write(sector, 2, 1);
    }
    run(&mut rig, 1000, 1400);
    assert_eq!(figures(&rig, RequestKind::Write), [4, 4096, 1600, 2, 0, 0]);
    assert_eq!(rig.stats.wr_highest_offset().get(), 102 * 512);
}

#[test]
fn failed_and_invalid_requests_are_counted_apart_and_not_as_done() {
    let mut rig = Rig::new(DeviceOptions::default());
    rig.read(0, 1);
    rig.read(1, 1);
    rig.read(10, 1);
    rig.now = 1000;
    rig.admit_all();
    let [joined, alone] = <[_; 2]>::try_from(std::mem::take(&mut rig.sink.submitted)).unwrap();
    rig.now = 1500;
    rig.complete(&joined, Err(Errno::IO));
    rig.complete(&alone, Ok(()));
    rig.used();
    assert_eq!(figures(&rig, RequestKind::Read), [1, 512, 500, 1, 2, 0]);

    // Beyond the end, by kind; half a sector; an unknown type.
    rig.ask(IN, CAPACITY_SECTORS, &[], 512);
    rig.ask(OUT, CAPACITY_SECTORS, &[0; 512], 0);
    rig.ask(OUT, 0, &[0; 100], 0);
    rig.ask(DISCARD, 0, &range(CAPACITY_SECTORS, 1, 0), 0);
    rig.ask(WRITE_ZEROES, 0, &range(0, 1, 0x80), 0);
    rig.ask(77, 0, &[], 0);
    run(&mut rig, 1000, 1000);
    assert_eq!(figures(&rig, RequestKind::Read), [1, 512, 500, 1, 2, 1]);
    assert_eq!(figures(&rig, RequestKind::Write), [0, 0, 0, 0, 0, 3]);
    assert_eq!(figures(&rig, RequestKind::Unmap), [0, 0, 0, 0, 0, 1]);
    assert_eq!(figures(&rig, RequestKind::Flush), NOTHING);
    assert_eq!(rig.stats.wr_highest_offset().get(), 0);
}

#[test]
fn failed_requests_among_successful_ones_are_in_no_group() {
    let mut rig = Rig::new(DeviceOptions::default());
    for sector in [0, 10, 20, 30, 40] {
        rig.read(sector, 1);
    }
    rig.now = 1000;
    rig.admit_all();
    rig.now = 1500;
    for submitted in std::mem::take(&mut rig.sink.submitted) {
        let fails = [10, 20].contains(&(submitted.offset / 512));
        rig.complete(&submitted, if fails { Err(Errno::IO) } else { Ok(()) });
    }
    rig.used();
    assert_eq!(figures(&rig, RequestKind::Read), [3, 1536, 1500, 0, 2, 0]);
    assert_eq!(rig.stats.in_flight().get(), 0);
}

#[test]
fn requests_admitted_before_others_are_published_are_not_counted_as_finished() {
    let mut rig = Rig::new(DeviceOptions::default());
    rig.read(0, 1);
    rig.read(10, 1);
    rig.now = 1000;
    rig.admit_all();
    rig.now = 1500;
    rig.complete_all();
    rig.queue.record_batch_statistics();
    for sector in [20, 30, 40] {
        rig.read(sector, 1);
    }
    rig.admit_all();
    rig.used();
    assert_eq!(figures(&rig, RequestKind::Read), [2, 1024, 1000, 0, 0, 0]);
    assert_eq!(rig.stats.in_flight().get(), 3);
    rig.complete_all();
    rig.used();
    assert_eq!(figures(&rig, RequestKind::Read)[0], 5);
}

#[test]
fn a_request_without_data_is_done_at_once() {
    let mut rig = Rig::new(DeviceOptions::default());
    rig.ask(IN, 3, &[], 0);
    run(&mut rig, 100, 200);
    assert_eq!(figures(&rig, RequestKind::Read), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_histogram_has_each_request_once_between_its_boundaries() {
    let mut rig = Rig::new(DeviceOptions::default());
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
    let counts = |kind| {
        let bins = rig
            .stats
            .configured_histograms()
            .bins_of_kind(kind)
            .unwrap();
        bins.counts().collect::<Vec<_>>()
    };
    assert_eq!(counts(RequestKind::Read), [1, 2, 0]);
    assert_eq!(counts(RequestKind::Write), [0, 1, 0]);
    assert_eq!(counts(RequestKind::Flush), [0, 0, 1]);
    assert_eq!(counts(RequestKind::Unmap), [0; 3]);
}

#[test]
fn requests_in_flight_are_shown_and_count_when_their_batch_ends() {
    let mut rig = Rig::new(DeviceOptions::default());
    rig.read(0, 1);
    rig.read(10, 1);
    rig.admit_all();
    assert_eq!(rig.stats.in_flight().get(), 2);
    let first = rig.sink.submitted.remove(0);
    rig.complete(&first, Ok(()));
    rig.used();
    assert_eq!(rig.stats.in_flight().get(), 1);
    assert_eq!(figures(&rig, RequestKind::Read), [1, 512, 0, 0, 0, 0]);
    rig.complete_all();
    rig.used();
    assert_eq!(rig.stats.in_flight().get(), 0);
}
