//! Messages that are wrong by themselves: their headers, lengths, flags, descriptors, order.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use crate::daemon::READ_ONLY;
use crate::descriptors::read_only_file;
use crate::guest::*;
use crate::row::Answer::{Accepted, Dropped, Refused, Waiting};
use crate::row::Rows;
use crate::wire::*;

/// All rows of messages.
pub fn rows(rows: &mut Rows) {
    headers(rows);
    lengths(rows);
    crate::attached_descriptors::rows(rows);
    features(rows);
    crate::queues::rows(rows);
    configuration(rows);
    not_offered(rows);
}

/// Rows of headers with a wrong version, request or size.
fn headers(rows: &mut Rows) {
    for flags in [0, 2, 3] {
        rows.row(format!("header: version {flags}"), Dropped, move |guest| {
            guest.tell_with_flags(GET_FEATURES, flags, &[])
        });
    }
    for request in [0, 45, 9999, u32::MAX] {
        rows.row(
            format!("header: unknown request {request}"),
            Dropped,
            move |guest| guest.tell(request, &[], &[]),
        );
    }
    for bit in [4, 17, 31] {
        rows.row(
            format!("header: reserved flag bit {bit}"),
            Dropped,
            move |guest| guest.tell_with_flags(GET_FEATURES, VERSION | 1 << bit, &[]),
        );
    }
    rows.row("header: a reply to nothing", Dropped, |guest| {
        guest.tell_with_flags(GET_FEATURES, VERSION | REPLY, &[])
    });

    for size in [4097, 1 << 20, u32::MAX] {
        rows.row(
            format!("header: a payload of {size} bytes to come"),
            Dropped,
            move |guest| {
                guest.wire.bytes(&header(SET_FEATURES, VERSION, size), &[]);
                guest.still_there()
            },
        );
    }
}

fn lengths(rows: &mut Rows) {
    for (what, request, payload) in [
        ("SET_FEATURES without a payload", SET_FEATURES, 0),
        ("SET_FEATURES of 4 bytes", SET_FEATURES, 4),
        ("SET_FEATURES of 16 bytes", SET_FEATURES, 16),
        ("SET_OWNER with a payload", SET_OWNER, 8),
        ("GET_FEATURES with 4096 bytes", GET_FEATURES, 4096),
        ("SET_VRING_NUM of 7 bytes", SET_VRING_NUM, 7),
        ("SET_VRING_ADDR of 39 bytes", SET_VRING_ADDR, 39),
        ("SET_VRING_KICK without a payload", SET_VRING_KICK, 0),
        ("SET_VRING_CALL of 9 bytes", SET_VRING_CALL, 9),
        ("GET_VRING_BASE of 4 bytes", GET_VRING_BASE, 4),
        ("SET_MEM_TABLE of 4 bytes", SET_MEM_TABLE, 4),
        ("ADD_MEM_REG of 39 bytes", ADD_MEM_REG, 39),
        ("REM_MEM_REG without a payload", REM_MEM_REG, 0),
        ("GET_CONFIG of 11 bytes", GET_CONFIG, 11),
        ("SET_CONFIG without a payload", SET_CONFIG, 0),
    ] {
        rows.negotiated(format!("length: {what}"), Dropped, move |guest| {
            // A descriptor where one belongs: only the length is wrong.
            let file = event();
            let fds = match request {
                SET_VRING_KICK | SET_VRING_CALL | SET_MEM_TABLE | ADD_MEM_REG => {
                    vec![file.as_fd()]
                }
                _ => vec![],
            };
            guest.tell(request, &vec![0; payload], &fds)
        });
    }
    rows.row("length: half a header, then the end", Dropped, |guest| {
        guest
            .wire
            .bytes(&header(GET_FEATURES, VERSION, 0)[..6], &[]);
        guest.wire.end_of_messages();
        end(guest)
    });
    rows.row("length: half a payload, then the end", Dropped, |guest| {
        guest.wire.bytes(&header(SET_FEATURES, VERSION, 8), &[]);
        guest.wire.bytes(&[0; 4], &[]);
        guest.wire.end_of_messages();
        end(guest)
    });
    rows.row("length: a header, then the end", Dropped, |guest| {
        guest.wire.bytes(&header(SET_FEATURES, VERSION, 8), &[]);
        guest.wire.end_of_messages();
        end(guest)
    });
    rows.row("length: one byte, then silence", Waiting, |guest| {
        guest.wire.bytes(&[1], &[]);
        Waiting
    });
    rows.running(
        "length: half a header, then silence, with queues running",
        Waiting,
        |guest| {
            guest
                .wire
                .bytes(&header(GET_FEATURES, VERSION, 0)[..6], &[]);
            Waiting
        },
    );
    rows.row(
        "length: a header with a descriptor, then silence",
        Waiting,
        |guest| {
            let file = event();
            guest
                .wire
                .bytes(&header(SET_VRING_KICK, VERSION, 8), &[file.as_fd()]);
            Waiting
        },
    );
    rows.row("length: nothing at all", Waiting, |_| Waiting)
        .says("");
    rows.row("asks 20000 times and reads no answer", Waiting, |guest| {
        // More answers than a socket holds: the daemon waits in its answer.
        let ask = header(GET_FEATURES, VERSION, 0).repeat(100);
        for _ in 0..200 {
            if !try_send(guest, &ask) {
                break;
            }
        }
        Waiting
    });
}

/// What is left to hear after the last message.
fn end(guest: &Guest) -> crate::row::Answer {
    match guest.wire.reply(SET_FEATURES) {
        None => Dropped,
        Some(_) => Accepted,
    }
}

/// Sends what fits; false when the daemon takes no more.
fn try_send(guest: &Guest, bytes: &[u8]) -> bool {
    use rustix::net::{SendFlags, send};
    send(
        guest.wire.socket(),
        bytes,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )
    .is_ok_and(|sent| sent == bytes.len())
}

fn features(rows: &mut Rows) {
    for (what, features) in [
        ("all bits", u64::MAX),
        ("bit 35, IN_ORDER", FEATURES | 1 << 35),
        ("bit 5, read-only", FEATURES | 1 << 5),
    ] {
        rows.row(format!("SET_FEATURES: {what}"), Dropped, move |guest| {
            guest.tell(SET_FEATURES, &u64s(&[features]), &[])
        })
        .says("were not offered: 0x");
    }
    rows.row(
        "SET_FEATURES: bit 34, packed queues, of an export without packed=on",
        Dropped,
        |guest| {
            let features = FEATURES | RING_PACKED;
            guest.tell(SET_FEATURES, &u64s(&[features]), &[])
        },
    )
    .says("were not offered: 0x400000000")
    .on(READ_ONLY);

    for (what, features) in [
        ("all bits", u64::MAX),
        ("bit 14, INBAND_NOTIFICATIONS", 1 << 14),
    ] {
        rows.row(
            format!("SET_PROTOCOL_FEATURES: {what}"),
            Dropped,
            move |guest| guest.tell(SET_PROTOCOL_FEATURES, &u64s(&[features]), &[]),
        )
        .says("protocol features that were not offered: 0x");
    }
    for (what, request) in [
        ("GET_QUEUE_NUM", GET_QUEUE_NUM),
        ("GET_MAX_MEM_SLOTS", GET_MAX_MEM_SLOTS),
        ("RESET_DEVICE", RESET_DEVICE),
        ("GET_CONFIG", GET_CONFIG),
        ("SET_BACKEND_REQ_FD", SET_BACKEND_REQ_FD),
    ] {
        rows.row(
            format!("{what} before its feature"),
            Dropped,
            move |guest| guest.tell(request, &[], &[]),
        );
    }
    rows.row(
        "SET_VRING_ENABLE without PROTOCOL_FEATURES",
        Dropped,
        |guest| {
            guest.negotiate(VERSION_1);
            guest.tell(SET_VRING_ENABLE, &u32s(&[0, 1]), &[])
        },
    );

    rows.row(
        "a queue without PROTOCOL_FEATURES starts enabled",
        crate::row::OK,
        |guest| {
            guest.negotiate(VERSION_1);
            guest.share_memory();
            guest.set_up(0, ENTRIES);
            assert_eq!(guest.try_start(0), Accepted);
            guest.read_sector()
        },
    );
}

fn configuration(rows: &mut Rows) {
    for (what, request, payload) in [
        (
            "GET_CONFIG: longer than a message",
            GET_CONFIG,
            config(4000, 97, 0, &[0; 97]),
        ),
        (
            "GET_CONFIG: an offset that wraps",
            GET_CONFIG,
            config(u32::MAX, 2, 0, &[0; 2]),
        ),
        ("GET_CONFIG: no bytes", GET_CONFIG, config(0, 0, 0, &[])),
        (
            "GET_CONFIG: room for fewer than asked for",
            GET_CONFIG,
            config(0, 36, 0, &[0; 35]),
        ),
        (
            "GET_CONFIG: unknown flags",
            GET_CONFIG,
            config(0, 4, 4, &[0; 4]),
        ),
        (
            "SET_CONFIG: an offset that wraps",
            SET_CONFIG,
            config(u32::MAX, 2, 0, &[0; 2]),
        ),
        (
            "SET_CONFIG: more bytes than said",
            SET_CONFIG,
            config(32, 1, 0, &[0; 4]),
        ),
        (
            "SET_CONFIG: unknown flags",
            SET_CONFIG,
            config(32, 1, 8, &[1]),
        ),
    ] {
        rows.negotiated(what, Dropped, move |guest| {
            guest.tell(request, &payload, &[])
        });
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
            let reply = guest.wire.ask(GET_CONFIG, &payload, &[]).unwrap();
            assert_eq!(reply, config(offset, 0, 0, &[]), "no bytes: an error");
            match guest.still_there() {
                Accepted => Refused,
                answer => answer,
            }
        });
    }
    rows.negotiated("GET_CONFIG: all 256 bytes", Accepted, |guest| {
        let reply = guest
            .wire
            .ask(GET_CONFIG, &config(0, 256, 0, &[0; 256]), &[])
            .unwrap();
        assert_eq!(reply.len(), 12 + 256);
        assert!(
            reply[12 + 96..].iter().all(|&byte| byte == 0),
            "nothing behind the last field"
        );
        guest.still_there()
    });
}

fn not_offered(rows: &mut Rows) {
    let inflight = || [u64s(&[4096, 0]), vec![2, 0, 16, 0], vec![0; 4]].concat();
    for (what, request, payload, with_fd) in [
        ("GET_INFLIGHT_FD", GET_INFLIGHT_FD, inflight(), false),
        ("SET_INFLIGHT_FD", SET_INFLIGHT_FD, inflight(), true),
        ("SET_LOG_BASE", SET_LOG_BASE, u64s(&[4096, 0]), true),
        ("SET_LOG_FD", SET_LOG_FD, vec![], true),
        ("GPU_SET_SOCKET: an eventfd", GPU_SET_SOCKET, vec![], true),
        ("GPU_SET_SOCKET: nothing", GPU_SET_SOCKET, vec![], false),
        ("GET_SHARED_OBJECT", GET_SHARED_OBJECT, vec![1; 16], false),
        ("GET_SHMEM_CONFIG", GET_SHMEM_CONFIG, vec![], false),
        ("SEND_RARP (19)", 19, u64s(&[0]), false),
        ("NET_SET_MTU (20)", 20, u64s(&[1500]), false),
        ("IOTLB_MSG (22)", 22, vec![0; 32], false),
        ("SET_VRING_ENDIAN (23)", 23, u32s(&[0, 1]), false),
        ("CREATE_CRYPTO_SESSION (26)", 26, vec![0; 64], false),
        ("POSTCOPY_ADVISE (28)", 28, vec![], false),
        ("POSTCOPY_LISTEN (29)", 29, vec![], false),
        ("POSTCOPY_END (30)", 30, vec![], false),
        ("VRING_KICK (35)", 35, u32s(&[0, 0]), false),
        ("SET_STATUS (39)", 39, u64s(&[0]), false),
        ("GET_STATUS (40)", 40, vec![], false),
        (
            "SET_DEVICE_STATE_FD: nothing",
            SET_DEVICE_STATE_FD,
            u32s(&[0, 0]),
            false,
        ),
        (
            "SET_DEVICE_STATE_FD: direction 2",
            SET_DEVICE_STATE_FD,
            u32s(&[2, 0]),
            true,
        ),
    ] {
        rows.negotiated(format!("not offered: {what}"), Dropped, move |guest| {
            let file = event();
            let fds = if with_fd { vec![file.as_fd()] } else { vec![] };
            guest.tell(request, &payload, &fds)
        });
    }
    rows.negotiated("not offered: GPU_SET_SOCKET, a socket", Dropped, |guest| {
        let (socket, _other) = UnixStream::pair().unwrap();
        guest.tell(GPU_SET_SOCKET, &[], &[socket.as_fd()])
    });
    rows.negotiated("not offered: SET_DEVICE_STATE_FD", Refused, |guest| {
        let file = read_only_file();
        guest.ask(SET_DEVICE_STATE_FD, &u32s(&[0, 0]), &[file.as_fd()])
    });
    rows.negotiated("not offered: CHECK_DEVICE_STATE", Refused, |guest| {
        guest.ask(CHECK_DEVICE_STATE, &[], &[])
    });
    rows.negotiated(
        "GET_PROTOCOL_FEATURES twice and SET_OWNER twice",
        Accepted,
        |guest| {
            for _ in 0..2 {
                guest.must(SET_OWNER, &[], &[]);
                guest.wire.ask(GET_PROTOCOL_FEATURES, &[], &[]).unwrap();
            }
            guest.still_there()
        },
    );
}
