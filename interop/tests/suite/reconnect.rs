//! Clients that come and go, at any moment, also all at once; and the end of the server.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use interop::client::{Client, Disk};
use interop::image::{Backing, Image};
use interop::memory::Span;
use interop::model::{Extent, Model, ZEROES};
use interop::random::Random;
use interop::server::{Server, Setup};
use interop::suite::Test;
use interop::workload::{self, Placement, SIZES};

use crate::patterns::{ARENA, DISK, DISK_BYTES, connect, exercise};

pub const TESTS: &[Test] = &[
    Test::on_each_backing(
        "reconnect::with_requests_in_flight",
        with_requests_in_flight,
    ),
    Test::on_each_backing("reconnect::fifty_times", fifty_times),
    Test::on_each_backing("reconnect::half_a_message", half_a_message),
    Test::on_each_backing("reconnect::two_clients", two_clients),
    Test::on_each_backing("reconnect::sigterm_with_a_client", sigterm_with_a_client),
    Test::on_each_backing(
        "reconnect::sigterm_with_requests_in_flight",
        sigterm_with_requests_in_flight,
    ),
    Test::on_each_backing(
        "reconnect::sigterm_during_a_message",
        sigterm_during_a_message,
    ),
    Test::on_each_backing("reconnect::restarted_server", restarted_server),
];

/// 4 MiB that are written again and again.
const PART: Extent = Extent {
    sector: 100,
    sectors: 8192,
};

/// 256 writes of 16 KiB with `seed`, in the ring and not waited for.
fn abandon_writes(disk: &mut Disk, seed: u64) {
    let mut random = Random::new(seed);
    let extents = workload::cut(PART, &[32], &mut random);
    let queue = disk.queue(0);
    let place = Placement::page_aligned();
    let buffers: Vec<Vec<Span>> = workload::place(&extents, &place, ARENA, &mut random);
    let requests = workload::write_requests(queue, &extents, &buffers, seed);
    queue.abandon(&requests);
}

fn with_requests_in_flight(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut known = vec![ZEROES];
    for round in 1..=8 {
        let mut disk = connect(&server, Client::new(ARENA));
        abandon_writes(&mut disk, round * 10);
        drop(disk);
        known.push(round * 10);
        let mut disk = connect(&server, Client::new(ARENA));
        let found = workload::settle(disk.queue(0), PART, &known);
        // nothing of the lost client may arrive from here on
        thread::sleep(Duration::from_millis(20));
        let mut random = Random::new(round);
        let extents = workload::cut(PART, &SIZES, &mut random);
        let place = Placement::page_aligned();
        workload::read(disk.queue(0), &found, &extents, &place, &mut random);
        if round % 2 == 0 {
            let model = exercise(&mut disk, PART, round);
            known = vec![round];
            image.assert_holds(&model);
        }
    }
}

fn fifty_times(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).queues(2).start();
    let mut random = Random::new(70);
    let mut model = Model::zeroes(DISK);
    let place = Placement::skewed(512);
    for i in 0..50 {
        let client = Client::new(1 << 20).queues(1 + random.below(2));
        let mut disk = connect(&server, client);
        let extents = [Extent::new(i * 2000, 1 + i * 7)];
        let queue = disk.queue(0);
        workload::write(queue, &mut model, &extents, i + 1, &place, &mut random);
        // what the one before wrote
        let before = [Extent::new(i.saturating_sub(1) * 2000, 500)];
        workload::read(queue, &model, &before, &place, &mut random);
    }
    server.stop();
    image.assert_holds(&model);
}

fn assert_usable(server: &Server) {
    let mut disk = connect(server, Client::new(ARENA));
    exercise(&mut disk, Extent::new(0, 1000), 71);
}

/// GET_FEATURES: request 1, version 1, no payload.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

fn half_a_message(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    for bytes in 0..GET_FEATURES.len() {
        let mut stream = UnixStream::connect(server.socket()).expect("a connection");
        stream
            .write_all(&GET_FEATURES[..bytes])
            .expect("it listens");
        drop(stream);
        assert_usable(&server);
    }
    // a payload that does not come, and one that is announced too long for any message
    for size in [8_u32, 1 << 30, u32::MAX] {
        let mut message = GET_FEATURES;
        message[0] = 2;
        message[8..].copy_from_slice(&size.to_le_bytes());
        let mut stream = UnixStream::connect(server.socket()).expect("a connection");
        stream.write_all(&message).expect("it listens");
        drop(stream);
        assert_usable(&server);
    }
}

/// The second one waits or is refused; the first one is not harmed by either.
fn two_clients(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut first = connect(&server, Client::new(ARENA));
    let before = exercise(&mut first, Extent::new(0, 4096), 72);
    let (second, model) = thread::scope(|scope| {
        let second = scope.spawn(|| Client::new(ARENA).connect(server.socket()));
        let mut random = Random::new(73);
        let place = Placement::page_aligned();
        let mut model = before;
        for seed in 73..83 {
            let extents = workload::cut(model.extent(), &SIZES, &mut random);
            let queue = first.queue(0);
            workload::read_and_write(queue, &mut model, &extents, seed, &place, &mut random);
            thread::sleep(Duration::from_millis(5));
        }
        drop(first);
        (second.join().expect("the second client"), model)
    });
    let mut second = second.unwrap_or_else(|_| connect(&server, Client::new(ARENA)));
    let mut random = Random::new(74);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(second.queue(0), &model, &extents, &place, &mut random);
}

fn sigterm_with_a_client(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).queues(4).start();
    let mut disk = connect(&server, Client::new(ARENA).queues(4));
    let model = exercise(&mut disk, PART, 75);
    server.stop();
    image.assert_holds(&model);
    drop(disk);
}

fn sigterm_with_requests_in_flight(backing: Backing) {
    for round in 1..=4 {
        let image = Image::new(backing, DISK_BYTES);
        let server = Setup::image(&image).start();
        let mut disk = connect(&server, Client::new(ARENA));
        abandon_writes(&mut disk, round);
        server.stop();
        drop(disk);
        // whole sectors, old or new, and a server that starts again on them
        let server = Setup::image(&image).start();
        let mut disk = connect(&server, Client::new(ARENA));
        workload::settle(disk.queue(0), PART, &[ZEROES, round]);
    }
}

fn sigterm_during_a_message(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    for bytes in [0, 5, 12] {
        let server = Setup::image(&image).start();
        let mut stream = UnixStream::connect(server.socket()).expect("a connection");
        let mut message = GET_FEATURES;
        // with a payload that does not come
        message[0] = 2;
        message[8] = 8;
        stream.write_all(&message[..bytes]).expect("it listens");
        thread::sleep(Duration::from_millis(20));
        server.stop();
        drop(stream);
    }
}

/// What was written before the server ended is there when it is back.
fn restarted_server(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let mut models: Vec<Model> = Vec::new();
    for i in 0..5 {
        let server = Setup::image(&image).start();
        let mut disk = connect(&server, Client::new(ARENA));
        let mut random = Random::new(76);
        let place = Placement::page_aligned();
        for model in &models {
            let extents = workload::cut(model.extent(), &SIZES, &mut random);
            workload::read(disk.queue(0), model, &extents, &place, &mut random);
        }
        models.push(exercise(&mut disk, Extent::new(i * 4000, 3000), i + 1));
    }
}
