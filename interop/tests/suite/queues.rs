//! Many queues, all busy at once from several threads.

use std::thread;

use interop::client::{Client, Queue};
use interop::image::Image;
use interop::model::{Extent, Model};
use interop::random::Random;
use interop::server::Setup;
use interop::workload::{self, Placement};

use crate::rig::{DISK_BYTES, connect};

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

fn verify(queue: &mut Queue, model: &Model) {
    let mut random = Random::new(99);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(queue, model, &extents, &place, &mut random);
}

#[test]
fn busy_queues_keep_their_data_apart() {
    for count in [1, 2, 4, 8] {
        let image = Image::new(DISK_BYTES);
        assert_busy_queues_keep_their_data_apart(&image, count, &Setup::image(&image));
    }
}

#[test]
fn busy_queues_on_three_iothreads_keep_their_data_apart() {
    for is_direct in [true, false] {
        let image = Image::new(DISK_BYTES);
        let setup = Setup::path("file", &image.path(), is_direct).iothreads(3);
        assert_busy_queues_keep_their_data_apart(&image, 16, &setup);
    }
}

fn assert_busy_queues_keep_their_data_apart(image: &Image, count: usize, setup: &Setup) {
    let server = setup.clone().queues(count).start();
    let mut disk = connect(&server, Client::new(ARENA).queues(count));
    assert_eq!(disk.property("max-queues"), count as u64);
    // parts with a gap between them and no common boundary with pages
    let part = |i: usize| Extent::new(i as u64 * 4101, 4000);
    let mut models = in_threads(disk.queues(), |i, queue| work(queue, part(i), i as u64 + 1));
    // each queue reads what another one wrote
    models.rotate_left(1);
    in_threads(disk.queues(), |i, queue| verify(queue, &models[i]));
    drop(disk);
    server.stop();
    models.iter().for_each(|model| image.assert_holds(model));
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
        let threads = chunks.map(|(chunk, queues)| {
            scope.spawn(move || {
                let numbered = (chunk * each..).zip(queues);
                let done = numbered.map(|(i, queue)| work(i, queue));
                done.collect::<Vec<T>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        let done = threads.into_iter().map(|thread| thread.join());
        done.flat_map(|done| done.expect("a queue's work"))
            .collect()
    })
}

#[test]
fn client_uses_fewer_queues_and_cannot_have_more() {
    let image = Image::new(DISK_BYTES);
    let server = Setup::image(&image).queues(4).start();
    let refused = Client::new(ARENA).queues(5).connect(&server.socket());
    assert!(refused.is_err(), "there are only four queues");
    let mut disk = connect(&server, Client::new(ARENA).queues(3));
    assert_eq!(disk.property("max-queues"), 4);
    for i in 0..3 {
        let model = work(disk.queue(i), Extent::new(i as u64 * 8000, 4000), 7);
        verify(disk.queue((i + 1) % 3), &model);
    }
}
