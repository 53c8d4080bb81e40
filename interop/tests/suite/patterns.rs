//! Stamped sectors in every block size, hundreds of requests in flight, in random order.

use blkio::ReqFlags;
use interop::client::{Client, Request};
use interop::image::Image;
use interop::model::{Extent, Model};
use interop::random::Random;
use interop::server::Setup;
use interop::workload::{self, Placement, SIZES};

use crate::rig::{ARENA, DISK, DISK_BYTES, Rig, check_all, connect, exercise};

#[test]
fn every_block_size() {
    let mut rig = Rig::new();
    let mut random = Random::new(1);
    let mut model = Model::zeroes(DISK);
    let place = Placement::page_aligned();
    let queue = rig.disk.queue(0);
    for (i, size) in (0_u64..).zip(SIZES) {
        // at most 600 requests (page-aligned buffers for each) or 4 MiB, somewhere else each time
        let sectors = (600 * size).min(8192);
        let part = Extent::new(i * 10_000 + 7 * i, sectors);
        let extents = workload::cut(part, &[size], &mut random);
        workload::write(queue, &mut model, &extents, i + 1, &place, &mut random);
        // and in other sizes, so that a whole request at a wrong place is found
        for sizes in [&[size][..], &SIZES] {
            let extents = workload::cut(part, sizes, &mut random);
            workload::read(queue, &model, &extents, &place, &mut random);
        }
    }
    rig.finish(&model);
}

#[test]
fn deep_queues_and_polling() {
    let mut rig = Rig::new();
    let mut random = Random::new(2);
    let mut model = Model::zeroes(DISK);
    let place = Placement::page_aligned();
    for round in 1..=4 {
        if round == 3 {
            drop(rig.disk);
            rig.disk = connect(&rig.server, Client::new(ARENA).polling());
        }
        // the same sectors again, so that each write has something to replace
        let part = Extent::new(33, 12_000);
        let sizes = [1, 2, 3, 8, 13, 32, 65];
        let extents = workload::cut(part, &sizes, &mut random);
        assert!(extents.len() > 400, "{} requests at once", extents.len());
        let queue = rig.disk.queue(0);
        workload::write(queue, &mut model, &extents, round, &place, &mut random);
        let extents = workload::cut(part, &sizes, &mut random);
        workload::read(queue, &model, &extents, &place, &mut random);
    }
    rig.finish(&model);
}

#[test]
fn reads_among_writes() {
    let mut rig = Rig::new();
    let mut random = Random::new(3);
    let part = Extent::new(1000, 12_000);
    let mut model = exercise(&mut rig.disk, part, 30);
    for seed in 31..35 {
        let extents = workload::cut(part, &[1, 3, 8, 32, 65, 128], &mut random);
        let queue = rig.disk.queue(0);
        let place = Placement::page_aligned();
        workload::read_and_write(queue, &mut model, &extents, seed, &place, &mut random);
    }
    rig.finish(&model);
}

#[test]
fn every_ring_size() {
    let image = Image::new(DISK_BYTES);
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

#[test]
fn fua_and_flush() {
    let mut rig = Rig::new();
    let mut random = Random::new(7);
    let part = Extent::new(512, 4096);
    let mut model = Model::zeroes(part);
    let extents = workload::cut(part, &[8, 32, 65], &mut random);
    let place = Placement::page_aligned();
    let queue = rig.disk.queue(0);
    let buffers = workload::place(&extents, &place, ARENA, &mut random);
    let mut requests = workload::write_requests(queue, &extents, &buffers, 8);
    // blkio turns each into a write and, when that is done, a flush: many flushes among writes
    for request in &mut requests {
        if let Request::Write(_, _, flags) = request {
            *flags = ReqFlags::FUA;
        }
    }
    requests.extend([Request::Flush, Request::Flush]);
    assert!(queue.run(&requests).iter().all(|&answer| answer == 0));
    model.set(part, 8);
    check_all(&mut rig.disk, &model);
    rig.finish(&model);
}
