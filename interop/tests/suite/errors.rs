//! Requests that must be refused, and chains that are broken: an error for the one that did it,
//! nothing for anybody else.

use std::time::Duration;

use blkio::ReqFlags;
use interop::chains::{
    self, Answer, ChainDisk, EVENT_IDX, Header, IOERR, OK, Piece, UNSUPP, VERSION_1, kind,
    range_payload,
};
use interop::client::{Client, IO_ERROR, Request};
use interop::image::{Backing, Image};
use interop::memory::Span;
use interop::model::Extent;
use interop::random::Random;
use interop::server::{Server, Setup};
use interop::suite::Test;
use interop::workload::{self, Placement, SIZES};

use crate::patterns::{ARENA, DISK, DISK_BYTES, connect, exercise};
use crate::shapes::stamped;

pub const TESTS: &[Test] = &[
    Test::on_each_backing("errors::out_of_range", out_of_range),
    Test::on_each_backing("errors::no_data", no_data),
    Test::on_each_backing("errors::not_whole_sectors", not_whole_sectors),
    Test::on_each_backing("errors::unknown_requests", unknown_requests),
    Test::on_each_backing("errors::serial_number", serial_number),
    Test::on_each_backing("errors::broken_chains", broken_chains),
];

/// The last sector number whose byte offset fits 64 bits.
const LAST_SECTOR: u64 = u64::MAX / 512;

fn out_of_range(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let part = Extent::new(DISK.sectors - 2048, 2048);
    let model = exercise(&mut disk, part, 60);
    let queue = disk.queue(0);
    let buffer = |sectors: u64| vec![Span::new(4096, Extent::new(0, sectors).bytes())];
    let mut requests = Vec::new();
    let outside = [
        (DISK.sectors, 1),
        (DISK.sectors - 1, 2),
        (DISK.sectors - 7, 2048),
        (DISK.sectors + 1_000_000, 8),
        (1 << 41, 8),
        (LAST_SECTOR, 1),
        (LAST_SECTOR, 8),
    ];
    for (sector, sectors) in outside {
        requests.push(Request::Read(sector, buffer(sectors)));
        requests.push(Request::Write(sector, buffer(sectors)));
    }
    // blkio adds start and length itself, so these stay below its overflow
    for (sector, sectors) in &outside[..5] {
        let extent = Extent::new(*sector, *sectors);
        requests.push(Request::Discard(extent));
        requests.push(Request::WriteZeroes(extent, ReqFlags::empty()));
        requests.push(Request::WriteZeroes(extent, ReqFlags::NO_UNMAP));
    }
    // good ones in between, in the same batch
    let bad = requests.len();
    for i in (0..=bad).rev() {
        requests.insert(i, Request::Read(DISK.sectors - 1, buffer(1)));
    }
    for (i, answer) in queue.run(&requests).into_iter().enumerate() {
        let expected = if i % 2 == 0 { 0 } else { IO_ERROR };
        assert_eq!(answer, expected, "{:?}", requests[i]);
    }
    // nothing was written, nothing is longer, and the queue goes on
    let mut random = Random::new(60);
    let extents = workload::cut(part, &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(queue, &model, &extents, &place, &mut random);
    drop(disk);
    server.stop();
    assert_eq!(image.size_bytes(), DISK_BYTES);
    image.assert_holds(&model);
}

/// Header and status and nothing between. Whether that is an error is the device's choice.
fn no_data(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let model = exercise(&mut disk, Extent::new(0, 64), 61);
    let queue = disk.queue(0);
    for request in [Request::Read(0, vec![]), Request::Write(0, vec![])] {
        let answer = queue.run_one(request);
        assert!(answer == 0 || answer == IO_ERROR, "{answer}");
    }
    let mut random = Random::new(61);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(queue, &model, &extents, &place, &mut random);
}

fn not_whole_sectors(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = connect(&server, Client::new(ARENA));
    let model = exercise(&mut disk, Extent::new(0, 64), 62);
    let queue = disk.queue(0);
    for bytes in [1, 100, 511, 513, 4095, 4097] {
        let spans = vec![Span::new(0, bytes)];
        assert_eq!(
            queue.run_one(Request::Read(3, spans.clone())),
            IO_ERROR,
            "{bytes} bytes"
        );
        assert_eq!(
            queue.run_one(Request::Write(3, spans)),
            IO_ERROR,
            "{bytes} bytes"
        );
    }
    let mut random = Random::new(62);
    let extents = workload::cut(model.extent(), &SIZES, &mut random);
    let place = Placement::page_aligned();
    workload::read(queue, &model, &extents, &place, &mut random);
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}

fn chain_disk(server: &Server) -> ChainDisk {
    let features = chains::DEVICE_FEATURES | VERSION_1 | EVENT_IDX;
    let disk = ChainDisk::connect(server.socket(), features, 64, 1 << 20);
    disk.expect("a connection")
}

fn unknown_requests(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = chain_disk(&server);
    let span = Span::new(0, 512);
    // SCSI_CMD, secure erase and zones without negotiation, and unknown types
    for kind in [2, 14, 15, 16, 99, u32::MAX] {
        assert_eq!(disk.request(kind, 0, &[]), UNSUPP, "type {kind}");
        assert_eq!(
            disk.request(kind, 0, &[Piece::In(span)]),
            UNSUPP,
            "type {kind}"
        );
    }
    // unknown flags; a discard has none at all
    assert_eq!(
        disk.range_request(kind::WRITE_ZEROES, range_payload(0, 8, 2)),
        UNSUPP
    );
    assert_eq!(
        disk.range_request(kind::DISCARD, range_payload(0, 8, 1)),
        UNSUPP
    );
    assert_eq!(
        disk.range_request(kind::DISCARD, range_payload(0, 8, 1 << 31)),
        UNSUPP
    );
    let over = range_payload(u64::MAX, u32::MAX, 0);
    assert_eq!(disk.range_request(kind::DISCARD, over), IOERR);
    assert_eq!(disk.range_request(kind::WRITE_ZEROES, over), IOERR);
    assert_eq!(disk.request(kind::IN, u64::MAX, &[Piece::In(span)]), IOERR);
    assert_eq!(
        disk.request(kind::OUT, u64::MAX, &[Piece::Out(span)]),
        IOERR
    );
    // the queue goes on
    assert_eq!(disk.request(kind::IN, 0, &[Piece::In(span)]), OK);
}

/// 20 bytes, filled up with zeroes (virtio 1.2, section 5.2.6).
fn serial_number(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = chain_disk(&server);
    disk.arena().all_mut().fill(0xee);
    let status = disk.request(kind::GET_ID, 0, &[Piece::In(Span::new(0, 20))]);
    assert_eq!(status, OK);
    let found = disk.arena().bytes(Span::new(0, 21));
    assert_eq!(found[20], 0xee, "20 bytes and no more");
    let end = found[..20].iter().position(|&b| b == 0).unwrap_or(20);
    assert!(end > 0, "there is a serial number");
    assert!(
        found[..end].iter().all(u8::is_ascii_graphic),
        "{found:02x?}"
    );
}

/// Each breaks its own connection at most: the next client finds the disk as it was.
fn broken_chains(backing: Backing) {
    let image = Image::new(backing, DISK_BYTES);
    let server = Setup::image(&image).start();
    let read = Header {
        kind: kind::IN,
        sector: 0,
    }
    .bytes();
    let write = Header {
        kind: kind::OUT,
        sector: 0,
    }
    .bytes();
    let discard = Header {
        kind: kind::DISCARD,
        sector: 0,
    }
    .bytes();
    let header = Piece::Header(0, 16);
    let (memory, nothing) = (Span::new(0, 512), Span::new(0, 0));
    // whether it may also succeed: a request without data in its direction has none to move,
    // and the devices of the field differ over empty descriptors
    let (never, maybe) = (false, true);
    let broken: &[(bool, [u8; 16], &[Piece])] = &[
        (never, read, &[header]),
        (never, read, &[Piece::Status]),
        (never, read, &[Piece::Header(0, 7), Piece::Status]),
        (never, read, &[Piece::Status, header]),
        (
            never,
            read,
            &[header, Piece::In(memory), Piece::Out(memory), Piece::Status],
        ),
        (maybe, read, &[header, Piece::Out(memory), Piece::Status]),
        (maybe, write, &[header, Piece::In(memory), Piece::Status]),
        (never, read, &[header, Piece::Nowhere(512), Piece::Status]),
        (
            never,
            read,
            &[header, Piece::Nowhere(1 << 31), Piece::Status],
        ),
        (maybe, read, &[header, Piece::In(nothing), Piece::Status]),
        (maybe, write, &[header, Piece::Out(nothing), Piece::Status]),
        (never, discard, &[header, Piece::Payload(7), Piece::Status]),
        (never, discard, &[header, Piece::Status]),
    ];
    for (i, &(may_succeed, header, pieces)) in (1..).zip(broken) {
        let mut disk = chain_disk(&server);
        disk.arena().all_mut().fill(0x5a);
        // no answer is as good as a refusal
        let answer = disk.call(header, [0; 16], pieces, Duration::from_millis(100));
        let succeeded = answer == Answer::Used(Some(OK));
        assert!(may_succeed || !succeeded, "{pieces:?} was carried out");
        drop(disk);

        let mut disk = chain_disk(&server);
        let span = Span::new(0, 4096);
        let data = stamped(8, 8, i);
        disk.arena().bytes_mut(span).copy_from_slice(&data);
        let status = disk.request(kind::OUT, 8, &[Piece::Out(span)]);
        assert_eq!(status, OK, "after {pieces:?}");
        disk.arena().bytes_mut(span).fill(0);
        assert_eq!(disk.request(kind::IN, 8, &[Piece::In(span)]), OK);
        assert!(disk.arena().bytes(span) == data, "after {pieces:?}");
        assert_eq!(disk.request(kind::IN, 0, &[Piece::In(span)]), OK);
        let zeroes = disk.arena().bytes(span).iter().all(|&byte| byte == 0);
        assert!(zeroes, "{pieces:?} changed the disk");
    }
}
