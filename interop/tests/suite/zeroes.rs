//! Discard and write zeroes: what reads back, and what the file still occupies.
//!
//! What `st_blocks` must do holds for file systems that can punch holes (ext4, xfs, btrfs,
//! tmpfs); temporary files must live on one of them.

use blkio::ReqFlags;
use interop::client::Request;
use interop::model::{Extent, ZEROES};
use interop::random::Random;
use interop::workload::{self, Placement, SIZES};

use crate::rig::{ARENA, DISK_BYTES, Rig, check_all, exercise};

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

#[test]
fn space_is_freed_or_kept() {
    let mut rig = Rig::new();
    let zeroes = |flags| move |extent| Request::WriteZeroes(extent, flags);
    let limit = "max-write-zeroes-len";
    type Zero = Box<dyn Fn(Extent) -> Request>;
    let cases: [(&str, bool, Zero); 4] = [
        ("max-discard-len", true, Box::new(Request::Discard)),
        // blkio sets VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP by default, and has nothing to say
        // NO_FALLBACK with: it must not change the outcome
        (limit, true, Box::new(zeroes(ReqFlags::empty()))),
        (limit, true, Box::new(zeroes(ReqFlags::NO_FALLBACK))),
        (limit, false, Box::new(zeroes(ReqFlags::NO_UNMAP))),
    ];
    for (case, (limit, frees, request)) in cases.into_iter().enumerate() {
        let mut model = exercise(&mut rig.disk, WRITTEN, 42);
        assert_eq!(rig.disk.queue(0).run_one(Request::Flush), 0);
        let before = rig.image.allocated_bytes();
        assert!(
            before >= WRITTEN.bytes() as u64,
            "{before} bytes are allocated"
        );
        // at most 1 MiB, so that there are several
        let each = (rig.disk.property(limit) / 512).clamp(1, 2048);
        let pieces = workload::cut(ZEROED, &[each], &mut Random::new(41));
        let mut requests: Vec<_> = pieces.into_iter().map(request).collect();
        requests.push(Request::Flush);
        let answers = rig.disk.queue(0).run(&requests);
        assert!(answers.iter().all(|&answer| answer == 0), "case {case}");
        model.set(ZEROED, ZEROES);
        check_all(&mut rig.disk, &model);
        assert_eq!(rig.disk.queue(0).run_one(Request::Flush), 0);
        let freed = before.saturating_sub(rig.image.allocated_bytes());
        let is_good = match frees {
            true => freed + SLACK_BYTES >= ZEROED.bytes() as u64,
            false => freed <= SLACK_BYTES,
        };
        assert!(is_good, "case {case}: {freed} bytes of {before} were freed");
        rig.image.assert_holds(&model);
    }
}

/// Ranges that are no whole blocks of anything: their neighbours stay.
#[test]
fn odd_sectors() {
    let mut rig = Rig::new();
    let mut model = exercise(&mut rig.disk, WRITTEN, 43);
    let extents = workload::cut(WRITTEN, &SIZES, &mut Random::new(43));
    let mut requests = Vec::new();
    // the first and the last sector stay; a third of the extents is zeroed
    for extent in extents.iter().step_by(3).filter(|one| one.sectors > 2) {
        let inner = Extent::new(extent.sector + 1, extent.sectors - 2);
        let flags = [ReqFlags::empty(), ReqFlags::NO_UNMAP, ReqFlags::FUA][requests.len() % 3];
        requests.push(Request::WriteZeroes(inner, flags));
        model.set(inner, ZEROES);
    }
    let answers = rig.disk.queue(0).run(&requests);
    assert!(answers.iter().all(|&answer| answer == 0));
    check_all(&mut rig.disk, &model);
    rig.finish(&model);
}

/// Zeroing and discarding while other sectors are written and read.
#[test]
fn zeroes_and_discards_among_writes_change_their_sectors_only() {
    let mut rig = Rig::new();
    let mut model = exercise(&mut rig.disk, WRITTEN, 44);
    let mut random = Random::new(44);
    let place = Placement::skewed(8);
    for seed in 45..48 {
        // whole pages, so that a discarded range has a known content
        let extents = workload::cut(WRITTEN, &[8, 16, 64, 128], &mut random);
        let queue = rig.disk.queue(0);
        let buffers = workload::place(&extents, &place, ARENA, &mut random);
        let mut requests = workload::write_requests(queue, &extents, &buffers, seed);
        for (i, (request, &extent)) in requests.iter_mut().zip(&extents).enumerate() {
            let zeroing = match i % 5 {
                0 => Request::Discard(extent),
                1 => Request::WriteZeroes(extent, ReqFlags::empty()),
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
        check_all(&mut rig.disk, &model);
    }
    rig.finish(&model);
}

/// Fields that are zero stop some guests from booting; a client needs them to cut its requests.
#[test]
fn limits_are_in_the_config_and_can_be_used() {
    let mut rig = Rig::new();
    let disk = &mut rig.disk;
    assert!(disk.property("discard-alignment") >= 512);
    // the whole limit in one request, or the whole disk
    let whole = |limit: u64| {
        assert!(limit >= 1 << 20, "{limit}");
        Extent::new(0, (limit / 512).min(DISK_BYTES / 512))
    };
    let discard = Request::Discard(whole(disk.property("max-discard-len")));
    let most = whole(disk.property("max-write-zeroes-len"));
    let zeroes = Request::WriteZeroes(most, ReqFlags::empty());
    assert_eq!(disk.queue(0).run(&[discard, zeroes]), [0, 0]);
}
