//! Requests of every shape: many segments, odd segments, buffers at any address, headers and
//! status in pieces or joined with data, every kind of ring.

use std::time::Duration;

use interop::chains::{
    self, Answer, ChainDisk, EVENT_IDX, Header, OK, PACKED, Piece, VERSION_1, kind,
};
use interop::client::Client;
use interop::image::{Backing, Image};
use interop::memory::Span;
use interop::model::{Extent, Model, stamp};
use interop::random::Random;
use interop::server::{Server, Setup};
use interop::suite::Test;
use interop::workload::{self, Placement, SIZES};

use crate::patterns::{ARENA, DISK_BYTES, connect};

pub const TESTS: &[Test] = &[
    Test::on_each_backing("shapes::sector_segments", sector_segments),
    Test::on_each_backing("shapes::odd_segments", odd_segments),
    Test::on_each_backing("shapes::every_segment_count", every_segment_count),
    Test::on_each_backing("shapes::unaligned_buffers", unaligned_buffers),
    Test::on_each_backing("shapes::memory_comes_and_goes", memory_comes_and_goes),
    Test::on_each_backing("shapes::framing_is_free", framing_is_free),
    Test::on_each_backing("shapes::every_kind_of_ring", every_kind_of_ring),
    Test::on_each_backing(
        "shapes::completions_are_signalled",
        completions_are_signalled,
    ),
    Test::on_each_backing("shapes::packed_ring", packed_ring).qsd_cannot(NO_PACKED),
    Test::on_each_backing("shapes::packed_ring_sizes", packed_ring_sizes).qsd_cannot(NO_PACKED),
    Test::on_each_backing(
        "shapes::packed_completions_are_signalled",
        packed_completions_are_signalled,
    )
    .qsd_cannot(NO_PACKED),
];

const NO_PACKED: &str = "it has no packed queues";

/// What `seed` puts into `sectors` sectors from `sector` on.
pub fn stamped(sector: u64, sectors: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; sectors * 512];
    stamp(&mut bytes, sector, seed);
    bytes
}

fn run_placements(backing: Backing, placements: &[Placement], sizes: &[u64], seed: u64) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let queue = disk.queue(0);
    let part = Extent::new(3, 8192);
    let mut random = Random::new(seed);
    let mut model = Model::zeroes(part);
    for (seed, place) in (seed..).zip(placements) {
        let extents = workload::cut(part, sizes, &mut random);
        workload::write(queue, &mut model, &extents, seed, place, &mut random);
        image.assert_holds(&model);
        let extents = workload::cut(part, sizes, &mut random);
        workload::read(queue, &model, &extents, place, &mut random);
        let extents = workload::cut(part, sizes, &mut random);
        workload::read_and_write(queue, &mut model, &extents, seed + 100, place, &mut random);
    }
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

fn sector_segments(backing: Backing) {
    let placements = [2..9, 1..127].map(Placement::sector_segments);
    run_placements(backing, &placements, &SIZES, 11);
}

fn odd_segments(backing: Backing) {
    let placements = [2..4, 1..127].map(Placement::odd_segments);
    run_placements(backing, &placements, &SIZES, 12);
}

fn every_segment_count(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(256 << 10));
    assert!(disk.property("max-segments") >= 126);
    let queue = disk.queue(0);
    let mut random = Random::new(13);
    let mut model = Model::zeroes(Extent::new(0, 127 * 128));
    for count in 1..127_usize {
        let extent = [Extent::new(count as u64 * 128, 127)];
        for place in [
            Placement::sector_segments(count..count + 1),
            Placement::odd_segments(count..count + 1),
        ] {
            let seed = random.word();
            workload::write(queue, &mut model, &extent, seed, &place, &mut random);
        }
    }
    for count in 1..127_usize {
        let extent = [Extent::new(count as u64 * 128, 127)];
        let place = Placement::odd_segments(count..count + 1);
        workload::read(queue, &model, &extent, &place, &mut random);
    }
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

fn unaligned_buffers(backing: Backing) {
    let placements = [1, 8, 511, 512, 2049].map(Placement::skewed);
    run_placements(backing, &placements, &[1, 3, 8, 65, 512, 2048], 14);
}

fn memory_comes_and_goes(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
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

fn chain_disk(server: &Server, features: u64) -> ChainDisk {
    let features = features | chains::DEVICE_FEATURES | VERSION_1;
    match ChainDisk::connect(server.socket(), features, 64, 1 << 20) {
        Ok(disk) => disk,
        Err(e) => panic!("connecting: {e}"),
    }
}

/// Virtio 1.2, section 2.6.4: a device must not assume how a request is cut into descriptors.
fn framing_is_free(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = chain_disk(&server, 0);
    let patience = Duration::from_secs(20);
    let status = Answer::Used(Some(OK));

    // a header in pieces of 1, 7 and 8 bytes, data in three pieces
    let data = stamped(5, 4, 21);
    disk.arena()
        .bytes_mut(Span::new(0, 2048))
        .copy_from_slice(&data);
    let write = Header {
        kind: kind::OUT,
        sector: 5,
    };
    let pieces = [
        Piece::Header(0, 1),
        Piece::Header(1, 8),
        Piece::Header(8, 16),
        Piece::Out(Span::new(0, 1)),
        Piece::Out(Span::new(1, 1023)),
        Piece::Out(Span::new(1024, 1024)),
        Piece::Status,
    ];
    assert_eq!(disk.call(write.bytes(), [0; 16], &pieces, patience), status);

    // header and data of a write in one descriptor
    let data = stamped(9, 3, 22);
    let header = Header {
        kind: kind::OUT,
        sector: 9,
    }
    .bytes();
    disk.arena()
        .bytes_mut(Span::new(4096, 16))
        .copy_from_slice(&header);
    disk.arena()
        .bytes_mut(Span::new(4112, 1536))
        .copy_from_slice(&data);
    let pieces = [Piece::Out(Span::new(4096, 16 + 1536)), Piece::Status];
    assert_eq!(disk.call([0; 16], [0; 16], &pieces, patience), status);

    // data and status of a read in one descriptor, and again with the data cut at odd places
    disk.arena().bytes_mut(Span::new(8192, 4096)).fill(0xee);
    let read = Header {
        kind: kind::IN,
        sector: 5,
    };
    for first in [0, 1, 700, 2048 + 1535] {
        let last = 7 * 512 + 1 - first;
        let mut pieces = vec![Piece::Header(0, 16)];
        if first > 0 {
            pieces.push(Piece::In(Span::new(8192, first)));
        }
        pieces.push(Piece::In(Span::new(8192 + first, last)));
        let answer = disk.call(read.bytes(), [0; 16], &pieces, patience);
        assert_eq!(
            answer,
            Answer::Used(None),
            "the ring's own status byte is not used"
        );
        let end = disk.arena().bytes(Span::new(8192 + 7 * 512, 2));
        assert_eq!(end, [OK, 0xee], "the status is the last byte");
        let expected = [stamped(5, 4, 21), stamped(9, 3, 22)].concat();
        let found = disk.arena().bytes_mut(Span::new(8192, 7 * 512));
        assert!(found == expected, "cut at {first}");
        found.fill(0xee);
        disk.arena()
            .bytes_mut(Span::new(8192 + 7 * 512, 1))
            .fill(0xee);
    }
}

fn write_and_read_chains(disk: &mut ChainDisk, rounds: u64, seed: u64) -> Model {
    let mut model = Model::zeroes(Extent::new(0, rounds * 8));
    for round in 0..rounds {
        let extent = Extent::new(round * 8, 1 + round % 8);
        let span = Span::new(64, extent.bytes());
        let data = stamped(extent.sector, span.len / 512, seed);
        disk.arena().bytes_mut(span).copy_from_slice(&data);
        assert_eq!(
            disk.request(kind::OUT, extent.sector, &[Piece::Out(span)]),
            OK
        );
        model.set(extent, seed);
        disk.arena().bytes_mut(span).fill(0);
        // cut in two where the round says
        let (head, tail) = (span.len / 2 - 3, span.len / 2 + 3);
        let pieces = [
            Piece::In(Span::new(64, head)),
            Piece::In(Span::new(64 + head, tail)),
        ];
        assert_eq!(disk.request(kind::IN, extent.sector, &pieces), OK);
        if let Err(mismatch) = model.check(extent.sector, disk.arena().bytes(span)) {
            panic!("round {round}: {mismatch}");
        }
        if round % 16 == 0 {
            assert_eq!(disk.request(kind::FLUSH, 0, &[]), OK);
        }
    }
    model
}

fn every_kind_of_ring(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    for (features, seed) in [(0, 23), (EVENT_IDX, 24)] {
        let mut disk = chain_disk(&server, features);
        assert_eq!(disk.features() & (EVENT_IDX | PACKED), features);
        let config = disk.config().expect("the configuration");
        assert_eq!({ config.capacity }.to_native() * 512, DISK_BYTES);
        let model = write_and_read_chains(&mut disk, 300, seed);
        image.assert_holds(&model);
    }
}

/// virtio-driver itself checks that the used length of a packed chain is that of its buffers.
fn packed_ring(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).packed().start();
    for (features, seed) in [(PACKED, 25), (PACKED | EVENT_IDX, 26), (EVENT_IDX, 27)] {
        let mut disk = chain_disk(&server, features);
        assert_eq!(disk.features() & (EVENT_IDX | PACKED), features);
        let model = write_and_read_chains(&mut disk, 300, seed);
        image.assert_holds(&model);
    }
}

/// Rings of any size, full of requests in random places, which complete in the disk's order.
fn packed_ring_sizes(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).packed().start();
    let mut random = Random::new(28);
    for (entries, features) in [
        (3, 0),
        (5, EVENT_IDX),
        (7, 0),
        (100, EVENT_IDX),
        (1000, EVENT_IDX),
    ] {
        let features = VERSION_1 | PACKED | features;
        let mut disk =
            ChainDisk::connect(server.socket(), features, entries, ARENA).expect("a packed queue");
        let depth = u64::from(entries) / 3;
        for round in 0..1 + 600 / depth {
            let seed = u64::from(entries) * 1000 + round;
            // Apart from each other, in random order.
            let mut sectors: Vec<u64> = (0..depth).map(|request| request * 24).collect();
            random.shuffle(&mut sectors);
            let part = |request: usize| Span::new(request * 4096, 4096);
            let ask = |kind, piece: fn(Span) -> Piece| -> Vec<(Header, Piece)> {
                let asked = sectors.iter().enumerate();
                asked
                    .map(|(i, &sector)| (Header { kind, sector }, piece(part(i))))
                    .collect()
            };
            for (request, &sector) in sectors.iter().enumerate() {
                let data = stamped(sector, 8, seed);
                disk.arena().bytes_mut(part(request)).copy_from_slice(&data);
            }
            assert!(
                disk.requests(&ask(kind::OUT, Piece::Out))
                    .iter()
                    .all(|&status| status == OK)
            );
            disk.arena()
                .bytes_mut(Span::new(0, 4096 * sectors.len()))
                .fill(0);
            assert!(
                disk.requests(&ask(kind::IN, Piece::In))
                    .iter()
                    .all(|&status| status == OK)
            );
            for (request, &sector) in sectors.iter().enumerate() {
                assert!(disk.arena().bytes(part(request)) == stamped(sector, 8, seed));
            }
        }
    }
}

/// One request at a time with notifications on: each must arrive as a signal of its own.
fn completions_are_signalled(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    each_is_signalled(&Setup::image(&image).start(), 0);
}

fn packed_completions_are_signalled(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    each_is_signalled(&Setup::image(&image).packed().start(), PACKED);
}

fn each_is_signalled(server: &Server, ring: u64) {
    for features in [ring, ring | EVENT_IDX] {
        let mut disk = chain_disk(server, features);
        disk.set_notifications(true);
        // one that was sent when the queue was set up says nothing
        disk.wait_for_signal(Duration::ZERO);
        let span = Span::new(0, 512);
        for sector in 0..300 {
            assert_eq!(disk.request(kind::IN, sector, &[Piece::In(span)]), OK);
            // it may come after the used entry is seen
            let signalled = disk.wait_for_signal(Duration::from_secs(20));
            assert!(signalled, "request {sector} was completed in silence");
        }
    }
}
