//! Messages that are wrong by themselves: their headers, lengths, flags, descriptors, order.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};

use rustix::net::{SendFlags, send};

use crate::daemon::READ_ONLY;
use crate::descriptors::{pipe, read_only_file};
use crate::front_end::*;
use crate::row::Answer::{Accepted, Dropped, Refused, Waiting};
use crate::row::{OK, Rows};
use crate::wire::*;

/// All rows of messages.
pub fn rows(rows: &mut Rows) {
    headers(rows);
    lengths(rows);
    ends(rows);
    attached_descriptors(rows);
    features(rows);
    crate::queues::rows(rows);
    configuration(rows);
    not_offered(rows);
}

/// Rows of headers with a wrong version, request or size.
fn headers(rows: &mut Rows) {
    for (what, request, flags) in [
        ("version 0", GET_FEATURES, 0),
        ("version 2", GET_FEATURES, 2),
        ("version 3", GET_FEATURES, 3),
        ("reserved bit 4", GET_FEATURES, VERSION | 1 << 4),
        ("reserved bit 31", GET_FEATURES, VERSION | 1 << 31),
        ("a reply to nothing", GET_FEATURES, VERSION | REPLY),
        ("request 0", 0, VERSION),
        ("request 45", 45, VERSION),
        ("request 2^32 - 1", u32::MAX, VERSION),
    ] {
        rows.row(format!("header: {what}"), Dropped, move |guest| {
            guest.wire.message(request, flags, &[], &[]);
            guest.still_there()
        });
    }
    for size in [4097, u32::MAX] {
        let what = format!("header: a payload of {size} bytes to come");
        rows.row(what, Dropped, move |guest| {
            guest.wire.bytes(&header(SET_FEATURES, VERSION, size), &[]);
            guest.still_there()
        });
    }
}

fn lengths(rows: &mut Rows) {
    for (what, request, bytes, fds) in [
        ("SET_FEATURES without a payload", SET_FEATURES, 0, 0),
        ("SET_FEATURES of 4 bytes", SET_FEATURES, 4, 0),
        ("SET_FEATURES of 16 bytes", SET_FEATURES, 16, 0),
        ("SET_OWNER with a payload", SET_OWNER, 8, 0),
        ("GET_FEATURES with 4096 bytes", GET_FEATURES, 4096, 0),
        ("SET_VRING_NUM of 7 bytes", SET_VRING_NUM, 7, 0),
        ("SET_VRING_ADDR of 39 bytes", SET_VRING_ADDR, 39, 0),
        ("SET_VRING_KICK without a payload", SET_VRING_KICK, 0, 1),
        ("SET_VRING_CALL of 9 bytes", SET_VRING_CALL, 9, 1),
        ("GET_VRING_BASE of 4 bytes", GET_VRING_BASE, 4, 0),
        ("SET_MEM_TABLE of 4 bytes", SET_MEM_TABLE, 4, 1),
        ("ADD_MEM_REG of 39 bytes", ADD_MEM_REG, 39, 1),
        ("REM_MEM_REG without a payload", REM_MEM_REG, 0, 0),
        ("GET_CONFIG of 11 bytes", GET_CONFIG, 11, 0),
        ("SET_CONFIG without a payload", SET_CONFIG, 0, 0),
    ] {
        rows.bad_message(format!("length: {what}"), request, vec![0; bytes], fds);
    }
}

/// Rows of messages that are not sent to their end.
fn ends(rows: &mut Rows) {
    let empty = header(GET_FEATURES, VERSION, 0);
    let with_payload = header(SET_FEATURES, VERSION, 8);
    for (what, bytes) in [
        ("half a header", empty[..6].to_vec()),
        ("half a payload", [&with_payload[..], &[0; 4]].concat()),
        ("a header", with_payload),
    ] {
        rows.row(format!("{what}, then the end"), Dropped, move |guest| {
            guest.wire.bytes(&bytes, &[]);
            guest.wire.end_of_messages();
            match guest.wire.reply(SET_FEATURES) {
                None => Dropped,
                Some(_) => Accepted,
            }
        });
    }
    rows.row("a header and a descriptor, then none", Waiting, |guest| {
        let head = header(SET_VRING_KICK, VERSION, 8);
        guest.wire.bytes(&head, &[event().as_fd()]);
        Waiting
    });
    rows.running("half a header while queues run", Waiting, move |guest| {
        guest.wire.bytes(&empty[..6], &[]);
        Waiting
    });
    rows.row("nothing at all", Waiting, |_| Waiting).says("");
    rows.row("asks 20000 times and reads no answer", Waiting, |guest| {
        // More answers than a socket holds: the daemon waits in its answer.
        let ask = header(GET_FEATURES, VERSION, 0).repeat(100);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut sent = (0..200).map(|_| send(guest.wire.socket(), &ask, flags));
        // Until it takes no more.
        let _ = sent.find(|sent| *sent != Ok(ask.len()));
        Waiting
    });
}

/// Rows of descriptors that come with messages: too many, too few, at the wrong place, of the wrong kind.
fn attached_descriptors(rows: &mut Rows) {
    const REGION: Region = Region {
        guest_addr: MEMORY,
        len: MEMORY_BYTES,
        user_addr: MEMORY,
        offset: 0,
    };
    for (what, request, payload, fds) in [
        ("GET_FEATURES with one", GET_FEATURES, vec![], 1),
        ("SET_FEATURES with one", SET_FEATURES, u64s(&[FEATURES]), 1),
        ("SET_VRING_NUM with one", SET_VRING_NUM, u32s(&[0, 16]), 1),
        ("SET_CONFIG with one", SET_CONFIG, config(32, 1, 0, &[1]), 1),
        ("SET_VRING_KICK without one", SET_VRING_KICK, u64s(&[0]), 0),
        ("SET_VRING_CALL without one", SET_VRING_CALL, u64s(&[0]), 0),
        ("SET_VRING_ERR without one", SET_VRING_ERR, u64s(&[0]), 0),
        ("memory without one", ADD_MEM_REG, single_region(REGION), 0),
        (
            "a table without one",
            SET_MEM_TABLE,
            mem_table(&[REGION]),
            0,
        ),
        ("a channel without one", SET_BACKEND_REQ_FD, vec![], 0),
        ("one, and no-fd", SET_VRING_CALL, u64s(&[NO_FD]), 1),
        ("2 where one belongs", SET_VRING_CALL, u64s(&[0]), 2),
        ("33 where one belongs", SET_VRING_CALL, u64s(&[0]), 33),
        ("all there can be", SET_VRING_CALL, u64s(&[0]), MOST_FDS),
    ] {
        rows.bad_message(format!("descriptors: {what}"), request, payload, fds);
    }
    rows.negotiated("descriptors: beside the payload", Dropped, |guest| {
        guest.wire.bytes(&header(SET_VRING_CALL, VERSION, 8), &[]);
        guest.wire.bytes(&u64s(&[0]), &[event().as_fd()]);
        guest.still_there()
    });
    rows.negotiated("descriptors: ADD_MEM_REG with 2", Dropped, |guest| {
        let file = guest.memory.region_file(0);
        guest.tell(ADD_MEM_REG, &single_region(REGION), &[file, file])
    });
    rows.negotiated("SET_BACKEND_REQ_FD: a pipe", Dropped, |guest| {
        guest.tell(SET_BACKEND_REQ_FD, &[], &[pipe().0.as_fd()])
    });
    rows.negotiated("SET_BACKEND_REQ_FD: a datagram socket", Dropped, |guest| {
        let (socket, _other) = UnixDatagram::pair().unwrap();
        guest.tell(SET_BACKEND_REQ_FD, &[], &[socket.as_fd()])
    });
    rows.running("SET_BACKEND_REQ_FD: 20 closed ones", Accepted, |guest| {
        for _ in 0..20 {
            let (socket, _closed) = UnixStream::pair().unwrap();
            guest.must(SET_BACKEND_REQ_FD, &[], &[socket.as_fd()]);
        }
        guest.still_there()
    });
}

fn features(rows: &mut Rows) {
    const OTHER: &str = "were not offered: 0x";
    for (what, request, features) in [
        ("all bits", SET_FEATURES, u64::MAX),
        ("bit 35, IN_ORDER", SET_FEATURES, FEATURES | 1 << 35),
        ("bit 5, read-only", SET_FEATURES, FEATURES | 1 << 5),
        ("all of the protocol", SET_PROTOCOL_FEATURES, u64::MAX),
        ("INBAND_NOTIFICATIONS", SET_PROTOCOL_FEATURES, 1 << 14),
    ] {
        let row = rows.row(format!("features: {what}"), Dropped, move |guest| {
            guest.tell(request, &u64s(&[features]), &[])
        });
        row.says(OTHER);
    }
    let row = rows.row("features: packed without packed=on", Dropped, |guest| {
        guest.tell(SET_FEATURES, &u64s(&[FEATURES | RING_PACKED]), &[])
    });
    row.says("were not offered: 0x400000000").on(READ_ONLY);

    for (what, request) in [
        ("GET_QUEUE_NUM", GET_QUEUE_NUM),
        ("GET_MAX_MEM_SLOTS", GET_MAX_MEM_SLOTS),
        ("RESET_DEVICE", RESET_DEVICE),
        ("GET_CONFIG", GET_CONFIG),
        ("SET_BACKEND_REQ_FD", SET_BACKEND_REQ_FD),
    ] {
        rows.row(format!("{what} too early"), Dropped, move |guest| {
            guest.tell(request, &[], &[])
        });
    }
    rows.row("SET_VRING_ENABLE without bit 30", Dropped, |guest| {
        guest.negotiate(VERSION_1);
        guest.tell(SET_VRING_ENABLE, &u32s(&[0, 1]), &[])
    });
    rows.row("a queue without bit 30 starts enabled", OK, |guest| {
        guest.negotiate(VERSION_1);
        guest.set_up_first();
        assert_eq!(guest.try_start(0), Accepted);
        guest.read_sector()
    });
}

fn configuration(rows: &mut Rows) {
    for (what, request, payload) in [
        ("too long", GET_CONFIG, config(4000, 97, 0, &[0; 97])),
        ("wraps", GET_CONFIG, config(u32::MAX, 2, 0, &[0; 2])),
        ("no bytes", GET_CONFIG, config(0, 0, 0, &[])),
        ("room for fewer", GET_CONFIG, config(0, 36, 0, &[0; 35])),
        ("unknown flags", GET_CONFIG, config(0, 4, 4, &[0; 4])),
        ("wraps", SET_CONFIG, config(u32::MAX, 2, 0, &[0; 2])),
        ("more than said", SET_CONFIG, config(32, 1, 0, &[0; 4])),
        ("unknown flags", SET_CONFIG, config(32, 1, 8, &[1])),
    ] {
        let verb = if request == GET_CONFIG { "GET" } else { "SET" };
        rows.bad_message(format!("{verb}_CONFIG: {what}"), request, payload, 0);
    }
    for (what, payload) in [
        ("write cache 2", config(32, 1, 0, &[2])),
        ("write cache in two bytes", config(32, 2, 0, &[1, 0])),
        ("capacity", config(0, 8, 0, &[0xff; 8])),
        ("everything", config(0, 256, 0, &[0; 256])),
        ("what is not there", config(200, 1, 0, &[0])),
        ("beyond the end", config(255, 2, 0, &[0; 2])),
        ("behind the end", config(3000, 4, 0, &[0; 4])),
    ] {
        rows.running(format!("SET_CONFIG: {what}"), Refused, move |guest| {
            guest.ask(SET_CONFIG, &payload, &[])
        });
    }
    for (what, offset, size) in [
        ("beyond the end", 250, 8),
        ("behind the end", 256, 1),
        ("far behind it", 4000, 96),
    ] {
        rows.negotiated(format!("GET_CONFIG: {what}"), Refused, move |guest| {
            let payload = config(offset, size, 0, &vec![0; size as usize]);
            let reply = guest.wire.ask(GET_CONFIG, &payload, &[]);
            assert_eq!(reply, Some(config(offset, 0, 0, &[])), "no bytes: an error");
            assert_eq!(guest.still_there(), Accepted);
            Refused
        });
    }
    rows.negotiated("GET_CONFIG: all 256 bytes", Accepted, |guest| {
        let bytes = guest.wire.config::<256>().unwrap();
        assert_eq!(bytes[96..], [0; 160], "nothing behind the last field");
        guest.still_there()
    });
}

fn not_offered(rows: &mut Rows) {
    let inflight = || [u64s(&[4096, 0]), vec![2, 0, 16, 0], vec![0; 4]].concat();
    for (what, request, payload, fds) in [
        ("GET_INFLIGHT_FD", GET_INFLIGHT_FD, inflight(), 0),
        ("SET_INFLIGHT_FD", SET_INFLIGHT_FD, inflight(), 1),
        ("SET_LOG_BASE", SET_LOG_BASE, u64s(&[4096, 0]), 1),
        ("SET_LOG_FD", SET_LOG_FD, vec![], 1),
        ("GPU_SET_SOCKET: an eventfd", GPU_SET_SOCKET, vec![], 1),
        ("GPU_SET_SOCKET: nothing", GPU_SET_SOCKET, vec![], 0),
        ("GET_SHARED_OBJECT", GET_SHARED_OBJECT, vec![1; 16], 0),
        ("GET_SHMEM_CONFIG", GET_SHMEM_CONFIG, vec![], 0),
        ("state: nothing", SET_DEVICE_STATE_FD, u32s(&[0, 0]), 0),
        ("state: direction 2", SET_DEVICE_STATE_FD, u32s(&[2, 0]), 1),
    ] {
        rows.bad_message(format!("not offered: {what}"), request, payload, fds);
    }
    // For networks, IOMMUs, other byte orders, encryption, post-copy migration, in-band signals and device status.
    for (bytes, requests) in [
        (0, &[28, 29, 30, 40][..]),
        (8, &[19, 20, 23, 35, 39]),
        (32, &[22]),
        (64, &[26]),
    ] {
        for request in requests {
            let what = format!("not offered: request {request}");
            rows.bad_message(what, *request, vec![0; bytes], 0);
        }
    }
    rows.negotiated("not offered: SET_DEVICE_STATE_FD", Refused, |guest| {
        let file = read_only_file();
        guest.ask(SET_DEVICE_STATE_FD, &u32s(&[0, 0]), &[file.as_fd()])
    });
    rows.negotiated("not offered: CHECK_DEVICE_STATE", Refused, |guest| {
        guest.ask(CHECK_DEVICE_STATE, &[], &[])
    });
    rows.negotiated("SET_OWNER and GET_PROTOCOL_FEATURES", Accepted, |guest| {
        for _ in 0..2 {
            guest.must(SET_OWNER, &[], &[]);
            guest.wire.ask(GET_PROTOCOL_FEATURES, &[], &[]).unwrap();
        }
        guest.still_there()
    });
}
