//! Adjacent requests of one batch become one.

use block::Op;
use engine::Errno;
use virtio_blk::{DeviceOptions, MAX_MERGED_REQUESTS, MergeLimits};
use virtqueue::testing::TestMemory;

use crate::harness::{DISCARD, FLUSH, GET_ID, IOERR, OK, Rig, WRITE_ZEROES, range};

fn rig() -> Rig {
    Rig::new(DeviceOptions::default())
}

/// What reached the disk, in sectors.
fn reached(rig: &Rig) -> Vec<(Op, u64, u64)> {
    let submitted = rig.sink.submitted.iter();
    submitted
        .map(|request| (request.op, request.offset / 512, request.len / 512))
        .collect()
}

#[test]
fn adjacent_requests_are_merged_in_any_order() {
    let orders: [[u64; 4]; 4] = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]];
    for order in orders {
        for write in [false, true] {
            let mut rig = rig();
            let mut asked = order.map(|at| {
                let byte = u8::try_from(at).unwrap();
                let asked = if write {
                    rig.write(10 + at * 2, 2, byte)
                } else {
                    rig.read(10 + at * 2, 2)
                };
                (at, asked)
            });
            rig.admit_all();
            let op = if write { Op::Write } else { Op::Read };
            assert_eq!(reached(&rig), [(op, 10, 8)]);
            asked.sort_unstable_by_key(|(at, _)| *at);
            let addresses: Vec<_> = rig.sink.submitted[0]
                .segments
                .iter()
                .map(|segment| rig.memory.guest_addr_of(segment))
                .collect();
            assert_eq!(
                addresses,
                asked.map(|(_, asked)| asked.data),
                "in the disk's order"
            );
            rig.complete_all();
            let used = rig.used();
            assert_eq!(used.len(), 4);
            for (_, asked) in asked {
                let bytes = if write { 1 } else { 1025 };
                assert!(used.contains(&(asked.head, bytes)), "an entry of its own");
                assert_eq!(rig.status(&asked), OK);
            }
        }
    }
}

#[test]
fn requests_with_gaps_or_overlaps_are_not_merged() {
    let mut rig = rig();
    rig.read(0, 2);
    rig.read(3, 1);
    rig.read(1, 2);
    rig.admit_all();
    let op = Op::Read;
    assert_eq!(reached(&rig), [(op, 0, 2), (op, 1, 3)]);
}

#[test]
fn an_error_fails_every_merged_request() {
    let mut rig = rig();
    let joined = [rig.write(0, 1, 1), rig.write(1, 1, 2), rig.write(2, 1, 3)];
    let apart = rig.write(9, 1, 4);
    rig.admit_all();
    let submitted = std::mem::take(&mut rig.sink.submitted);
    assert_eq!(submitted.len(), 2);
    rig.complete(&submitted[0], Err(Errno::IO));
    rig.complete(&submitted[1], Ok(()));
    assert_eq!(rig.used().len(), 4);
    assert_eq!(joined.map(|asked| rig.status(&asked)), [IOERR; 3]);
    assert_eq!(rig.status(&apart), OK);
}

#[test]
fn merging_stops_at_the_limit_of_requests() {
    let mut rig = rig();
    for sector in 0..65 {
        rig.read(sector, 1);
    }
    rig.admit_all();
    let op = Op::Read;
    assert_eq!(reached(&rig), [(op, 0, 32), (op, 32, 32), (op, 64, 1)]);
}

/// What reaches the disk of `count` reads of a sector each, in sectors.
fn lengths_with(limits: MergeLimits, count: u64) -> Vec<u64> {
    let options = DeviceOptions {
        merge_limits: limits,
        ..DeviceOptions::default()
    };
    let mut rig = Rig::with(options, TestMemory::new(8 << 20), 1024);
    for sector in 0..count {
        rig.read(sector, 1);
    }
    rig.admit_all();
    let reached = reached(&rig);
    rig.complete_all();
    assert_eq!(rig.used().len() as u64, count, "an entry for each");
    reached.into_iter().map(|(_, _, len)| len).collect()
}

#[test]
fn limits_apply_up_to_the_maximum() {
    let bytes = MergeLimits::default().bytes;
    for requests in [0, 1] {
        let off = MergeLimits { requests, bytes };
        assert_eq!(lengths_with(off, 4), [1; 4], "{requests} is off");
    }
    for requests in [2, 7, 64] {
        let limits = MergeLimits { requests, bytes };
        let sectors = requests as u64;
        assert_eq!(
            lengths_with(limits, 2 * sectors + 1),
            [sectors, sectors, 1],
            "{requests} requests"
        );
    }
    let limits = MergeLimits {
        requests: usize::MAX,
        bytes,
    };
    let most = MAX_MERGED_REQUESTS as u64;
    assert_eq!(lengths_with(limits, most + 1), [most, 1]);
    for (bytes, lengths) in [
        (1024, vec![2, 2, 1]),
        (1535, vec![2, 2, 1]),
        (512, vec![1; 5]),
    ] {
        let limits = MergeLimits {
            requests: 32,
            bytes,
        };
        assert_eq!(lengths_with(limits, 5), lengths, "{bytes} bytes");
    }
}

#[test]
fn requests_are_neither_merged_nor_sorted_where_it_does_not_help() {
    let mut rig = rig();
    rig.sink.merging_helps = false;
    rig.write(2, 1, 1);
    rig.write(1, 1, 1);
    rig.read(3, 1);
    rig.admit_all();
    assert_eq!(
        reached(&rig),
        [(Op::Write, 2, 1), (Op::Write, 1, 1), (Op::Read, 3, 1)]
    );
}

#[test]
fn a_change_of_direction_ends_a_batch() {
    let mut rig = rig();
    rig.read(0, 1);
    rig.read(1, 1);
    rig.write(2, 1, 1);
    rig.write(3, 1, 1);
    rig.read(4, 1);
    rig.admit_all();
    assert_eq!(
        reached(&rig),
        [(Op::Read, 0, 2), (Op::Write, 2, 2), (Op::Read, 4, 1)]
    );
}

#[test]
fn a_merged_request_has_bounds_in_bytes_and_segments() {
    // 1 MiB at most.
    let mut rig = rig();
    for at in 0..3 {
        rig.read(at * 682, 682);
    }
    rig.admit_all();
    let op = Op::Read;
    let limit = 2048;
    assert!(
        reached(&rig)
            .iter()
            .all(|(_, _, sectors)| *sectors <= limit)
    );
    assert_eq!(reached(&rig), [(op, 0, 2046)], "just below");

    let mut rig = self::rig();
    rig.read(0, 1024);
    rig.read(1024, 1024);
    rig.admit_all();
    assert_eq!(reached(&rig), [(op, 0, 2048)], "as much as allowed");

    // Requests of 50 segments: the third does not fit.
    let mut rig = self::rig();
    for at in 0..3u64 {
        let status = rig.status_byte();
        let mut buffers = vec![virtqueue::testing::Buffer::readable(
            rig.memory.alloc_bytes(&crate::harness::header(0, at * 50)),
            16,
        )];
        let data = rig.memory.alloc(50 * 512, 512);
        buffers
            .extend((0..50).map(|at| virtqueue::testing::Buffer::writable(data + at * 512, 512)));
        buffers.push(virtqueue::testing::Buffer::writable(status, 1));
        rig.driver.add_indirect(&buffers);
    }
    rig.admit_all();
    assert_eq!(reached(&rig), [(op, 0, 100), (op, 100, 50)]);
}

#[test]
fn merging_can_be_turned_off() {
    let mut rig = Rig::new(DeviceOptions {
        request_merging: false,
        ..DeviceOptions::default()
    });
    rig.write(1, 1, 1);
    rig.write(0, 1, 1);
    rig.write(2, 1, 1);
    rig.admit_all();
    let op = Op::Write;
    assert_eq!(
        reached(&rig),
        [(op, 1, 1), (op, 0, 1), (op, 2, 1)],
        "as they came"
    );
}

#[test]
fn limits_change_from_one_batch_to_the_next() {
    let mut rig = rig();
    let bytes = MergeLimits::default().bytes;
    for (requests, bytes, expected) in [
        (32, bytes, vec![6]),
        (1, bytes, vec![1; 6]),
        (4, bytes, vec![4, 2]),
        (64, 1024, vec![2, 2, 2]),
        (usize::MAX, u64::MAX, vec![6]),
    ] {
        rig.device.set_merge_limits(MergeLimits { requests, bytes });
        rig.sink.submitted.clear();
        for sector in 0..6 {
            rig.read(sector, 1);
        }
        rig.admit_all();
        let lengths: Vec<u64> = reached(&rig).into_iter().map(|(_, _, len)| len).collect();
        assert_eq!(lengths, expected, "{requests} requests, {bytes} bytes");
        rig.complete_all();
        assert_eq!(rig.used().len(), 6);
    }
}

#[test]
fn flushes_discards_and_zeroes_are_submitted_after_earlier_writes() {
    let unmap = Op::WriteZeroes { unmap: false };
    let rows = [
        (FLUSH, Vec::new(), (Op::Flush, 0, 0)),
        (DISCARD, range(0, 2, 0), (Op::Discard, 0, 2)),
        (WRITE_ZEROES, range(0, 2, 0), (unmap, 0, 2)),
    ];
    for (kind, out, op) in rows {
        let mut rig = rig();
        rig.write(1, 1, 1);
        rig.write(0, 1, 1);
        rig.ask(kind, 0, &out, 0);
        rig.write(2, 1, 1);
        rig.admit_all();
        assert_eq!(reached(&rig), [(Op::Write, 0, 2), op, (Op::Write, 2, 1)]);
    }
}

#[test]
fn requests_without_the_disk_do_not_end_a_batch() {
    let mut rig = rig();
    rig.write(0, 1, 1);
    rig.ask(GET_ID, 0, &[], 20);
    rig.ask(77, 0, &[], 0);
    rig.write(1, 1, 1);
    rig.admit_all();
    assert_eq!(reached(&rig), [(Op::Write, 0, 2)]);
    assert_eq!(
        rig.used().len(),
        2,
        "answered while the others are in flight"
    );
}

#[test]
fn requests_of_different_batches_are_not_merged() {
    let mut rig = rig();
    rig.write(0, 1, 1);
    rig.admit_all();
    rig.write(1, 1, 1);
    rig.admit_all();
    let op = Op::Write;
    assert_eq!(reached(&rig), [(op, 0, 1), (op, 1, 1)]);
}

#[test]
fn a_merged_write_is_stable_as_a_whole() {
    let mut rig = rig();
    rig.device.set_features(0);
    rig.write(0, 1, 1);
    rig.write(1, 1, 1);
    rig.admit_all();
    assert!(rig.sink.submitted[0].fua);
    assert_eq!(rig.sink.submitted.len(), 1);
}
