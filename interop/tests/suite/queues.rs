//! Many queues, all busy at once from several threads.

use std::thread;

use interop::client::{Client, Queue};
use interop::image::{Backing, Image};
use interop::model::{Extent, Model};
use interop::random::Random;
use interop::server::Setup;
use interop::suite::Test;
use interop::workload::{self, Placement};

use crate::patterns::{DISK_BYTES, connect};

pub const TESTS: &[Test] = &[
    Test::on_each_backing("queues::one", |backing| all_busy(backing, 1)),
    Test::on_each_backing("queues::two", |backing| all_busy(backing, 2)),
    Test::on_each_backing("queues::four", |backing| all_busy(backing, 4)),
    Test::on_each_backing("queues::eight", |backing| all_busy(backing, 8)),
    Test::on_each_backing("queues::sixteen", |backing| all_busy(backing, 16)),
    Test::on_each_backing("queues::sixteen_on_three_iothreads", on_three_iothreads)
        .qsd_cannot("its export runs on one iothread"),
    Test::on_each_backing("queues::client_uses_fewer", client_uses_fewer),
    Test::on_each_backing("queues::client_wants_more", client_wants_more),
];

/// Threads of the client; more would only wait for each other.
const THREADS: usize = 4;
/// Memory of each queue: a part of the disk, twice, for gaps.
const ARENA: usize = 8 << 20;
/// Small requests, so that every ring is full, and a few large ones.
const SIZES: [u64; 6] = [1, 3, 8, 8, 32, 257];

fn work(queue: &mut Queue, part: Extent, seed: u64) -> Model {
    let mut random = Random::new(seed);
    let mut model = Model::zeroes(part);
    let extents = workload::cut(part, &SIZES, &mut random);
    let place = Placement::skewed(512);
    workload::write(queue, &mut model, &extents, seed, &place, &mut random);
    let extents = workload::cut(part, &SIZES, &mut random);
    workload::read_and_write(queue, &mut model, &extents, seed + 50, &place, &mut random);
    model
}

fn verify(queue: &mut Queue, model: &Model, seed: u64) {
    let mut random = Random::new(seed);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(queue, model, &extents, &place, &mut random);
}

fn all_busy(backing: Backing, count: usize) {
    let image = Image::new(backing, DISK_BYTES);
    all_busy_on(&image, count, Setup::image(&image));
}

fn on_three_iothreads(backing: Backing) {
    for direct in [true, false] {
        let image = Image::new(backing, DISK_BYTES);
        let setup = Setup::image(&image).iothreads(3);
        let setup = if direct { setup } else { setup.buffered() };
        all_busy_on(&image, 16, setup);
    }
}

fn all_busy_on(image: &Image, count: usize, setup: Setup) {
    let server = setup.queues(count).start();
    let mut disk = connect(&server, Client::new(ARENA).queues(count));
    assert_eq!(disk.property("max-queues"), count as u64);
    // parts with a gap between them and no common boundary with pages
    let part = |i: usize| Extent::new(i as u64 * 4101, 4000);
    let mut models = in_threads(disk.queues(), |i, queue| work(queue, part(i), i as u64 + 1));
    // each queue reads what another one wrote
    models.rotate_left(1);
    in_threads(disk.queues(), |i, queue| verify(queue, &models[i], 99));
    drop(disk);
    server.stop();
    for model in models {
        image.assert_holds(&model);
    }
}

/// Runs `work` for every queue, the queues dealt out to threads; results in the queues' order.
fn in_threads<T: Send>(
    queues: &mut [Queue],
    work: impl Fn(usize, &mut Queue) -> T + Sync,
) -> Vec<T> {
    let each = queues.len().div_ceil(THREADS);
    let work = &work;
    thread::scope(|scope| {
        let chunks = queues.chunks_mut(each).enumerate();
        let threads: Vec<_> = chunks
            .map(|(chunk, queues)| {
                scope.spawn(move || {
                    let numbered = (chunk * each..).zip(queues);
                    numbered.map(|(i, queue)| work(i, queue)).collect()
                })
            })
            .collect();
        let done = threads.into_iter().map(|thread| -> Vec<T> {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        done.flatten().collect()
    })
}

fn client_uses_fewer(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).queues(8).start();
    let mut disk = connect(&server, Client::new(ARENA).queues(3));
    assert_eq!(disk.property("max-queues"), 8);
    for i in 0..3 {
        let part = Extent::new(i as u64 * 8000, 4000);
        let model = work(disk.queue(i), part, 7);
        verify(disk.queue((i + 1) % 3), &model, 8);
    }
}

fn client_wants_more(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).queues(2).start();
    let refused = Client::new(ARENA).queues(3).connect(server.socket());
    assert!(refused.is_err(), "there are only two queues");
    // and others are not affected
    let mut disk = connect(&server, Client::new(ARENA).queues(2));
    work(disk.queue(1), Extent::new(0, 4000), 9);
}
