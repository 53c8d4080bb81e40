//! Stamped sectors in every block size, hundreds of requests in flight, in random order.

use interop::client::{Client, Disk, Request};
use interop::image::{Backing, Image};
use interop::model::{Extent, Model};
use interop::random::Random;
use interop::server::{Server, Setup};
use interop::suite::Test;
use interop::workload::{self, Placement, SIZES};

pub const TESTS: &[Test] = &[
    Test::on_each_backing("patterns::every_block_size", every_block_size),
    Test::on_each_backing("patterns::mixed_sizes_deep_queue", mixed_sizes_deep_queue),
    Test::on_each_backing("patterns::reads_among_writes", reads_among_writes),
    Test::on_each_backing("patterns::every_ring_size", every_ring_size),
    Test::on_each_backing("patterns::polling_client", polling_client),
    Test::new("patterns::serve_makes_the_disk", serve_makes_the_disk),
    Test::on_each_backing("patterns::fua_and_flush", fua_and_flush),
    Test::on_each_backing("patterns::image_made_elsewhere", image_made_elsewhere),
];

/// The size of a test disk.
pub const DISK: Extent = Extent {
    sector: 0,
    sectors: 64 << 11,
};
/// Its size in bytes.
pub const DISK_BYTES: u64 = DISK.sectors * 512;
/// Memory for a workload over 8 MiB with gaps.
pub const ARENA: usize = 24 << 20;

/// Connects, or fails the test.
pub fn connect(server: &Server, client: Client) -> Disk {
    match client.connect(server.socket()) {
        Ok(disk) => disk,
        Err(e) => panic!("connecting: {e}"),
    }
}

/// Writes and reads `part` in mixed sizes through queue 0.
pub fn exercise(disk: &mut Disk, part: Extent, seed: u64) -> Model {
    let mut random = Random::new(seed);
    let mut model = Model::zeroes(part);
    let place = Placement::page_aligned();
    let queue = disk.queue(0);
    let extents = workload::cut(part, &SIZES, &mut random);
    workload::write(queue, &mut model, &extents, seed, &place, &mut random);
    let extents = workload::cut(part, &SIZES, &mut random);
    workload::read(queue, &model, &extents, &place, &mut random);
    model
}

fn every_block_size(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    assert_eq!(disk.sectors(), DISK.sectors);
    let mut random = Random::new(1);
    let mut model = Model::zeroes(DISK);
    let place = Placement::page_aligned();
    let queue = disk.queue(0);
    for (i, size) in (0_u64..).zip(SIZES) {
        // at most 600 requests (page-aligned buffers for each) or 4 MiB, somewhere else each time
        let sectors = (600 * size).min(8192);
        let part = Extent::new(i * 10_000 + 7 * i, sectors);
        let extents = workload::cut(part, &[size], &mut random);
        workload::write(queue, &mut model, &extents, i + 1, &place, &mut random);
        let extents = workload::cut(part, &[size], &mut random);
        workload::read(queue, &model, &extents, &place, &mut random);
        // the same in other sizes, so that a whole request at a wrong place is found
        let extents = workload::cut(part, &SIZES, &mut random);
        workload::read(queue, &model, &extents, &place, &mut random);
    }
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

fn mixed_sizes_deep_queue(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let mut random = Random::new(2);
    let mut model = Model::zeroes(DISK);
    let place = Placement::page_aligned();
    let queue = disk.queue(0);
    for round in 1..=4 {
        // the same sectors again, so that each write has something to replace
        let part = Extent::new(33, 12_000);
        let sizes = [1, 2, 3, 8, 13, 32, 65];
        let extents = workload::cut(part, &sizes, &mut random);
        assert!(extents.len() > 400, "{} requests at once", extents.len());
        workload::write(queue, &mut model, &extents, round, &place, &mut random);
        let extents = workload::cut(part, &sizes, &mut random);
        workload::read(queue, &model, &extents, &place, &mut random);
    }
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

fn reads_among_writes(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let mut random = Random::new(3);
    let part = Extent::new(1000, 12_000);
    let mut model = exercise(&mut disk, part, 30);
    for seed in 31..35 {
        let sizes = [1, 3, 8, 32, 65, 128];
        let extents = workload::cut(part, &sizes, &mut random);
        let queue = disk.queue(0);
        let place = Placement::page_aligned();
        workload::read_and_write(queue, &mut model, &extents, seed, &place, &mut random);
    }
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

fn every_ring_size(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    for (i, entries) in (0_u64..).zip([4, 8, 64, 128, 256, 512, 1024]) {
        let client = Client::new(ARENA).ring_entries(entries);
        let mut disk = connect(&server, client);
        // rings of 4 go round 600 times, with one request in flight
        let part = Extent::new(i * 16_000, 4000);
        let mut random = Random::new(i);
        let mut model = Model::zeroes(part);
        let extents = workload::cut(part, &[1, 5, 8, 13], &mut random);
        let place = Placement::page_aligned();
        let queue = disk.queue(0);
        workload::write(queue, &mut model, &extents, i + 1, &place, &mut random);
        workload::read(queue, &model, &extents, &place, &mut random);
        image.assert_holds(&model);
    }
}

fn polling_client(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA).polling());
    let model = exercise(&mut disk, Extent::new(4096, 16_384), 5);
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

fn serve_makes_the_disk() {
    let image = Image::absent();
    let setup = Setup::file(image.path()).serve_with_size(DISK_BYTES);
    let server = setup.clone().start();
    let mut disk = connect(&server, Client::new(ARENA));
    assert_eq!(disk.sectors(), DISK.sectors);
    let model = exercise(&mut disk, Extent::new(0, 16_384), 6);
    drop(disk);
    server.stop();
    model.assert_file(image.path());

    // a second start keeps what is there
    let server = setup.start();
    let mut disk = connect(&server, Client::new(ARENA));
    let mut random = Random::new(6);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(disk.queue(0), &model, &extents, &place, &mut random);
}

fn fua_and_flush(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let mut random = Random::new(7);
    let part = Extent::new(512, 4096);
    let mut model = Model::zeroes(part);
    let extents = workload::cut(part, &[8, 32, 65], &mut random);
    let place = Placement::page_aligned();
    let queue = disk.queue(0);
    let buffers = workload::place(&extents, &place, ARENA, &mut random);
    let writes = workload::write_requests(queue, &extents, &buffers, 8);
    // blkio turns each into a write and, when that is done, a flush: many flushes among writes
    let mut requests: Vec<_> = writes
        .into_iter()
        .map(|request| match request {
            Request::Write(sector, spans) => Request::WriteFua(sector, spans),
            other => other,
        })
        .collect();
    requests.extend([Request::Flush, Request::Flush]);
    assert!(queue.run(&requests).iter().all(|&answer| answer == 0));
    for extent in &extents {
        model.set(*extent, 8);
    }
    workload::read(queue, &model, &extents, &place, &mut random);
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

fn image_made_elsewhere(backing: Backing) {
    let part = Extent::new(DISK.sectors - 6000, 6000);
    let mut model = Model::zeroes(part);
    model.set(Extent::new(DISK.sectors - 5999, 4000), 9);
    let image = Image::holding(backing, DISK_BYTES, &model);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let mut random = Random::new(9);
    let extents = workload::cut(part, &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(disk.queue(0), &model, &extents, &place, &mut random);
}
