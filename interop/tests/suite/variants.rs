//! The same disk on other storage: buffered, null, raw over file, tmpfs, loop devices.

use std::path::Path;

use blkio::ReqFlags;
use interop::client::{Client, Disk, IO_ERROR, Request};
use interop::image::Image;
use interop::loop_device::LoopDevice;
use interop::memory::Span;
use interop::model::{Extent, Model, ZEROES};
use interop::random::Random;
use interop::server::Setup;
use interop::workload::{self, Placement, SIZES};
use test_support::report::not_run;

use crate::rig::{ARENA, DISK, DISK_BYTES, check_all, connect, exercise};

const PART: Extent = Extent {
    sector: 8000,
    sectors: 6000,
};
/// Request sizes in blocks of 4096 bytes.
const SIZES_IN_BLOCKS: [u64; 6] = [8, 16, 24, 64, 520, 2048];
const BLOCKS_OF_4096: &str = "logical-block-size=4096";

/// A run over everything in small: sizes, segments, addresses, zeroing.
fn small_run(disk: &mut Disk, part: Extent, sizes: &[u64], seed: u64) -> Model {
    let mut random = Random::new(seed);
    let mut model = Model::zeroes(part);
    let queue = disk.queue(0);
    let places = [
        Placement::page_aligned(),
        Placement::skewed(1),
        Placement::odd_segments(1..20),
        Placement::sector_segments(1..127),
    ];
    for (seed, place) in (seed..).zip(places) {
        let extents = workload::cut(part, sizes, &mut random);
        workload::write(queue, &mut model, &extents, seed, &place, &mut random);
        let extents = workload::cut(part, sizes, &mut random);
        workload::read_and_write(queue, &mut model, &extents, seed + 100, &place, &mut random);
    }
    let extents = workload::cut(part, sizes, &mut random);
    let mut requests = Vec::new();
    for (i, &extent) in extents.iter().enumerate().step_by(3) {
        let flags = [ReqFlags::empty(), ReqFlags::NO_UNMAP][i % 2];
        requests.push(Request::WriteZeroes(extent, flags));
        model.set(extent, ZEROES);
    }
    requests.push(Request::Flush);
    assert!(queue.run(&requests).iter().all(|&answer| answer == 0));
    let place = Placement::page_aligned();
    workload::read(queue, &model, &extents, &place, &mut random);
    model
}

/// A small run on a disk with blocks of `block_bytes`; what it left is compared past the server.
fn run_on(setup: &Setup, path: &Path, block_bytes: u64) {
    let server = setup.start();
    let mut disk = connect(&server, Client::new(ARENA));
    assert_eq!(disk.sectors(), DISK.sectors);
    assert_eq!(disk.property("request-alignment"), block_bytes);
    let sizes = match block_bytes {
        512 => &SIZES[..],
        _ => &SIZES_IN_BLOCKS,
    };
    let model = small_run(&mut disk, PART, sizes, 80);
    drop(disk);
    server.stop();
    model.assert_file(path);
}

#[test]
fn other_nodes_on_files() {
    let temp = std::env::temp_dir();
    let tmpfs = Path::new("/dev/shm");
    let raw: fn(&Path) -> Setup = Setup::raw_over_file;
    let direct = |path: &Path| Setup::path("file", path, true);
    let buffered = |path: &Path| Setup::path("file", path, false);
    let in_blocks = |path: &Path| Setup::path("file", path, true).with(BLOCKS_OF_4096);
    type Kind<'a> = &'a dyn Fn(&Path) -> Setup;
    let cases: [(&Path, Kind, u64); 5] = [
        (&temp, &buffered, 512),
        (&temp, &raw, 512),
        (&temp, &in_blocks, 4096),
        (tmpfs, &direct, 512),
        (tmpfs, &buffered, 512),
    ];
    for (folder, setup, block_bytes) in cases {
        let image = Image::in_folder(folder, DISK_BYTES);
        run_on(&setup(&image.path()), &image.path(), block_bytes);
    }
}

#[test]
fn null_co() {
    let setup = Setup::new("driver=null-co,size=1073741824,read-zeroes=on").writable();
    let server = setup.queues(2).start();
    let mut disk = connect(&server, Client::new(ARENA).queues(2));
    assert_eq!(disk.sectors(), 1 << 21);
    let mut random = Random::new(81);
    let part = Extent::new((1 << 21) - 16_384, 16_384);
    for i in 0..2 {
        let queue = disk.queue(i);
        let place = Placement::odd_segments(1..10);
        let extents = workload::cut(part, &SIZES, &mut random);
        let mut forgotten = Model::zeroes(part);
        workload::write(queue, &mut forgotten, &extents, 81, &place, &mut random);
        let zeroes = Model::zeroes(part);
        workload::read(queue, &zeroes, &extents, &place, &mut random);
        assert_eq!(queue.run_one(Request::Flush), 0);
        let outside = Request::Read(1 << 21, vec![Span::new(0, 512)]);
        assert_eq!(queue.run_one(outside), IO_ERROR);
    }
}

/// Offsets and lengths that are no whole blocks are the guest's mistake.
fn parts_are_refused(setup: &Setup, path: &Path) {
    let server = setup.start();
    let mut disk = connect(&server, Client::new(ARENA));
    let part = Extent::new(0, 64);
    let mut random = Random::new(89);
    let mut model = Model::zeroes(part);
    let place = Placement::page_aligned();
    let queue = disk.queue(0);
    let extents = workload::cut(part, &[8, 16], &mut random);
    workload::write(queue, &mut model, &extents, 89, &place, &mut random);
    for (sector, sectors) in [(0, 1), (1, 8), (7, 1), (8, 9), (4, 4)] {
        let spans = vec![Span::new(0, sectors * 512)];
        let read = queue.run_one(Request::Read(sector, spans.clone()));
        assert_eq!(read, IO_ERROR, "{sectors} sectors at {sector}");
        let write = queue.run_one(Request::Write(sector, spans, ReqFlags::empty()));
        assert_eq!(write, IO_ERROR, "{sectors} sectors at {sector}");
    }
    workload::read(queue, &model, &extents, &place, &mut random);
    drop(disk);
    server.stop();
    model.assert_file(path);
}

#[test]
fn parts_of_blocks() {
    let image = Image::new(DISK_BYTES);
    let setup = Setup::path("file", &image.path(), true).with(BLOCKS_OF_4096);
    parts_are_refused(&setup, &image.path());
}

/// A file as a block device, or the note that there is none.
fn loop_device(sector_bytes: u32) -> Option<(Image, LoopDevice)> {
    let image = Image::new(DISK_BYTES);
    match LoopDevice::attach(&image.path(), sector_bytes) {
        Ok(device) => Some((image, device)),
        Err(why) => {
            not_run(&format!("no loop device: {why}"));
            None
        }
    }
}

#[test]
fn on_a_loop_device() {
    let Some((image, device)) = loop_device(512) else {
        return;
    };
    let setup = Setup::path("host_device", device.path(), true);
    run_on(&setup, device.path(), 512);

    // a discard reaches the file below
    let server = setup.start();
    let mut disk = connect(&server, Client::new(ARENA));
    let part = Extent::new(16_384, 16_384);
    let mut model = exercise(&mut disk, part, 83);
    assert_eq!(disk.queue(0).run_one(Request::Flush), 0);
    let before = image.allocated_bytes();
    let each = (disk.property("max-discard-len") / 512).min(2048);
    let pieces = workload::cut(part, &[each], &mut Random::new(83));
    let requests: Vec<_> = pieces.into_iter().map(Request::Discard).collect();
    let answers = disk.queue(0).run(&requests);
    assert!(answers.iter().all(|&answer| answer == 0));
    model.set(part, ZEROES);
    check_all(&mut disk, &model);
    let freed = before.saturating_sub(image.allocated_bytes());
    assert!(freed >= 7 << 20, "{freed} of 8 MiB were freed");
}

/// The guest may use sectors that the device does not have: whole blocks are read, changed and
/// written back, and neighbours written at the same time are not lost.
#[test]
fn on_a_loop_device_with_blocks_of_4096() {
    let Some((_image, device)) = loop_device(4096) else {
        return;
    };
    let setup = Setup::path("host_device", device.path(), true);
    let server = setup.clone().with("logical-block-size=512").start();
    let mut disk = connect(&server, Client::new(ARENA));
    assert_eq!(disk.property("request-alignment"), 512);
    let mut model = small_run(&mut disk, PART, &SIZES, 85);
    // single sectors, all in flight at once: eight to a block
    let mut random = Random::new(86);
    let extents = workload::cut(Extent::new(8003, 600), &[1], &mut random);
    let place = Placement::skewed(8);
    let queue = disk.queue(0);
    workload::write(queue, &mut model, &extents, 86, &place, &mut random);
    workload::read(queue, &model, &extents, &place, &mut random);
    check_all(&mut disk, &model);
    drop(disk);
    server.stop();
    model.assert_file(device.path());

    let in_blocks = setup.with(BLOCKS_OF_4096);
    run_on(&in_blocks, device.path(), 4096);
    parts_are_refused(&in_blocks, device.path());
}
