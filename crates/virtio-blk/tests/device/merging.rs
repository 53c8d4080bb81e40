//! Adjacent requests of one batch become one.

use block::Op;
use engine::Errno;
use virtio_blk::{DeviceOptions, MAX_MERGED_REQUESTS, MergeLimits};
use virtqueue::testing::{Buffer, TestMemory};

use crate::harness::{
    Asked, DISCARD, FLUSH, GET_ID, IN, IOERR, OK, OUT, Rig, WRITE_ZEROES, header, range,
};

const READ: Op = Op::Read;
const WRITE: Op = Op::Write;

fn rig() -> Rig {
    Rig::new(DeviceOptions::default())
}

/// Asks for a request of this type, sector and number of sectors.
fn ask(rig: &mut Rig, (kind, sector, sectors): (u32, u64, u32)) -> Asked {
    match kind {
        IN => rig.read(sector, sectors),
        OUT => rig.write(sector, sectors as usize, 1),
        GET_ID => rig.ask(kind, 0, &[], 20),
        DISCARD | WRITE_ZEROES => rig.ask(kind, 0, &range(sector, sectors, 0), 0),
        _ => rig.ask(kind, sector, &[], 0),
    }
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
        for (kind, op, written) in [(IN, READ, 1025), (OUT, WRITE, 1)] {
            let mut rig = rig();
            let mut asked = order.map(|at| (at, ask(&mut rig, (kind, 10 + at * 2, 2))));
            rig.admit_all();
            assert_eq!(reached(&rig), [(op, 10, 8)]);
            asked.sort_unstable_by_key(|(at, _)| *at);
            let segments = rig.sink.submitted[0].segments.iter();
            let addresses: Vec<_> = segments.map(|s| rig.memory.guest_addr_of(s)).collect();
            let expected = asked.map(|(_, asked)| asked.data);
            assert_eq!(addresses, expected, "in the disk's order");
            rig.complete_all();
            let used = rig.used();
            assert_eq!(used.len(), 4);
            for (_, asked) in asked {
                assert!(used.contains(&(asked.head, written)), "an entry of its own");
                assert_eq!(rig.status(&asked), OK);
            }
        }
    }
}

#[test]
fn requests_of_a_batch_are_merged_up_to_the_next_that_cannot_be() {
    let zeroes = Op::WriteZeroes { unmap: false };
    let two_and_one = |op, between| vec![(WRITE, 0, 2), (op, 0, between), (WRITE, 2, 1)];
    let with_others = |kind| vec![(OUT, 1, 1), (OUT, 0, 1), (kind, 0, 2), (OUT, 2, 1)];
    for (asked, expected) in [
        // Gaps and overlaps.
        (
            vec![(IN, 0, 2), (IN, 3, 1), (IN, 1, 2)],
            vec![(READ, 0, 2), (READ, 1, 3)],
        ),
        // The direction changes.
        (
            vec![(IN, 0, 1), (IN, 1, 1), (OUT, 2, 1), (OUT, 3, 1), (IN, 4, 1)],
            vec![(READ, 0, 2), (WRITE, 2, 2), (READ, 4, 1)],
        ),
        // 1 MiB at most.
        (vec![(IN, 0, 1024), (IN, 1024, 1024)], vec![(READ, 0, 2048)]),
        // Others are submitted after earlier writes.
        (with_others(FLUSH), two_and_one(Op::Flush, 0)),
        (with_others(DISCARD), two_and_one(Op::Discard, 2)),
        (with_others(WRITE_ZEROES), two_and_one(zeroes, 2)),
        // Requests without the disk.
        (
            vec![(OUT, 0, 1), (GET_ID, 0, 0), (77, 0, 0), (OUT, 1, 1)],
            vec![(WRITE, 0, 2)],
        ),
    ] {
        let mut rig = rig();
        for one in &asked {
            ask(&mut rig, *one);
        }
        rig.admit_all();
        assert_eq!(reached(&rig), expected, "{asked:?}");
        rig.complete_all();
        assert_eq!(rig.used().len(), asked.len(), "an entry for each");
    }
}

#[test]
fn a_merged_request_has_segments_of_as_many_requests_as_fit() {
    let mut rig = rig();
    // Requests of 50 segments: the third does not fit.
    for at in 0..3u64 {
        let start = rig.memory.alloc_bytes(&header(IN, at * 50));
        let data = rig.memory.alloc(50 * 512, 512);
        let mut buffers = vec![Buffer::readable(start, 16)];
        buffers.extend((0..50).map(|at| Buffer::writable(data + at * 512, 512)));
        buffers.push(Buffer::writable(rig.status_byte(), 1));
        rig.driver.add_indirect(&buffers);
    }
    rig.admit_all();
    assert_eq!(reached(&rig), [(READ, 0, 100), (READ, 100, 50)]);
}

#[test]
fn an_error_fails_every_merged_request() {
    let mut rig = rig();
    let joined = [rig.read(0, 1), rig.read(1, 1), rig.read(2, 1)];
    let apart = rig.read(9, 1);
    rig.admit_all();
    let submitted = std::mem::take(&mut rig.sink.submitted);
    assert_eq!(submitted.len(), 2);
    rig.complete(&submitted[0], Err(Errno::IO));
    rig.complete(&submitted[1], Ok(()));
    let [a, b, c] = joined.map(|asked| (asked.head, 513));
    // `used.len` does not depend on the outcome.
    assert_eq!(rig.used(), [a, b, c, (apart.head, 513)]);
    assert_eq!(joined.map(|asked| rig.status(&asked)), [IOERR; 3]);
    assert_eq!(rig.status(&apart), OK);
}

/// Which lengths reach the disk of so many reads of a sector each, in sectors.
fn lengths_of(rig: &mut Rig, count: u64) -> Vec<u64> {
    for sector in 0..count {
        rig.read(sector, 1);
    }
    rig.admit_all();
    let lengths = reached(rig).into_iter().map(|(_, _, len)| len).collect();
    rig.complete_all();
    assert_eq!(rig.used().len() as u64, count, "an entry for each");
    lengths
}

#[test]
fn limits_apply_up_to_the_maximum_and_change_from_one_batch_to_the_next() {
    let mut rig = Rig::with(DeviceOptions::default(), TestMemory::new(8 << 20), 1024);
    assert_eq!(lengths_of(&mut rig, 65), [32, 32, 1], "the default");
    let default = MergeLimits::default().bytes;
    let most = MAX_MERGED_REQUESTS as u64;
    for (requests, bytes, count, expected) in [
        (0, default, 4, vec![1; 4]),
        (1, default, 4, vec![1; 4]),
        (2, default, 5, vec![2, 2, 1]),
        (7, default, 15, vec![7, 7, 1]),
        (64, default, 129, vec![64, 64, 1]),
        (usize::MAX, u64::MAX, most + 1, vec![most, 1]),
        (32, 1024, 5, vec![2, 2, 1]),
        (32, 1535, 5, vec![2, 2, 1]),
        (32, 512, 5, vec![1; 5]),
    ] {
        rig.device.set_merge_limits(MergeLimits { requests, bytes });
        let lengths = lengths_of(&mut rig, count);
        assert_eq!(lengths, expected, "{requests} requests, {bytes} bytes");
    }
    let requests = 3;
    let mut rig = Rig::new(DeviceOptions {
        merge_limits: MergeLimits {
            requests,
            bytes: default,
        },
        ..DeviceOptions::default()
    });
    assert_eq!(lengths_of(&mut rig, 4), [3, 1], "a limit from the start");
}

#[test]
fn requests_are_neither_merged_nor_sorted_where_it_does_not_help_or_is_off() {
    for request_merging in [true, false] {
        let mut rig = Rig::new(DeviceOptions {
            request_merging,
            ..DeviceOptions::default()
        });
        rig.sink.merging_helps = !request_merging;
        let asked = [(OUT, 2, 1), (OUT, 1, 1), (IN, 3, 1)].map(|one| ask(&mut rig, one));
        rig.admit_all();
        let expected = [(WRITE, 2, 1), (WRITE, 1, 1), (READ, 3, 1)];
        assert_eq!(reached(&rig), expected);
        for (request, asked) in rig.sink.submitted.iter().zip(asked) {
            let addr = rig.memory.guest_addr_of(&request.segments[0]);
            assert_eq!(addr, asked.data, "without a copy");
        }
    }
}

#[test]
fn requests_of_different_batches_are_not_merged() {
    let mut rig = rig();
    rig.write(0, 1, 1);
    rig.admit_all();
    rig.write(1, 1, 1);
    rig.admit_all();
    assert_eq!(reached(&rig), [(WRITE, 0, 1), (WRITE, 1, 1)]);
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
