//! The same disk on other storage: buffered, null, raw over file, tmpfs, loop devices; and what
//! other tools find in the image.

use std::path::Path;
use std::process::{Command, Output};

use blkio::ReqFlags;
use interop::client::{Client, Disk, IO_ERROR, Request};
use interop::image::Image;
use interop::loop_device::LoopDevice;
use interop::memory::Span;
use interop::model::{Extent, Model, ZEROES};
use interop::random::Random;
use interop::server::Setup;
use interop::suite::{Need, Test};
use interop::workload::{self, Placement, SIZES};

use crate::patterns::{ARENA, DISK, DISK_BYTES, connect, exercise};

pub const TESTS: &[Test] = &[
    Test::new("variants::buffered", buffered),
    Test::new("variants::raw_over_file", raw_over_file),
    Test::new("variants::null_co", null_co),
    Test::new("variants::tmpfs", tmpfs),
    Test::new("variants::blocks_of_4096", blocks_of_4096),
    Test::new("variants::parts_of_blocks", parts_of_blocks).qsd_cannot(PARTS_OF_BLOCKS),
    Test::new("variants::loop_device", loop_device).needs(Need::LoopDevice),
    Test::new("variants::loop_4096_in_512", loop_4096_in_512).needs(Need::LoopDevice),
    Test::new("variants::loop_4096_in_4096", loop_4096_in_4096).needs(Need::LoopDevice),
    Test::new(
        "variants::loop_4096_parts_of_blocks",
        loop_4096_parts_of_blocks,
    )
    .needs(Need::LoopDevice)
    .qsd_cannot(PARTS_OF_BLOCKS),
    Test::new("variants::qemu_img_agrees", qemu_img_agrees).needs(Need::QemuTools),
];

const PARTS_OF_BLOCKS: &str =
    "it checks where a request starts against the logical block size, not how long it is";

/// A run over everything in small: sizes, segments, addresses, zeroing.
fn small_run(disk: &mut Disk, part: Extent, sizes: &[u64], seed: u64) -> Model {
    let mut random = Random::new(seed);
    let mut model = Model::zeroes(part);
    let queue = disk.queue(0);
    for (i, place) in (0_u64..).zip([
        Placement::page_aligned(),
        Placement::skewed(1),
        Placement::odd_segments(1..20),
        Placement::sector_segments(1..127),
    ]) {
        let extents = workload::cut(part, sizes, &mut random);
        workload::write(queue, &mut model, &extents, seed + i, &place, &mut random);
        let extents = workload::cut(part, sizes, &mut random);
        let next = seed + i + 100;
        workload::read_and_write(queue, &mut model, &extents, next, &place, &mut random);
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

const PART: Extent = Extent {
    sector: 8000,
    sectors: 6000,
};

fn run_on(setup: Setup, path: &Path) {
    let server = setup.start();
    let mut disk = connect(&server, Client::new(ARENA));
    assert_eq!(disk.sectors(), DISK.sectors);
    let model = small_run(&mut disk, PART, &SIZES, 80);
    drop(disk);
    server.stop();
    model.assert_file(path);
}

fn buffered() {
    let image = Image::sparse(DISK_BYTES);
    run_on(Setup::file(image.path()).buffered(), image.path());
}

fn raw_over_file() {
    let image = Image::sparse(DISK_BYTES);
    run_on(Setup::raw_over_file(image.path()), image.path());
}

fn tmpfs() {
    let image = Image::on_tmpfs(DISK_BYTES);
    run_on(Setup::file(image.path()), image.path());
    let image = Image::on_tmpfs(DISK_BYTES);
    run_on(Setup::file(image.path()).buffered(), image.path());
}

fn null_co() {
    let server = Setup::null(1 << 30).queues(2).start();
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
fn assert_parts_are_refused(setup: Setup, path: &Path) {
    let server = setup.logical_block_bytes(4096).start();
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
        let write = queue.run_one(Request::Write(sector, spans));
        assert_eq!(write, IO_ERROR, "{sectors} sectors at {sector}");
    }
    workload::read(queue, &model, &extents, &place, &mut random);
    drop(disk);
    server.stop();
    model.assert_file(path);
}

fn parts_of_blocks() {
    let image = Image::sparse(DISK_BYTES);
    assert_parts_are_refused(Setup::file(image.path()), image.path());
}

fn loop_4096_parts_of_blocks() {
    let image = Image::sparse(DISK_BYTES);
    let device = LoopDevice::attach(image.path(), 4096).expect("a loop device");
    assert_parts_are_refused(Setup::host_device(device.path()), device.path());
}

/// Request sizes in blocks of 4096 bytes.
const SIZES_IN_BLOCKS: [u64; 6] = [8, 16, 24, 64, 520, 2048];

fn blocks_of_4096() {
    let image = Image::sparse(DISK_BYTES);
    let setup = Setup::file(image.path()).logical_block_bytes(4096);
    let server = setup.start();
    let mut disk = connect(&server, Client::new(ARENA));
    assert_eq!(disk.sectors(), DISK.sectors);
    assert_eq!(disk.property("request-alignment"), 4096);
    let model = small_run(&mut disk, PART, &SIZES_IN_BLOCKS, 82);
    drop(disk);
    server.stop();
    model.assert_file(image.path());
}

fn loop_device() {
    let image = Image::sparse(DISK_BYTES);
    let device = LoopDevice::attach(image.path(), 512).expect("a loop device");
    run_on(Setup::host_device(device.path()), device.path());

    // a discard reaches the file below
    let server = Setup::host_device(device.path()).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let part = Extent::new(16_384, 16_384);
    let mut model = exercise(&mut disk, part, 83);
    assert_eq!(disk.queue(0).run_one(Request::Flush), 0);
    let before = image.allocated_bytes();
    let each = (disk.property("max-discard-len") / 512).min(2048);
    let pieces = workload::cut(part, &[each], &mut Random::new(83));
    let requests: Vec<_> = pieces.into_iter().map(Request::Discard).collect();
    assert!(
        disk.queue(0)
            .run(&requests)
            .iter()
            .all(|&answer| answer == 0)
    );
    model.set(part, ZEROES);
    let mut random = Random::new(84);
    let extents = workload::cut(part, &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(disk.queue(0), &model, &extents, &place, &mut random);
    let freed = before.saturating_sub(image.allocated_bytes());
    assert!(freed >= 7 << 20, "{freed} of 8 MiB were freed");
}

/// The guest may use sectors that the device does not have: whole blocks are read, changed and
/// written back, and neighbours written at the same time are not lost.
fn loop_4096_in_512() {
    let image = Image::sparse(DISK_BYTES);
    let device = LoopDevice::attach(image.path(), 4096).expect("a loop device");
    let setup = Setup::host_device(device.path()).logical_block_bytes(512);
    let server = setup.start();
    let mut disk = connect(&server, Client::new(ARENA));
    assert_eq!(disk.property("request-alignment"), 512);
    let mut model = small_run(&mut disk, PART, &SIZES, 85);
    // single sectors, all in flight at once: eight to a block
    let mut random = Random::new(86);
    let part = Extent::new(8003, 600);
    let extents = workload::cut(part, &[1], &mut random);
    let place = Placement::skewed(8);
    let queue = disk.queue(0);
    workload::write(queue, &mut model, &extents, 86, &place, &mut random);
    workload::read(queue, &model, &extents, &place, &mut random);
    let whole = workload::cut(PART, &SIZES, &mut random);
    workload::read(queue, &model, &whole, &place, &mut random);
    drop(disk);
    server.stop();
    model.assert_file(device.path());
}

fn loop_4096_in_4096() {
    let image = Image::sparse(DISK_BYTES);
    let device = LoopDevice::attach(image.path(), 4096).expect("a loop device");
    let setup = Setup::host_device(device.path()).logical_block_bytes(4096);
    let server = setup.start();
    let mut disk = connect(&server, Client::new(ARENA));
    assert_eq!(disk.property("request-alignment"), 4096);
    let model = small_run(&mut disk, PART, &SIZES_IN_BLOCKS, 87);
    drop(disk);
    server.stop();
    model.assert_file(device.path());
}

fn qemu(tool: &str, arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command = Command::new(tool);
    command.args(arguments).args(paths);
    command.output().expect("the tool was found before")
}

fn qemu_img_agrees() {
    let image = Image::sparse(DISK_BYTES);
    let server = Setup::file(image.path()).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let model = small_run(&mut disk, PART, &SIZES, 88);
    let zeroes = Extent::new(30_000, 4096);
    exercise(&mut disk, zeroes, 89);
    let request = Request::WriteZeroes(zeroes, ReqFlags::empty());
    assert_eq!(disk.queue(0).run_one(request), 0);
    drop(disk);
    server.stop();

    let expected = image.beside("model.img");
    model.write_to(&expected).expect("room for the model");
    let file = std::fs::File::options().write(true).open(&expected);
    let sized = file.and_then(|file| file.set_len(DISK_BYTES));
    sized.expect("room for the model");
    let compare = ["compare", "-f", "raw", "-F", "raw"];
    let same = qemu("qemu-img", &compare, &[image.path(), &expected]);
    assert!(same.status.success(), "{same:?}");

    let pattern = format!("read -P 0 {} {}", 30_000 * 512, 4096 * 512);
    let read = ["-f", "raw", "-r", "-c", &pattern];
    let zero = qemu("qemu-io", &read, &[image.path()]);
    let text = String::from_utf8_lossy(&zero.stdout);
    let verified = zero.status.success() && !text.contains("verification failed");
    assert!(verified, "{zero:?}");
}
