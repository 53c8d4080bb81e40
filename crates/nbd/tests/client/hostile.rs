//! Servers that send what no server may: they are disconnected, and a request is sent again to the next one.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use engine::Errno;
use nbd::client::{ClientOptions, Disk};
use nbd::wire::*;

use super::rig::Rig;
use super::server::{Offer, Peer, Received, Server};

const LONG: Duration = Duration::from_secs(60);

/// What a server sends instead of the reply to a read of 4096 bytes.
type Nonsense = fn(&mut Peer, &Received);

fn structured(peer: &mut Peer, cookie: u64, flags: u16, kind: u16, length: u32) {
    let header = StructuredReply {
        magic: STRUCTURED_REPLY_MAGIC,
        flags,
        chunk: kind,
        cookie,
        length,
    };
    peer.send(&header.encode());
}

const NONSENSE: &[(&str, Nonsense)] = &[
    ("magic", |peer, _| peer.send(&[0xee; 64])),
    ("magic of requests", |peer, request| {
        let header = Request {
            magic: REQUEST_MAGIC,
            cookie: request.cookie,
            ..Request::default()
        };
        peer.send(&header.encode());
    }),
    ("unknown cookie", |peer, request| {
        peer.data_chunk(request.cookie ^ 1, 1, request.offset, &[9; 4096]);
    }),
    ("cookie of an earlier sending", |peer, request| {
        peer.data_chunk(request.cookie - (1 << 32), 1, request.offset, &[9; 4096]);
    }),
    ("cookie beyond the table", |peer, request| {
        peer.data_chunk(request.cookie | 0xffff_ff00, 1, request.offset, &[9; 4096]);
    }),
    ("simple reply to a read", |peer, request| {
        peer.simple(request.cookie, 0, &[9; 4096]);
    }),
    ("data before the request", |peer, request| {
        peer.data_chunk(request.cookie, 1, request.offset - 1, &[9; 4096]);
    }),
    ("data beyond the request", |peer, request| {
        peer.data_chunk(request.cookie, 1, request.offset + 1, &[9; 4096]);
    }),
    ("more data than requested", |peer, request| {
        peer.data_chunk(request.cookie, 1, request.offset, &[9; 4097]);
    }),
    ("data twice", |peer, request| {
        peer.data_chunk(request.cookie, 0, request.offset, &[9; 4096]);
        peer.data_chunk(request.cookie, 1, request.offset, &[9; 1]);
    }),
    ("data whose end overflows", |peer, request| {
        structured(peer, request.cookie, 1, chunk::OFFSET_DATA, u32::MAX);
        peer.send(&u64::MAX.to_be_bytes());
    }),
    ("too little data", |peer, request| {
        peer.data_chunk(request.cookie, 1, request.offset, &[9; 4095]);
    }),
    ("end without data", |peer, request| {
        peer.chunk(request.cookie, 1, chunk::NONE, &[]);
    }),
    ("hole beyond the request", |peer, request| {
        let hole = HolePayload {
            offset: request.offset,
            length: u32::MAX,
        };
        peer.chunk(request.cookie, 1, chunk::OFFSET_HOLE, &hole.encode());
    }),
    ("hole of a wrong length", |peer, request| {
        peer.chunk(request.cookie, 1, chunk::OFFSET_HOLE, &[0; 11]);
    }),
    ("data of no bytes", |peer, request| {
        peer.data_chunk(request.cookie, 1, request.offset, &[]);
    }),
    ("block status", |peer, request| {
        peer.chunk(request.cookie, 1, chunk::BLOCK_STATUS, &[0; 12]);
    }),
    ("unknown chunk", |peer, request| {
        peer.chunk(request.cookie, 1, 77, &[0; 12]);
    }),
    ("empty chunk that is not the last", |peer, request| {
        peer.chunk(request.cookie, 0, chunk::NONE, &[]);
    }),
    ("error without a value", |peer, request| {
        peer.chunk(request.cookie, 1, chunk::ERROR, &[0; 5]);
    }),
    ("error with an endless text", |peer, request| {
        structured(peer, request.cookie, 1, chunk::ERROR, u32::MAX);
    }),
    ("error with a text beyond its end", |peer, request| {
        peer.chunk(request.cookie, 1, chunk::ERROR, &[0, 0, 0, 5, 0, 9, b'x']);
    }),
    ("end in the middle of data", |peer, request| {
        structured(peer, request.cookie, 1, chunk::OFFSET_DATA, 4104);
        peer.send(&request.offset.to_be_bytes());
        peer.send(&[9; 100]);
    }),
    ("announcement of its end", |peer, request| {
        let payload = [0, 0, 0, 108, 0, 0];
        peer.chunk(request.cookie, 1, chunk::ERROR, &payload);
    }),
];

/// All of these at once: each waits a moment before it connects again.
#[test]
fn a_server_that_sends_nonsense_is_disconnected_and_the_request_sent_again() {
    std::thread::scope(|scope| {
        for (name, nonsense) in NONSENSE {
            scope.spawn(|| assert_request_is_sent_again(name, *nonsense));
        }
    });
}

fn assert_request_is_sent_again(name: &str, nonsense: Nonsense) {
    let server = Server::start_with_first(vec![5; 1 << 20], move |peer| {
        let request = peer.receive().unwrap();
        nonsense(peer, &request);
    });
    let mut rig = Rig::open(&server.options(LONG));
    let read = rig.start_read(8192, &[96, 4000]);
    assert_eq!(rig.wait(read), Ok(()), "{name}");
    assert!(rig.data(read).iter().all(|byte| *byte == 5), "{name}");
    assert_eq!(rig.queue.disk().reconnections(), 1, "{name}");
}

#[test]
fn data_for_a_write_is_refused() {
    let server = Server::start_with_first(vec![5; 1 << 20], |peer| {
        let request = peer.receive().unwrap();
        peer.data_chunk(request.cookie, 1, request.offset, &[9; 512]);
    });
    let mut rig = Rig::open(&server.options(LONG));
    let write = rig.start_write(0, &[1; 512]);
    assert_eq!(rig.wait(write), Ok(()));
    let data = rig.data(write);
    assert_eq!(data, [1; 512], "the data of a write is not written");
    assert_eq!(rig.queue.disk().reconnections(), 1);
}

#[test]
fn a_second_reply_does_not_reach_the_next_request_in_its_place() {
    let server = Server::start_with_first(vec![5; 1 << 20], |peer| {
        let first = peer.receive().unwrap();
        peer.answer(&first, &[5; 512]);
        let _ = peer.receive().unwrap();
        peer.answer(&first, &[6; 512]);
    });
    let mut rig = Rig::open(&server.options(LONG));
    for _ in 0..2 {
        assert_eq!(rig.read(0, 512), Ok(vec![5; 512]));
    }
    assert_eq!(rig.queue.disk().reconnections(), 1);
}

/// A request that every server dies of.
#[test]
fn a_request_that_breaks_each_connection_fails_at_last() {
    let server = Server::start(Offer::default(), move |_, mut peer| {
        while let Some(request) = peer.receive() {
            match request.offset {
                0 => return,
                _ => peer.answer(&request, &[5; 512]),
            }
        }
    });
    let mut rig = Rig::open(&server.options(Duration::from_secs(3600)));
    let poison = rig.start_read(0, &[512]);
    assert_eq!(rig.wait(poison), Err(Errno::IO));
    assert_eq!(rig.read(512, 512), Ok(vec![5; 512]));
}

/// The second connection is to a server whose export is smaller, with the old handshake, which is short.
#[test]
fn an_export_that_has_changed_is_not_used() {
    let (mut number, disk) = (0, Mutex::new(vec![5; 1 << 20]));
    let offer = Offer {
        size: 1 << 20,
        ..Offer::default()
    };
    let server = Server::start_raw(
        offer,
        move |number, mut peer| match number {
            0 => drop(peer.receive()),
            _ => peer.serve(&disk),
        },
        move |stream| {
            number += 1;
            if number != 2 {
                return true;
            }
            let greeting = Greeting {
                magic: NBD_MAGIC,
                option_magic: OPTION_MAGIC,
                flags: 0,
            };
            stream.write_all(&greeting.encode()).unwrap();
            let mut option = [0; 4 + 16 + 4];
            stream.read_exact(&mut option).unwrap();
            let reply = ExportNameReply {
                size: 1 << 19,
                flags: transmission_flag::HAS_FLAGS,
            };
            let reply = [&reply.encode()[..], &[0; EXPORT_NAME_ZEROES]].concat();
            stream.write_all(&reply).unwrap();
            let closed = stream.read(&mut option);
            assert_eq!(closed.unwrap(), 0, "the client has left");
            false
        },
    );
    let mut rig = Rig::open(&server.options(LONG));
    assert_eq!(rig.read(0, 512), Ok(vec![5; 512]));
}

/// The error of opening within so long at a server that sends these parts and no handshake.
fn open_error(
    timeout: Duration,
    parts: impl Iterator<Item = &'static [u8]> + Clone + Send + 'static,
) -> String {
    let refuse = move |stream: &mut UnixStream| {
        for part in parts.clone() {
            if stream.write_all(part).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    };
    let server = Server::start_raw(Offer::default(), |_, _| {}, refuse);
    let options = ClientOptions {
        attempt_timeout: timeout,
        ..server.options(Duration::ZERO)
    };
    let Err(error) = Disk::open(&options) else {
        panic!("opened");
    };
    error.to_string()
}

#[test]
fn errors_of_the_handshake_say_what_the_server_has_sent() {
    let cases: [(&[u8], &str); 3] = [
        (
            b"SSH-2.0-OpenSSH_9.2\r\n",
            "its first bytes are 0x5353482d322e302d, not NBDMAGIC",
        ),
        (
            b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0",
            "oldstyle handshake only",
        ),
        (b"NBDMAGICgarbage!!!", "follows NBDMAGIC, not IHAVEOPT"),
    ];
    for (bytes, expected) in cases {
        let error = open_error(LONG, std::iter::once(bytes));
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("export 'disk' of /"), "{error}");
    }
}

#[test]
fn a_server_that_sends_slowly_for_ever_does_not_keep_the_opener() {
    let slowly = b"NBDMAGICIHAVEOPT\x00\x03".chunks(1).cycle();
    let error = open_error(Duration::from_millis(500), slowly);
    assert!(error.contains("in time"), "{error}");
}
