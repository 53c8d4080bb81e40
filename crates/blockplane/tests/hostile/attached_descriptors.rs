//! Descriptors that come with messages: too many, too few, at the wrong place, of the wrong kind.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use crate::descriptors::pipe;
use crate::guest::*;
use crate::row::Answer::{Accepted, Dropped};
use crate::row::Rows;
use crate::wire::*;

pub fn rows(rows: &mut Rows) {
    for (what, request, payload) in [
        ("GET_FEATURES", GET_FEATURES, vec![]),
        ("SET_FEATURES", SET_FEATURES, u64s(&[FEATURES])),
        ("SET_VRING_NUM", SET_VRING_NUM, u32s(&[0, 16])),
        ("SET_VRING_ENABLE", SET_VRING_ENABLE, u32s(&[0, 1])),
        ("SET_CONFIG", SET_CONFIG, config(32, 1, 0, &[1])),
    ] {
        rows.negotiated(
            format!("descriptors: {what} with one"),
            Dropped,
            move |guest| {
                let file = event();
                guest.tell(request, &payload, &[file.as_fd()])
            },
        );
    }
    for (what, request, payload) in [
        ("SET_VRING_KICK", SET_VRING_KICK, u64s(&[0])),
        ("SET_VRING_CALL", SET_VRING_CALL, u64s(&[0])),
        ("SET_VRING_ERR", SET_VRING_ERR, u64s(&[0])),
        ("ADD_MEM_REG", ADD_MEM_REG, single_region(REGION)),
        ("SET_MEM_TABLE", SET_MEM_TABLE, mem_table(&[REGION])),
        ("SET_BACKEND_REQ_FD", SET_BACKEND_REQ_FD, vec![]),
    ] {
        rows.negotiated(
            format!("descriptors: {what} without one"),
            Dropped,
            move |guest| guest.tell(request, &payload, &[]),
        );
    }
    for (what, flag, count) in [
        ("one, and the flag that says none", NO_FD, 1),
        ("2", 0, 2),
        ("32", 0, 32),
        ("33", 0, 33),
        ("253 (the most that the kernel passes)", 0, MOST_FDS),
    ] {
        rows.negotiated(
            format!("descriptors: SET_VRING_CALL with {what}"),
            Dropped,
            move |guest| {
                let files: Vec<OwnedFd> = (0..count).map(|_| event()).collect();
                let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                guest.tell(SET_VRING_CALL, &u64s(&[flag]), &fds)
            },
        );
    }
    rows.negotiated(
        "descriptors: beside the payload instead of the header",
        Dropped,
        |guest| {
            let file = event();
            guest.wire.bytes(&header(SET_VRING_CALL, VERSION, 8), &[]);
            guest.wire.bytes(&u64s(&[0]), &[file.as_fd()]);
            guest.still_there()
        },
    );
    rows.negotiated("descriptors: ADD_MEM_REG with 2", Dropped, |guest| {
        let file = guest.memory.region_file(0);
        guest.tell(ADD_MEM_REG, &single_region(REGION), &[file, file])
    });
    rows.negotiated("SET_BACKEND_REQ_FD: a pipe", Dropped, |guest| {
        let (read, _write) = pipe();
        guest.tell(SET_BACKEND_REQ_FD, &[], &[read.as_fd()])
    });
    rows.negotiated("SET_BACKEND_REQ_FD: a datagram socket", Dropped, |guest| {
        let (socket, _other) = UnixDatagram::pair().unwrap();
        guest.tell(SET_BACKEND_REQ_FD, &[], &[socket.as_fd()])
    });
    rows.running(
        "SET_BACKEND_REQ_FD: 20 times, the other ends closed",
        Accepted,
        |guest| {
            for _ in 0..20 {
                let (socket, _closed) = UnixStream::pair().unwrap();
                guest.must(SET_BACKEND_REQ_FD, &[], &[socket.as_fd()]);
            }
            guest.still_there()
        },
    );
}

const REGION: Region = Region {
    guest_addr: MEMORY,
    len: MEMORY_BYTES,
    user_addr: MEMORY,
    offset: 0,
};
