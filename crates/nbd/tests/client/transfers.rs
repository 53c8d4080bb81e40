//! Requests to a server that works: data, pieces, operations that the server lacks.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use engine::Op;
use nbd::wire::{command, command_flag, transmission_flag};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::rig::{Buffer, Rig};
use super::server::{ALL_FLAGS, Offer, Peer, Received, Server, apply};

const NO_DELAY: Duration = Duration::ZERO;

/// Servers with each form of replies.
fn offers() -> [Offer; 3] {
    let simple = Offer {
        structured: false,
        ..Offer::default()
    };
    let extended = Offer {
        extended: true,
        structured: false,
        ..Offer::default()
    };
    [simple, Offer::default(), extended]
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let byte = |index: usize| u8::try_from((index / 7 + index + seed) % 251).unwrap();
    (0..len).map(byte).collect()
}

/// A server in memory, and the requests that it gets.
fn memory_server(offer: Offer) -> (Server, mpsc::Receiver<Received>, Arc<Mutex<Vec<u8>>>) {
    let (sender, received) = mpsc::channel();
    let disk = Arc::new(Mutex::new(vec![0; usize::try_from(offer.size).unwrap()]));
    let of_server = disk.clone();
    let server = Server::start(offer, move |_, mut peer: Peer| {
        while let Some(request) = peer.receive() {
            if request.command == command::DISC {
                return;
            }
            let data = apply(&mut of_server.lock().unwrap(), &request);
            peer.answer(&request, &data);
            let _ = sender.send(request);
        }
    });
    (server, received, disk)
}

#[test]
fn data_of_any_size_and_segments_arrives_with_all_forms_of_replies() {
    for offer in offers() {
        let (server, _, disk) = memory_server(Offer {
            blocks: Some([512, 4096, 1 << 20]),
            ..offer
        });
        let mut rig = Rig::open(&server.options(NO_DELAY));
        let cases: [(u64, &[usize]); 5] = [
            (0, &[512]),
            (4096, &[4096, 512, 60_000, 1024 - 96]),
            (1 << 20, &[512, 2 << 20, 512]),
            (4 << 20, &[3 << 20, 1 << 20]),
            (8 << 20, &[1; 2048]),
        ];
        for (offset, lengths) in cases {
            let len: usize = lengths.iter().sum();
            let data = pattern(len, len);
            let buffer = Buffer::with_data(lengths, &data);
            let write = rig.start(Op::Write, false, offset, len as u64, buffer);
            assert_eq!(rig.wait(write), Ok(()));
            let at = usize::try_from(offset).unwrap();
            assert!(disk.lock().unwrap()[at..][..len] == data[..], "{lengths:?}");
            let read = rig.start_read(offset, lengths);
            assert_eq!(rig.wait(read), Ok(()));
            assert!(rig.data(read) == data, "{lengths:?}");
        }
    }
}

#[test]
fn many_requests_are_in_flight_at_once() {
    for offer in offers() {
        let (server, _, _) = memory_server(offer);
        let mut rig = Rig::open(&server.options(NO_DELAY));
        let blocks: Vec<_> = (0..200).map(|index| pattern(8192, index)).collect();
        let writes: Vec<_> = (0_u64..)
            .zip(&blocks)
            .map(|(index, data)| rig.start_write(index * 8192, data))
            .collect();
        for write in writes {
            assert_eq!(rig.wait(write), Ok(()));
        }
        let reads: Vec<_> = (0..200)
            .map(|index| rig.start_read(index * 8192, &[4000, 4192]))
            .collect();
        for (read, data) in reads.into_iter().zip(&blocks) {
            assert_eq!(rig.wait(read), Ok(()));
            assert!(rig.data(read) == *data);
        }
    }
}

#[test]
fn a_request_is_sent_in_pieces_that_the_server_takes() {
    let (server, received, _) = memory_server(Offer {
        blocks: Some([512, 4096, 10_000]),
        ..Offer::default()
    });
    let mut rig = Rig::open(&server.options(NO_DELAY));
    rig.write(4096, &[7; 25_088]).unwrap();
    let pieces: Vec<_> = (0..3).map(|_| received.recv().unwrap()).collect();
    let ranges: Vec<_> = pieces.iter().map(|p| (p.offset, p.length)).collect();
    assert_eq!(ranges, [(4096, 9728), (13_824, 9728), (23_552, 5632)]);
}

/// Writes of more than the socket takes. On one processor the server often has read everything before the client watches for room.
#[test]
fn an_event_says_when_a_full_socket_has_room() {
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
    let (server, _, disk) = memory_server(Offer::default());
    let mut rig = Rig::open(&server.options(NO_DELAY));
    let data = pattern(512 << 10, 0);
    let len = disk.lock().unwrap().len();
    for offset in (0..len).step_by(data.len()) {
        let token = rig.start_write(offset as u64, &data);
        rig.wait_by_events_alone(token);
    }
    let disk = disk.lock().unwrap();
    assert!(disk.chunks(data.len()).all(|part| part == data));
}

#[test]
fn operations_are_sent_with_their_flags() {
    let (server, received, _) = memory_server(Offer::default());
    let mut rig = Rig::open(&server.options(NO_DELAY));
    let zeroes = |unmap| Op::WriteZeroes { unmap };
    let none = 0;
    let (fua, no_hole) = (command_flag::FUA, command_flag::NO_HOLE);
    for (op, is_stable, len, command, flags) in [
        (zeroes(true), false, 8192, command::WRITE_ZEROES, none),
        (zeroes(false), false, 8192, command::WRITE_ZEROES, no_hole),
        (zeroes(true), true, 8192, command::WRITE_ZEROES, fua),
        (Op::Discard, false, 8192, command::TRIM, none),
        (Op::Flush, false, 0, command::FLUSH, none),
        (Op::Write, true, 512, command::WRITE, fua),
    ] {
        let data = if op == Op::Write { &[1; 512][..] } else { &[] };
        rig.carry_out(op, is_stable, 0, len, data);
        let request = received.recv().unwrap();
        let found = (request.command, request.flags, request.length);
        assert_eq!(found, (command, flags, len), "{op:?}");
    }
}

#[test]
fn a_stable_write_is_followed_by_a_flush_at_a_server_without_fua() {
    let (server, received, _) = memory_server(Offer {
        flags: transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH,
        ..Offer::default()
    });
    let mut rig = Rig::open(&server.options(NO_DELAY));
    rig.carry_out(Op::Write, true, 0, 512, &[1; 512]);
    let commands = [received.recv(), received.recv()].map(|request| request.unwrap().command);
    assert_eq!(commands, [command::WRITE, command::FLUSH]);
}

#[test]
fn zeroes_are_sent_to_a_server_that_cannot_write_them() {
    let (server, received, disk) = memory_server(Offer {
        flags: ALL_FLAGS & !transmission_flag::SEND_WRITE_ZEROES,
        ..Offer::default()
    });
    let mut rig = Rig::open(&server.options(NO_DELAY));
    disk.lock().unwrap().fill(9);
    rig.carry_out(Op::WriteZeroes { unmap: true }, false, 512, 3 << 20, &[]);
    let end = 512 + (3 << 20);
    let disk = disk.lock().unwrap();
    assert!(disk[512..end].iter().all(|byte| *byte == 0));
    assert_eq!((disk[511], disk[end]), (9, 9));
    assert_eq!(received.recv().unwrap().command, command::WRITE);
}

#[test]
fn errors_of_the_server_are_those_of_the_request() {
    for offer in offers() {
        let server = Server::start(offer, move |_, mut peer: Peer| {
            while let Some(request) = peer.receive() {
                let errors = [5, 28, 1, 12, 22, 95, 4711];
                let error: u32 = errors[usize::try_from(request.offset).unwrap() / 512];
                if offer.structured || offer.extended {
                    let text = b"bad\x1b[31m";
                    let len = u16::try_from(text.len()).unwrap();
                    let payload = [&error.to_be_bytes()[..], &len.to_be_bytes(), text].concat();
                    let (error, done) = (nbd::wire::chunk::ERROR, nbd::wire::reply_flag::DONE);
                    peer.chunk(request.cookie, done, error, &payload);
                } else {
                    peer.simple(request.cookie, error, &[]);
                }
            }
        });
        let mut rig = Rig::open(&server.options(NO_DELAY));
        for (index, errno) in [5, 28, 1, 12, 22, 95, 22].into_iter().enumerate() {
            let failed = rig.read(index as u64 * 512, 512).unwrap_err();
            assert_eq!(failed.raw_os_error(), errno);
        }
    }
}

#[test]
fn chunks_of_a_read_come_in_any_order_and_holes_are_zeroes() {
    let server = Server::start(Offer::default(), |_, mut peer: Peer| {
        while let Some(request) = peer.receive() {
            let (cookie, at) = (request.cookie, request.offset);
            peer.data_chunk(cookie, 0, at + 3000, &[3; 1096]);
            let hole = nbd::wire::HolePayload {
                offset: at + 1000,
                length: 2000,
            };
            let kind = nbd::wire::chunk::OFFSET_HOLE;
            peer.chunk(cookie, 0, kind, &hole.encode());
            peer.data_chunk(cookie, 0, at, &[1; 1000]);
            let (none, done) = (nbd::wire::chunk::NONE, nbd::wire::reply_flag::DONE);
            peer.chunk(cookie, done, none, &[]);
        }
    });
    let mut rig = Rig::open(&server.options(NO_DELAY));
    let read = rig.start_read(512, &[100, 2500, 1496]);
    assert_eq!(rig.wait(read), Ok(()));
    let expected = [vec![1; 1000], vec![0; 2000], vec![3; 1096]].concat();
    assert!(rig.data(read) == expected);
}
