//! Clients that come and go, at any moment, also all at once; and the end of the server.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use interop::client::{Client, Disk};
use interop::image::Image;
use interop::model::{Extent, Model, ZEROES};
use interop::random::Random;
use interop::server::{Server, Setup};
use interop::workload::{self, Placement, SIZES};

use crate::rig::{ARENA, DISK, DISK_BYTES, Rig, check_all, connect, exercise};

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
    let buffers = workload::place(&extents, &place, ARENA, &mut random);
    let requests = workload::write_requests(queue, &extents, &buffers, seed);
    queue.abandon(&requests);
}

#[test]
fn client_that_leaves_requests_in_flight_does_not_harm_the_next() {
    let mut rig = Rig::new();
    let mut known = vec![ZEROES];
    for round in 1..=8 {
        abandon_writes(&mut rig.disk, round * 10);
        drop(rig.disk);
        known.push(round * 10);
        rig.disk = connect(&rig.server, Client::new(ARENA));
        let found = workload::settle(rig.disk.queue(0), PART, &known);
        // nothing of the lost client may arrive from here on
        thread::sleep(Duration::from_millis(20));
        check_all(&mut rig.disk, &found);
        if round % 2 == 0 {
            let model = exercise(&mut rig.disk, PART, round);
            known = vec![round];
            rig.image.assert_holds(&model);
        }
    }
}

#[test]
fn clients_in_turn_read_what_others_wrote() {
    let image = Image::new(DISK_BYTES);
    let server = Setup::image(&image).queues(2).start();
    let mut random = Random::new(70);
    let mut model = Model::zeroes(DISK);
    let place = Placement::skewed(512);
    for i in 0..20 {
        let client = Client::new(1 << 20).queues(1 + random.below(2));
        let mut disk = connect(&server, client);
        let extents = [Extent::new(i * 2000, 1 + i * 17)];
        let queue = disk.queue(0);
        workload::write(queue, &mut model, &extents, i + 1, &place, &mut random);
        // what the one before wrote
        let before = [Extent::new(i.saturating_sub(1) * 2000, 500)];
        workload::read(queue, &model, &before, &place, &mut random);
    }
    server.stop();
    image.assert_holds(&model);
}

/// A client that sends some bytes and no more.
fn sends(server: &Server, bytes: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(server.socket()).expect("a connection");
    stream.write_all(bytes).expect("it listens");
    stream
}

/// Request 1 (GET_FEATURES), version 1, no payload.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// Request 2 (SET_FEATURES) with a payload of a size that does not come.
fn announcing(size: u32) -> [u8; 12] {
    let mut message = GET_FEATURES;
    message[0] = 2;
    message[8..].copy_from_slice(&size.to_le_bytes());
    message
}

#[test]
fn half_a_message_does_not_disturb_the_next_client() {
    let image = Image::new(DISK_BYTES);
    let server = Setup::image(&image).start();
    let parts = (0..GET_FEATURES.len()).map(|bytes| GET_FEATURES[..bytes].to_vec());
    // the last two are announced too long for any message
    let announced = [8, 1 << 30, u32::MAX].map(|size| announcing(size).to_vec());
    for bytes in parts.chain(announced) {
        drop(sends(&server, &bytes));
        let mut disk = connect(&server, Client::new(ARENA));
        exercise(&mut disk, Extent::new(0, 1000), 71);
    }
}

/// The second one waits or is refused; the first one is not harmed by either.
#[test]
fn second_client_does_not_harm_the_first() {
    let Rig {
        mut disk,
        server,
        image: _image,
    } = Rig::new();
    let mut model = exercise(&mut disk, Extent::new(0, 4096), 72);
    thread::scope(|scope| {
        let second = scope.spawn(|| Client::new(ARENA).connect(&server.socket()));
        let mut random = Random::new(73);
        let place = Placement::page_aligned();
        for seed in 73..83 {
            let extents = workload::cut(model.extent(), &SIZES, &mut random);
            let queue = disk.queue(0);
            workload::read_and_write(queue, &mut model, &extents, seed, &place, &mut random);
            thread::sleep(Duration::from_millis(5));
        }
        drop(disk);
        let second = second.join().expect("the second client");
        let mut second = second.unwrap_or_else(|_| connect(&server, Client::new(ARENA)));
        check_all(&mut second, &model);
    });
}

/// With a client, which has requests in flight or none, or has sent a part of a message.
#[test]
fn sigterm_ends_a_server_whatever_its_client_does() {
    let image = Image::new(DISK_BYTES);
    let server = Setup::image(&image).queues(4).start();
    let mut disk = connect(&server, Client::new(ARENA).queues(4));
    let model = exercise(&mut disk, PART, 75);
    server.stop();
    image.assert_holds(&model);
    drop(disk);

    for round in 1..=4 {
        let Rig {
            mut disk,
            server,
            image,
        } = Rig::new();
        abandon_writes(&mut disk, round);
        server.stop();
        drop(disk);
        // whole sectors, old or new, and a server that starts again on them
        let server = Setup::image(&image).start();
        let mut disk = connect(&server, Client::new(ARENA));
        workload::settle(disk.queue(0), PART, &[ZEROES, round]);
    }

    for message in [&[][..], &GET_FEATURES[..5], &announcing(8)] {
        let server = Setup::image(&image).start();
        let stream = sends(&server, message);
        thread::sleep(Duration::from_millis(20));
        server.stop();
        drop(stream);
    }
}

/// What was written before the server ended is there when it is back.
#[test]
fn restarted_server_has_what_was_written() {
    let image = Image::new(DISK_BYTES);
    let mut models: Vec<Model> = Vec::new();
    for i in 0..5 {
        let server = Setup::image(&image).start();
        let mut disk = connect(&server, Client::new(ARENA));
        for model in &models {
            check_all(&mut disk, model);
        }
        models.push(exercise(&mut disk, Extent::new(i * 4000, 3000), i + 1));
    }
}
