//! Requests: what is written is read, also by Ceph's own tools, and ranges are checked.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ceph::{Image, LockError, MAX_BYTES_IN_FLIGHT};
use engine::{Errno, Op};
use test_support::ceph::Cluster;
use test_support::deadline::eventually;

use crate::client::{Client, IMAGE_BYTES, image};
use crate::requester::{Requester, pattern};

const MIB: usize = 1 << 20;

/// The image as Ceph's own tool reads it.
fn export(cluster: &Cluster, name: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("exported");
    cluster.rbd(["export", name, path.to_str().unwrap()]);
    fs::read(path).unwrap()
}

fn assert_same(read: &[u8], expected: &[u8]) {
    assert_eq!(read.len(), expected.len());
    let differing = read.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differing, None, "first byte that differs");
}

#[test]
fn what_is_written_and_zeroed_is_read_and_exported() {
    let Some((cluster, client)) = Client::with_images(["patterns"]) else {
        return;
    };
    let image = client.open("patterns");
    assert_eq!(image.known_size(), IMAGE_BYTES);
    assert_eq!(image.geometry().object_bytes, 4 << 20);
    let mut requester = Requester::new(&image);
    let bytes = usize::try_from(IMAGE_BYTES).unwrap();
    let mut model = vec![0; bytes];
    // Within an object, across two, a few bytes, to the end.
    for (seed, offset, len) in [
        (1, 0, MIB),
        (2, 4 * MIB - 4096, 8192),
        (3, 511, 3),
        (4, 2 * MIB, 5 * MIB),
        (5, bytes - 612, 612),
    ] {
        let data = pattern(seed, len);
        requester.write(offset as u64, &data).unwrap();
        model[offset..offset + len].copy_from_slice(&data);
    }
    // Several buffers, more than the kernel would take, and one that is empty.
    let data = pattern(6, 2000 * 512);
    let segments = data.chunks(512).map(Box::from).chain([Box::default()]);
    let segments: Vec<Box<[u8]>> = segments.collect();
    requester
        .run(Op::Write, true, 8192, data.len() as u64, segments)
        .unwrap();
    model[8192..8192 + data.len()].copy_from_slice(&data);

    assert_same(&requester.read(0, model.len()).unwrap(), &model);
    let buffers = vec![vec![0xee; 700].into_boxed_slice(); 1500];
    requester
        .run(Op::Read, false, 100, 700 * 1500, buffers)
        .unwrap();
    let read = requester.segments_of_last().concat();
    assert_same(&read, &model[100..100 + 700 * 1500]);
    requester.without_data(Op::Flush, 0, 0).unwrap();
    assert_same(&export(cluster, "rbd/patterns"), &model);

    model = pattern(7, bytes);
    requester.write(0, &model).unwrap();
    let thin = Op::WriteZeroes { unmap: true };
    let thick = Op::WriteZeroes { unmap: false };
    // A whole object is certain to be freed; zeroes may begin and end anywhere.
    for (op, fua, offset, len) in [
        (Op::Discard, false, 4 * MIB, 4 * MIB),
        (thin, false, MIB + 1, 100_003),
        (thick, true, 2 * MIB + 3, 200_001),
        (thin, true, 9 * MIB, 100),
        (thick, false, 8 * MIB, 512),
    ] {
        requester
            .run(op, fua, offset as u64, len as u64, Vec::new())
            .unwrap();
        model[offset..offset + len].fill(0);
    }
    assert_same(&requester.read(0, model.len()).unwrap(), &model);
    assert_same(&export(cluster, "rbd/patterns"), &model);
}

#[test]
fn thick_zeroes_allocate_and_discards_free() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/allocated", 5 * (4 << 20));
    let client = Client::connect(cluster);
    let image = client.open("allocated");
    let mut requester = Requester::new(&image);
    let object = 4 << 20;
    let allocated = |from: u64, len: u64, most| {
        let extents = image.allocations(from, len, most).unwrap();
        let object_of = |e: ceph::Extent| (e.offset, e.len, e.allocated);
        extents.into_iter().map(object_of).collect::<Vec<_>>()
    };
    assert_eq!(allocated(0, 5 * object, 9), [(0, 5 * object, false)]);
    requester.write(object, &pattern(1, 512)).unwrap();
    let thick = Op::WriteZeroes { unmap: false };
    requester.without_data(thick, 2 * object, object).unwrap();
    requester.write(4 * object, &pattern(1, 512)).unwrap();
    let all = [
        (0, object, false),
        (object, 2 * object, true),
        (3 * object, object, false),
        (4 * object, object, true),
    ];
    assert_eq!(allocated(0, 5 * object, 9), all);
    assert_eq!(allocated(0, 5 * object, 2), all[..2]);
    // Neither end is that of an object.
    assert_eq!(
        allocated(object + 512, 2 * object, 9),
        [
            (object + 512, 2 * object - 512, true),
            (3 * object, 512, false)
        ]
    );
    requester.without_data(Op::Discard, object, object).unwrap();
    let freed = [
        (0, 2 * object, false),
        (2 * object, object, true),
        (3 * object, object, false),
    ];
    assert_eq!(allocated(0, 5 * object, 3), freed);
}

#[test]
fn the_end_of_an_image_bounds_writes_and_fills_reads_with_zeroes() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/end", MIB as u64);
    let client = Client::connect(cluster);
    let image = client.open("end");
    let mut requester = Requester::new(&image);
    let data = pattern(1, MIB);
    requester.write(0, &data).unwrap();
    let mut at_end = requester.read(MIB as u64 - 1000, 3000).unwrap();
    let beyond = at_end.split_off(1000);
    assert_same(&at_end, &data[MIB - 1000..]);
    assert_same(&beyond, &[0; 2000]);
    for offset in [MIB as u64 - 1000, MIB as u64, u64::MAX - 100] {
        assert_eq!(requester.write(offset, &[0; 3000]), Err(Errno::IO));
        for op in [
            Op::Discard,
            Op::WriteZeroes { unmap: true },
            Op::WriteZeroes { unmap: false },
        ] {
            let result = requester.without_data(op, offset, 3000);
            assert_eq!(result, Err(Errno::IO), "{op:?}");
        }
    }
    assert_eq!(requester.read(MIB as u64, 512), Err(Errno::IO));
    // More than may be in flight.
    for _ in 0..=MAX_BYTES_IN_FLIGHT / MIB as u64 {
        assert_eq!(requester.write(MIB as u64, &data), Err(Errno::IO));
    }
    assert_same(&requester.read(0, MIB).unwrap(), &data);
    for op in [Op::Read, Op::Write, Op::Discard] {
        assert_eq!(requester.without_data(op, 0, 0), Ok(()), "{op:?}");
    }
    assert_same(&export(cluster, "rbd/end"), &data);
}

#[test]
fn requests_in_flight_are_bounded_and_each_completes_once() {
    let Some((_, client)) = Client::with_images(["depth"]) else {
        return;
    };
    let image = client.open("depth");
    let mut requester = Requester::new(&image);
    for block in 0..ceph::MAX_IN_FLIGHT {
        assert_eq!(requester.queue().room(), ceph::MAX_IN_FLIGHT - block);
        let data = pattern(block.to_le_bytes()[0], 4096).into_boxed_slice();
        let (fua, offset) = (block % 2 == 0, block as u64 * 4096);
        requester.start(Op::Write, fua, offset, 4096, vec![data]);
    }
    assert_eq!(requester.queue().room(), 0);
    let mut completions = requester.finish().to_vec();
    assert!(completions.iter().all(|done| done.result.is_ok()));
    completions.sort_by_key(|completion| completion.token);
    let tokens = completions.iter().map(|completion| completion.token);
    assert!(tokens.eq(0..ceph::MAX_IN_FLIGHT as u64));
    let read = requester.read(0, ceph::MAX_IN_FLIGHT * 4096).unwrap();
    for (block, data) in read.chunks(4096).enumerate() {
        assert_same(data, &pattern(block.to_le_bytes()[0], 4096));
    }
}

#[test]
fn bytes_in_flight_are_limited_and_requests_beyond_follow_in_order() {
    let Some((_, client)) = Client::with_images(["bytes"]) else {
        return;
    };
    let image = client.open("bytes");
    let mut requester = Requester::new(&image);
    let most = usize::try_from(MAX_BYTES_IN_FLIGHT).unwrap() / MIB;
    let count = 2 * most + 3;
    for number in 0..count {
        let data = vec![number.to_le_bytes()[0]; MIB].into_boxed_slice();
        let offset = (number % 4 * MIB) as u64;
        let op = if number % 5 == 4 { Op::Read } else { Op::Write };
        requester.start(op, false, offset, MIB as u64, vec![data]);
    }
    assert_eq!(image.request_stats().in_flight(), most as u64);
    assert_eq!(requester.queue().in_flight(), count);
    // Those without data do not wait for others.
    requester.start(Op::Flush, false, 0, 0, Vec::new());
    assert_eq!(image.request_stats().in_flight(), most as u64 + 1);
    let completions = requester.finish();
    assert_eq!(completions.len(), count + 1);
    assert!(completions.iter().all(|done| done.result.is_ok()));
    assert_eq!(image.request_stats().in_flight(), 0);
    // One that is larger than the limit is in flight alone.
    let large = vec![1; most * MIB + 512].into_boxed_slice();
    let len = large.len() as u64;
    assert_eq!(
        requester.run(Op::Write, false, 0, len, vec![large]),
        Err(Errno::IO),
        "beyond the end"
    );
}

#[test]
fn a_snapshot_that_is_removed_while_it_is_read_fails_instead_of_reading_as_zeroes() {
    let Some((cluster, client)) = Client::with_images(["readable"]) else {
        return;
    };
    let data = pattern(1, 4096);
    let resizes = Arc::new(AtomicU32::new(0));
    let counter = resizes.clone();
    let on_resize = Arc::new(move || _ = counter.fetch_add(1, Ordering::Relaxed));
    let written = Image::open(client.connection(), &image("readable"), on_resize).unwrap();
    let mut writer = Requester::new(&written);
    writer.write(0, &data).unwrap();
    cluster.rbd(["snap", "create", "rbd/readable@before"]);
    writer.write(0, &[2; 4096]).unwrap();
    drop((writer, written));
    let resizes = resizes.load(Ordering::Relaxed);
    assert_eq!(resizes, 0, "a snapshot changes the header, and no size");
    // Images open for reading and snapshots refuse writes.
    let mut options = image("readable");
    options.read_only = true;
    let mut current = Requester::new(&client.try_open(&options).unwrap());
    assert_same(&current.read(0, 4096).unwrap(), &[2; 4096]);
    assert_eq!(current.write(0, &data), Err(Errno::ROFS));
    options.snapshot = Some("before".to_owned());
    options.read_only = false;
    let snapshot = client.try_open(&options).unwrap();
    let mut before = Requester::new(&snapshot);
    assert_same(&before.read(0, 4096).unwrap(), &data);
    assert_eq!(before.write(0, &data), Err(Errno::ROFS));
    assert_eq!(before.without_data(Op::Flush, 0, 0), Ok(()));
    let refused = snapshot.lock().unwrap_err();
    assert!(matches!(refused, LockError::ReadOnly { .. }), "{refused}");
    // Its data is needed no more.
    cluster.rbd(["snap", "rm", "--no-progress", "rbd/readable@before"]);
    eventually("a read fails", || match before.read(0, 4096) {
        Ok(read) => {
            assert_same(&read, &data);
            false
        }
        Err(_) => true,
    });
}
