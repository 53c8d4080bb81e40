//! Requests that must be refused, and chains that are broken: an error for the one that did it,
//! nothing for anybody else.

use std::time::Duration;

use blkio::{Errno, ReqFlags};
use interop::chains::{
    Answer, EVENT_IDX, Header, IOERR, OK, Piece, READ_ONLY, UNSUPP, kind, range_payload,
};
use interop::client::{Client, IO_ERROR, Request};
use interop::image::Image;
use interop::memory::Span;
use interop::model::{Extent, Model};
use interop::server::Setup;

use crate::rig::{ARENA, DISK, DISK_BYTES, Rig, chain_disk, check_all, connect, exercise, stamped};

/// The last sector number whose byte offset fits 64 bits.
const LAST_SECTOR: u64 = u64::MAX / 512;

#[test]
fn requests_are_refused() {
    let mut rig = Rig::new();
    let part = Extent::new(DISK.sectors - 2048, 2048);
    let model = exercise(&mut rig.disk, part, 60);
    let queue = rig.disk.queue(0);
    let buffer = |bytes| vec![Span::new(4096, bytes)];
    let mut requests = Vec::new();
    let mut both = |sector, bytes| {
        requests.push(Request::Read(sector, buffer(bytes)));
        requests.push(Request::Write(sector, buffer(bytes), ReqFlags::empty()));
    };
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
        both(sector, Extent::new(0, sectors).bytes());
    }
    // no whole sectors
    for bytes in [1, 100, 511, 513, 4095, 4097] {
        both(DISK.sectors - 100, bytes);
    }
    // blkio adds start and length itself, so these stay below its overflow
    for (sector, sectors) in &outside[..5] {
        let extent = Extent::new(*sector, *sectors);
        requests.push(Request::Discard(extent));
        requests.push(Request::WriteZeroes(extent, ReqFlags::empty()));
        requests.push(Request::WriteZeroes(extent, ReqFlags::NO_UNMAP));
    }
    // good ones in between, in the same batch
    for i in (0..=requests.len()).rev() {
        requests.insert(i, Request::Read(DISK.sectors - 1, buffer(512)));
    }
    for (i, answer) in queue.run(&requests).into_iter().enumerate() {
        let expected = if i % 2 == 0 { 0 } else { IO_ERROR };
        assert_eq!(answer, expected, "{:?}", requests[i]);
    }
    // header and status and nothing between: whether that is an error is the device's choice
    let empty = [
        Request::Read(0, vec![]),
        Request::Write(0, vec![], ReqFlags::empty()),
    ];
    for answer in queue.run(&empty) {
        assert!(answer == 0 || answer == IO_ERROR, "{answer}");
    }
    // nothing was written, nothing is longer, and the queue goes on
    check_all(&mut rig.disk, &model);
    assert_eq!(rig.image.size_bytes(), DISK_BYTES);
    rig.finish(&model);
}

#[test]
fn unknown_requests_are_refused_and_the_serial_number_is_given() {
    let image = Image::new(DISK_BYTES);
    let server = Setup::image(&image).start();
    let mut disk = chain_disk(&server, EVENT_IDX);
    let span = Span::new(0, 512);
    // SCSI_CMD, secure erase and zones without negotiation, and unknown types
    for kind in [2, 14, 15, 16, 99, u32::MAX] {
        assert_eq!(disk.request(kind, 0, &[]), UNSUPP, "type {kind}");
        let with_data = disk.request(kind, 0, &[Piece::In(span)]);
        assert_eq!(with_data, UNSUPP, "type {kind}");
    }
    let over = range_payload(u64::MAX, u32::MAX, 0);
    let ranges = [
        // unknown flags; a discard has none at all
        (kind::WRITE_ZEROES, range_payload(0, 8, 2), UNSUPP),
        (kind::DISCARD, range_payload(0, 8, 1), UNSUPP),
        (kind::DISCARD, range_payload(0, 8, 1 << 31), UNSUPP),
        (kind::DISCARD, over, IOERR),
        (kind::WRITE_ZEROES, over, IOERR),
    ];
    for (kind, payload, expected) in ranges {
        let status = disk.range_request(kind, payload);
        assert_eq!(status, expected, "type {kind}: {payload:02x?}");
    }
    assert_eq!(disk.request(kind::IN, u64::MAX, &[Piece::In(span)]), IOERR);
    assert_eq!(
        disk.request(kind::OUT, u64::MAX, &[Piece::Out(span)]),
        IOERR
    );
    // the queue goes on
    assert_eq!(disk.request(kind::IN, 0, &[Piece::In(span)]), OK);

    // 20 bytes, filled up with zeroes (virtio 1.2, section 5.2.6)
    disk.arena().all_mut().fill(0xee);
    let status = disk.request(kind::GET_ID, 0, &[Piece::In(Span::new(0, 20))]);
    assert_eq!(status, OK);
    let found = disk.arena().bytes(Span::new(0, 21));
    assert_eq!(found[20], 0xee, "20 bytes and no more");
    let end = found[..20].iter().position(|&b| b == 0).unwrap_or(20);
    let serial = &found[..end];
    let is_text = !serial.is_empty() && serial.iter().all(u8::is_ascii_graphic);
    assert!(is_text, "{found:02x?}");
}

/// Each breaks its own connection at most: the next client finds the disk as it was.
#[test]
fn broken_chains() {
    let image = Image::new(DISK_BYTES);
    let server = Setup::image(&image).start();
    let header = Piece::Header(0, 16);
    let status = Piece::Status;
    let memory = Span::new(0, 512);
    let (input, output) = (Piece::In(memory), Piece::Out(memory));
    let nothing = Span::new(0, 0);
    let (no_input, no_output) = (Piece::In(nothing), Piece::Out(nothing));
    let payload = Piece::Payload(7);
    // whether it may also succeed: a request without data in its direction has none to move,
    // and the devices of the field differ over empty descriptors
    let (never, maybe) = (false, true);
    let broken: &[(bool, u32, &[Piece])] = &[
        (never, kind::IN, &[header]),
        (never, kind::IN, &[status]),
        (never, kind::IN, &[Piece::Header(0, 7), status]),
        (never, kind::IN, &[status, header]),
        (never, kind::IN, &[header, input, output, status]),
        (maybe, kind::IN, &[header, output, status]),
        (maybe, kind::OUT, &[header, input, status]),
        (never, kind::IN, &[header, Piece::Nowhere(512), status]),
        (never, kind::IN, &[header, Piece::Nowhere(1 << 31), status]),
        (maybe, kind::IN, &[header, no_input, status]),
        (maybe, kind::OUT, &[header, no_output, status]),
        (never, kind::DISCARD, &[header, payload, status]),
        (never, kind::DISCARD, &[header, status]),
    ];
    for (i, &(may_succeed, kind, pieces)) in (1..).zip(broken) {
        let mut disk = chain_disk(&server, EVENT_IDX);
        disk.arena().all_mut().fill(0x5a);
        let header = Header { kind, sector: 0 }.bytes();
        // no answer is as good as a refusal
        let answer = disk.call(header, [0; 16], pieces, Duration::from_millis(100));
        let succeeded = answer == Answer::Used(Some(OK));
        assert!(may_succeed || !succeeded, "{pieces:?} was carried out");
        drop(disk);

        let mut disk = chain_disk(&server, EVENT_IDX);
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

#[test]
fn a_read_only_disk_is_read_and_refuses_writes() {
    let mut model = Model::zeroes(Extent::new(0, 8192));
    model.set(Extent::new(5, 7000), 50);
    let image = Image::holding(DISK_BYTES, &model);
    let server = Setup::read_only(&image).start();
    let refused = Client::new(ARENA).connect(&server.socket()).err();
    let refused = refused.expect("blkio writes to no read-only disk").errno();
    assert_eq!(refused, Errno::ROFS, "the disk says that it is read-only");

    let mut disk = connect(&server, Client::new(ARENA).read_only());
    assert_eq!(disk.sectors(), DISK.sectors);
    check_all(&mut disk, &model);
    assert_eq!(disk.queue(0).run_one(Request::Flush), 0);
    drop(disk);

    let mut disk = chain_disk(&server, 0);
    assert_eq!(disk.features() & READ_ONLY, READ_ONLY);
    let span = Span::new(0, 4096);
    for sector in [0, 16, DISK.sectors - 8] {
        let status = disk.request(kind::OUT, sector, &[Piece::Out(span)]);
        assert_ne!(status, OK, "a write at {sector}");
    }
    for (kind, unmap) in [
        (kind::DISCARD, 0),
        (kind::WRITE_ZEROES, 0),
        (kind::WRITE_ZEROES, 1),
    ] {
        let status = disk.range_request(kind, range_payload(0, 64, unmap));
        assert_ne!(status, OK, "type {kind}, {unmap}");
    }
    // the queue goes on
    assert_eq!(disk.request(kind::IN, 8, &[Piece::In(span)]), OK);
    let checked = model.check(8, disk.arena().bytes(span));
    checked.unwrap_or_else(|mismatch| panic!("{mismatch}"));
    drop(disk);
    server.stop();
    image.assert_holds(&model);
}
