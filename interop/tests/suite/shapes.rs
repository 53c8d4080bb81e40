//! Requests of every shape: many segments, odd segments, buffers at any address, headers and
//! status in pieces or joined with data, every kind of ring.

use std::time::Duration;

use interop::chains::{Answer, ChainDisk, EVENT_IDX, Header, OK, PACKED, Piece, VERSION_1, kind};
use interop::client::Client;
use interop::image::Image;
use interop::memory::Span;
use interop::model::{Extent, Model};
use interop::random::Random;
use interop::server::{Server, Setup};
use interop::workload::{self, Placement, SIZES};

use crate::rig::{ARENA, DISK_BYTES, Rig, chain_disk, connect, stamped};

#[test]
fn buffers_of_any_shape() {
    let mut rig = Rig::new();
    let part = Extent::new(3, 8192);
    let mut random = Random::new(11);
    let mut model = Model::zeroes(part);
    let queue = rig.disk.queue(0);
    let segments = [2..9, 1..127].map(Placement::sector_segments);
    let odd_segments = [2..4, 1..127].map(Placement::odd_segments);
    let skewed = [1, 8, 511, 512, 2049].map(Placement::skewed);
    let places = segments.into_iter().chain(odd_segments).chain(skewed);
    for (seed, place) in (11..).zip(places) {
        let mut extents = || workload::cut(part, &SIZES, &mut Random::new(random.word()));
        let [first, second, third] = [extents(), extents(), extents()];
        workload::write(queue, &mut model, &first, seed, &place, &mut random);
        rig.image.assert_holds(&model);
        workload::read(queue, &model, &second, &place, &mut random);
        workload::read_and_write(queue, &mut model, &third, seed + 100, &place, &mut random);
    }
    rig.finish(&model);
}

#[test]
fn every_segment_count() {
    let mut rig = Rig::new();
    assert!(rig.disk.property("max-segments") >= 126);
    let queue = rig.disk.queue(0);
    let mut random = Random::new(13);
    let mut model = Model::zeroes(Extent::new(0, 127 * 128));
    let extent = |count: usize| [Extent::new(count as u64 * 128, 127)];
    for count in 1..127 {
        for place in [Placement::sector_segments, Placement::odd_segments] {
            let place = place(count..count + 1);
            let seed = random.word();
            workload::write(queue, &mut model, &extent(count), seed, &place, &mut random);
        }
    }
    for count in 1..127 {
        let place = Placement::odd_segments(count..count + 1);
        workload::read(queue, &model, &extent(count), &place, &mut random);
    }
    rig.finish(&model);
}

#[test]
fn memory_comes_and_goes() {
    let image = Image::new(DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(1 << 20));
    assert!(disk.property("max-mem-regions") >= 8);
    let mut random = Random::new(15);
    let place = Placement::page_aligned();
    let mut model = Model::zeroes(Extent::new(0, 64 * 512));
    let mut held = Vec::new();
    for round in 0..40 {
        // at most six regions at once (with the ring's and the first one), in changing order
        let (region, arena) = disk.share_memory(1 << 20).expect("one more region");
        let first = disk.queue(0).replace_arena(arena);
        let extents = [Extent::new(round * 512, 500)];
        let queue = disk.queue(0);
        workload::write(queue, &mut model, &extents, round + 1, &place, &mut random);
        workload::read(queue, &model, &extents, &place, &mut random);
        held.push((region, disk.queue(0).replace_arena(first)));
        if held.len() > 4 {
            let (region, arena) = held.swap_remove(random.below(held.len()));
            disk.unshare_memory(region, arena);
        }
    }
    // the memory that was there first still works
    let extents = [Extent::new(0, 1500)];
    workload::read(disk.queue(0), &model, &extents, &place, &mut random);
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

/// Puts `data` into the shared memory from `offset` on.
fn put(disk: &mut ChainDisk, offset: usize, data: &[u8]) {
    let span = Span::new(offset, data.len());
    disk.arena().bytes_mut(span).copy_from_slice(data);
}

/// Virtio 1.2, section 2.6.4: a device must not assume how a request is cut into descriptors.
#[test]
fn framing_is_free() {
    let image = Image::new(DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = chain_disk(&server, 0);
    let patience = Duration::from_secs(20);
    let status = Answer::Used(Some(OK));
    let header = |kind, sector| Header { kind, sector }.bytes();

    // a header in pieces of 1, 7 and 8 bytes, data in three pieces
    let first_data = stamped(5, 4, 21);
    put(&mut disk, 0, &first_data);
    let out = |offset, len| Piece::Out(Span::new(offset, len));
    let headers = [(0, 1), (1, 8), (8, 16)].map(|(start, end)| Piece::Header(start, end));
    let data = [out(0, 1), out(1, 1023), out(1024, 1024), Piece::Status];
    let pieces = [&headers[..], &data].concat();
    let answer = disk.call(header(kind::OUT, 5), [0; 16], &pieces, patience);
    assert_eq!(answer, status);

    // header and data of a write in one descriptor
    let second_data = stamped(9, 3, 22);
    put(&mut disk, 4096, &header(kind::OUT, 9));
    put(&mut disk, 4112, &second_data);
    let pieces = [out(4096, 16 + 1536), Piece::Status];
    assert_eq!(disk.call([0; 16], [0; 16], &pieces, patience), status);

    // data and status of a read in one descriptor, and again with the data cut at odd places
    for first in [0, 1, 700, 2048 + 1535] {
        disk.arena().bytes_mut(Span::new(8192, 4096)).fill(0xee);
        let last = 7 * 512 + 1 - first;
        let mut pieces = vec![Piece::Header(0, 16)];
        if first > 0 {
            pieces.push(Piece::In(Span::new(8192, first)));
        }
        pieces.push(Piece::In(Span::new(8192 + first, last)));
        let answer = disk.call(header(kind::IN, 5), [0; 16], &pieces, patience);
        let unused = Answer::Used(None);
        assert_eq!(answer, unused, "the ring's own status byte is not used");
        let found = disk.arena().bytes(Span::new(8192, 7 * 512 + 2));
        let (found, end) = found.split_at(7 * 512);
        assert_eq!(end, [OK, 0xee], "the status is the last byte");
        let expected = [&first_data[..], &second_data].concat();
        assert!(found == expected, "cut at {first}");
    }
}

fn write_and_read_chains(disk: &mut ChainDisk, rounds: u64, seed: u64) -> Model {
    let mut model = Model::zeroes(Extent::new(0, rounds * 8));
    for round in 0..rounds {
        let extent = Extent::new(round * 8, 1 + round % 8);
        let span = Span::new(64, extent.bytes());
        put(disk, 64, &stamped(extent.sector, span.len / 512, seed));
        let written = disk.request(kind::OUT, extent.sector, &[Piece::Out(span)]);
        assert_eq!(written, OK);
        model.set(extent, seed);
        disk.arena().bytes_mut(span).fill(0);
        // cut in two where the round says
        let (head, tail) = (span.len / 2 - 3, span.len / 2 + 3);
        let parts = [Span::new(64, head), Span::new(64 + head, tail)].map(Piece::In);
        assert_eq!(disk.request(kind::IN, extent.sector, &parts), OK);
        if let Err(mismatch) = model.check(extent.sector, disk.arena().bytes(span)) {
            panic!("round {round}: {mismatch}");
        }
        if round % 16 == 0 {
            assert_eq!(disk.request(kind::FLUSH, 0, &[]), OK);
        }
    }
    model
}

/// A server that offers packed rings, also to clients that take split ones.
fn packed(image: &Image) -> Server {
    Setup::image(image).with("packed=on").start()
}

/// virtio-driver itself checks that the used length of a packed chain is that of its buffers.
#[test]
fn every_kind_of_ring() {
    let image = Image::new(DISK_BYTES);
    let server = packed(&image);
    let rings = [0, EVENT_IDX, PACKED, PACKED | EVENT_IDX];
    for (features, seed) in rings.into_iter().zip(23..) {
        let mut disk = chain_disk(&server, features);
        assert_eq!(disk.features() & (EVENT_IDX | PACKED), features);
        let config = disk.config().expect("the configuration");
        assert_eq!({ config.capacity }.to_native() * 512, DISK_BYTES);
        let model = write_and_read_chains(&mut disk, 100, seed);
        image.assert_holds(&model);
    }
    drop(server);
    let server = Setup::image(&image).start();
    let disk = chain_disk(&server, PACKED);
    assert_eq!(disk.features() & PACKED, 0, "it is off unless asked for");
}

/// Rings of any size, full of requests in random places, which complete in the disk's order.
#[test]
fn packed_ring_sizes() {
    let image = Image::new(DISK_BYTES);
    let server = packed(&image);
    let mut random = Random::new(28);
    let rings = [
        (3, 0),
        (5, EVENT_IDX),
        (7, 0),
        (100, EVENT_IDX),
        (1000, EVENT_IDX),
    ];
    for (entries, features) in rings {
        let features = VERSION_1 | PACKED | features;
        let disk = ChainDisk::connect(&server.socket(), features, entries, ARENA);
        let mut disk = disk.expect("a packed queue");
        let depth = u64::from(entries) / 3;
        for round in 0..1 + 200 / depth {
            let seed = u64::from(entries) * 1000 + round;
            // Apart from each other, in random order.
            let mut sectors: Vec<u64> = (0..depth).map(|request| request * 24).collect();
            random.shuffle(&mut sectors);
            let part = |request: usize| Span::new(request * 4096, 4096);
            let ask = |kind, piece: fn(Span) -> Piece| -> Vec<(Header, Piece)> {
                let asked = sectors.iter().enumerate();
                let asked = asked.map(|(i, &sector)| (Header { kind, sector }, piece(part(i))));
                asked.collect()
            };
            for (request, &sector) in sectors.iter().enumerate() {
                put(&mut disk, part(request).offset, &stamped(sector, 8, seed));
            }
            let written = disk.requests(&ask(kind::OUT, Piece::Out));
            assert!(written.iter().all(|&status| status == OK));
            let used = Span::new(0, 4096 * sectors.len());
            disk.arena().bytes_mut(used).fill(0);
            let read = disk.requests(&ask(kind::IN, Piece::In));
            assert!(read.iter().all(|&status| status == OK));
            for (request, &sector) in sectors.iter().enumerate() {
                assert!(disk.arena().bytes(part(request)) == stamped(sector, 8, seed));
            }
        }
    }
}

/// One request at a time with notifications on: each must arrive as a signal of its own.
#[test]
fn completions_are_signalled() {
    let image = Image::new(DISK_BYTES);
    let server = packed(&image);
    for features in [0, EVENT_IDX, PACKED, PACKED | EVENT_IDX] {
        let mut disk = chain_disk(&server, features);
        disk.set_notifications(true);
        let data = Piece::In(Span::new(0, 512));
        for sector in 0..100 {
            assert_eq!(disk.request_by_signal(kind::IN, sector, data), OK);
        }
    }
}
