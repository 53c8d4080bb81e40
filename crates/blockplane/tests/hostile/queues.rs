//! Messages about queues that do not exist, of impossible sizes, or at the wrong time.

use std::os::fd::AsFd;

use crate::front_end::*;
use crate::row::Answer::{Accepted, Dropped};
use crate::row::{DISCONNECTED, OK, Rows};
use crate::wire::*;

pub fn rows(rows: &mut Rows) {
    const RUNNING: &str = "the queue is running";
    no_such_queues(rows);
    for size in [2048, u32::MAX] {
        let what = format!("SET_VRING_NUM: {size} entries");
        let row = rows.bad_message(what, SET_VRING_NUM, u32s(&[0, size]), 0);
        row.says("lower its queue-size");
    }
    for base in [65536, u32::MAX] {
        let what = format!("SET_VRING_BASE: {base}");
        rows.bad_message(what, SET_VRING_BASE, u32s(&[0, base]), 0);
    }
    let row = rows.bad_message("SET_VRING_KICK first", SET_VRING_KICK, u64s(&[0]), 1);
    row.says("before there is guest memory");
    let user_addr = virtqueue::testing::USER_ADDR_OFFSET + MEMORY;
    let elsewhere = vring_addr(0, 0, user_addr, user_addr, user_addr);
    for (missing, request, payload) in [
        ("SET_VRING_ADDR", SET_VRING_NUM, u32s(&[0, 16])),
        ("SET_VRING_NUM", SET_VRING_ADDR, elsewhere.clone()),
    ] {
        let what = format!("SET_VRING_KICK before {missing}");
        let row = rows.negotiated(what, Dropped, move |guest| {
            guest.share_memory();
            guest.must(request, &payload, &[]);
            guest.tell(SET_VRING_KICK, &u64s(&[0]), &[event().as_fd()])
        });
        row.says(missing);
    }
    for (what, request, payload, says) in [
        ("SET_VRING_NUM", SET_VRING_NUM, u32s(&[0, 8]), RUNNING),
        ("SET_VRING_BASE", SET_VRING_BASE, u32s(&[0, 8]), RUNNING),
        ("SET_VRING_ADDR", SET_VRING_ADDR, elsewhere, RUNNING),
        ("2", SET_VRING_ENABLE, u32s(&[0, 2]), DISCONNECTED),
        ("-1", SET_VRING_ENABLE, u32s(&[0, u32::MAX]), DISCONNECTED),
    ] {
        let row = rows.running(format!("running: {what}"), Dropped, move |guest| {
            guest.tell(request, &payload, &[])
        });
        row.says(says);
    }
    rows.running("SET_VRING_ADDR: unknown flags", Dropped, |guest| {
        guest.tell(SET_VRING_ADDR, &guest.addresses(0, 2), &[])
    });
    rows.running("SET_VRING_NUM of a running queue, as before", OK, |guest| {
        guest.must(SET_VRING_NUM, &u32s(&[0, ENTRIES.into()]), &[]);
        guest.read_sector()
    });
    rows.running("SET_VRING_KICK again for a running queue", OK, |guest| {
        guest.queues[0].kick = event();
        guest.start(0);
        guest.read_sector()
    });
    rows.negotiated("GET_VRING_BASE of a new queue, twice", Accepted, |guest| {
        assert_eq!([guest.wire.stop(0), guest.wire.stop(0)], [Ok(0); 2]);
        guest.still_there()
    });
    rows.running("RESET_OWNER and RESET_DEVICE", Accepted, |guest| {
        guest.must(RESET_OWNER, &[], &[]);
        guest.must(RESET_DEVICE, &[], &[]);
        guest.queues[0].kick();
        guest.still_there()
    });
    rows.running("SET_FEATURES to none while running", Accepted, |guest| {
        guest.must(SET_FEATURES, &u64s(&[0]), &[]);
        guest.still_there()
    });
    rows.running("200 queues stopped and started", Accepted, |guest| {
        for index in [0, 1].repeat(100) {
            guest.wire.stop(index).unwrap();
            guest.start(index);
        }
        guest.still_there()
    });
}

fn no_such_queues(rows: &mut Rows) {
    for index in [2, 255, u32::MAX] {
        let number = u64s(&[index.into()]);
        let addresses = vring_addr(index, 0, MEMORY, MEMORY + 0x1000, MEMORY + 0x2000);
        for (what, request, payload, fds) in [
            ("SET_VRING_NUM", SET_VRING_NUM, u32s(&[index, 16]), 0),
            ("SET_VRING_ADDR", SET_VRING_ADDR, addresses, 0),
            ("SET_VRING_BASE", SET_VRING_BASE, u32s(&[index, 0]), 0),
            ("GET_VRING_BASE", GET_VRING_BASE, u32s(&[index, 0]), 0),
            ("SET_VRING_KICK", SET_VRING_KICK, number.clone(), 1),
            ("SET_VRING_CALL", SET_VRING_CALL, number.clone(), 1),
            ("SET_VRING_ERR", SET_VRING_ERR, number, 1),
            ("SET_VRING_ENABLE", SET_VRING_ENABLE, u32s(&[index, 0]), 0),
        ] {
            // The index has 8 bits where there are descriptors.
            if fds == 0 || index <= 255 {
                let row = rows.negotiated(format!("{what} {index}"), Dropped, move |guest| {
                    guest.share_memory();
                    guest.tell_with_events(request, &payload, fds)
                });
                row.says("a queue that is not there");
            }
        }
    }
}
