//! Discard and write zeroes: what reads back, and what the file still occupies.
//!
//! What `st_blocks` must do holds for file systems that can punch holes (ext4, xfs, btrfs,
//! tmpfs); temporary files must live on one of them.

use blkio::ReqFlags;
use interop::client::{Client, Disk, Request};
use interop::image::{Backing, Image};
use interop::model::{Extent, Model, ZEROES};
use interop::random::Random;
use interop::server::Setup;
use interop::suite::Test;
use interop::workload::{self, Placement, SIZES};

use crate::patterns::{ARENA, DISK_BYTES, connect, exercise};

pub const TESTS: &[Test] = &[
    Test::on_each_backing("zeroes::discard_frees_space", discard_frees_space),
    Test::on_each_backing("zeroes::write_zeroes_may_unmap", write_zeroes_may_unmap),
    Test::on_each_backing(
        "zeroes::write_zeroes_keeps_blocks",
        write_zeroes_keeps_blocks,
    ),
    Test::on_each_backing("zeroes::odd_sectors", odd_sectors),
    Test::on_each_backing("zeroes::among_writes", among_writes),
    Test::on_each_backing("zeroes::limits_are_in_the_config", limits_are_in_the_config),
];

/// 8 MiB that are written first.
const WRITTEN: Extent = Extent {
    sector: 2048,
    sectors: 16_384,
};
/// The 4 MiB of it that are zeroed.
const ZEROED: Extent = Extent {
    sector: 6144,
    sectors: 8192,
};
/// What a file system may keep for its own bookkeeping or its own block size.
const SLACK_BYTES: u64 = 128 << 10;

fn check_all(disk: &mut Disk, model: &Model) {
    let mut random = Random::new(40);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(disk.queue(0), model, &extents, &place, &mut random);
}

/// `extent` in pieces of at most `limit_bytes`, and of at most 1 MiB so that there are several.
fn pieces(extent: Extent, limit_bytes: u64) -> Vec<Extent> {
    let each = (limit_bytes / 512).clamp(1, 2048);
    workload::cut(extent, &[each], &mut Random::new(41))
}

/// Writes, zeroes the middle with `request`, checks the data, and returns what the file occupied
/// before and after.
fn zero_the_middle(
    backing: Backing,
    limit: &str,
    request: impl Fn(Extent) -> Request,
) -> (u64, u64) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let mut model = exercise(&mut disk, WRITTEN, 42);
    assert_eq!(disk.queue(0).run_one(Request::Flush), 0);
    let before = image.allocated_bytes();
    assert!(
        before >= WRITTEN.bytes() as u64,
        "{before} bytes are allocated"
    );
    let pieces = pieces(ZEROED, disk.property(limit));
    let requests: Vec<_> = pieces.into_iter().map(request).collect();
    assert!(
        disk.queue(0)
            .run(&requests)
            .iter()
            .all(|&answer| answer == 0)
    );
    model.set(ZEROED, ZEROES);
    check_all(&mut disk, &model);
    assert_eq!(disk.queue(0).run_one(Request::Flush), 0);
    let after = image.allocated_bytes();
    drop(disk);
    server.stop();
    image.assert_holds(&model);
    (before, after)
}

fn assert_freed((before, after): (u64, u64)) {
    let freed = before.saturating_sub(after);
    let wanted = ZEROED.bytes() as u64 - SLACK_BYTES;
    assert!(freed >= wanted, "{before} bytes before, {after} after");
}

fn discard_frees_space(backing: Backing) {
    assert_freed(zero_the_middle(
        backing,
        "max-discard-len",
        Request::Discard,
    ));
}

fn write_zeroes_may_unmap(backing: Backing) {
    // blkio sets VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP by default, and has nothing to say
    // NO_FALLBACK with: it must not change the outcome
    for flags in [ReqFlags::empty(), ReqFlags::NO_FALLBACK] {
        let write = |extent| Request::WriteZeroes(extent, flags);
        assert_freed(zero_the_middle(backing, "max-write-zeroes-len", write));
    }
}

fn write_zeroes_keeps_blocks(backing: Backing) {
    let write = |extent| Request::WriteZeroes(extent, ReqFlags::NO_UNMAP);
    let (before, after) = zero_the_middle(backing, "max-write-zeroes-len", write);
    assert!(
        after + SLACK_BYTES >= before,
        "{before} bytes before, {after} after"
    );
}

/// Ranges that are no whole blocks of anything: their neighbours stay.
fn odd_sectors(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let mut model = exercise(&mut disk, WRITTEN, 43);
    let mut random = Random::new(43);
    let mut requests = Vec::new();
    for (i, extent) in workload::cut(WRITTEN, &SIZES, &mut random)
        .into_iter()
        .enumerate()
    {
        // the first and the last sector stay; a third of the extents is zeroed
        if i % 3 == 0 && extent.sectors > 2 {
            let inner = Extent::new(extent.sector + 1, extent.sectors - 2);
            let flags = [ReqFlags::empty(), ReqFlags::NO_UNMAP, ReqFlags::FUA][requests.len() % 3];
            requests.push(Request::WriteZeroes(inner, flags));
            model.set(inner, ZEROES);
        }
    }
    assert!(
        disk.queue(0)
            .run(&requests)
            .iter()
            .all(|&answer| answer == 0)
    );
    check_all(&mut disk, &model);
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

/// Zeroing and discarding while other sectors are written and read.
fn among_writes(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let mut model = exercise(&mut disk, WRITTEN, 44);
    let mut random = Random::new(44);
    let place = Placement::skewed(8);
    for seed in 45..48 {
        // whole pages, so that a discarded range has a known content
        let extents = workload::cut(WRITTEN, &[8, 16, 64, 128], &mut random);
        let queue = disk.queue(0);
        let buffers = workload::place(&extents, &place, ARENA, &mut random);
        let mut requests = workload::write_requests(queue, &extents, &buffers, seed);
        for (i, (request, &extent)) in requests.iter_mut().zip(&extents).enumerate() {
            let zeroing = match i % 5 {
                0 if backing.zeroes_by_small_discards() => Request::Discard(extent),
                0 | 1 => Request::WriteZeroes(extent, ReqFlags::empty()),
                2 => Request::WriteZeroes(extent, ReqFlags::NO_UNMAP),
                _ => {
                    model.set(extent, seed);
                    continue;
                }
            };
            model.set(extent, ZEROES);
            *request = zeroing;
        }
        assert!(queue.run(&requests).iter().all(|&answer| answer == 0));
        check_all(&mut disk, &model);
    }
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

/// Fields that are zero stop some guests from booting; a client needs them to cut its requests.
fn limits_are_in_the_config(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(1 << 20));
    for limit in ["max-discard-len", "max-write-zeroes-len"] {
        assert!(
            disk.property(limit) >= 1 << 20,
            "{limit}: {}",
            disk.property(limit)
        );
    }
    assert!(disk.property("discard-alignment") >= 512);
    // the whole limit in one request, or the whole disk
    let whole = |limit: u64| Extent::new(0, (limit / 512).min(DISK_BYTES / 512));
    let discard = Request::Discard(whole(disk.property("max-discard-len")));
    assert_eq!(disk.queue(0).run_one(discard), 0);
    let most = whole(disk.property("max-write-zeroes-len"));
    let zeroes = Request::WriteZeroes(most, ReqFlags::empty());
    assert_eq!(disk.queue(0).run_one(zeroes), 0);
}
