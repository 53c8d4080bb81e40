//! Messages about queues that do not exist, of impossible sizes, or at the wrong time.

use std::os::fd::AsFd;

use crate::guest::*;
use crate::row::Answer::{Accepted, Dropped};
use crate::row::Rows;
use crate::wire::*;

/// Messages that name a queue, with what is left of their payload.
fn queue_message(request: u32, index: u32) -> Vec<u8> {
    match request {
        SET_VRING_ADDR => vring_addr(index, 0, MEMORY, MEMORY + 0x1000, MEMORY + 0x2000),
        SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR => u64s(&[u64::from(index)]),
        SET_VRING_NUM => u32s(&[index, 16]),
        _ => u32s(&[index, 0]),
    }
}

pub fn rows(rows: &mut Rows) {
    const NO_SUCH_QUEUE: &str = "a queue that is not there";
    for (what, request) in [
        ("SET_VRING_NUM", SET_VRING_NUM),
        ("SET_VRING_ADDR", SET_VRING_ADDR),
        ("SET_VRING_BASE", SET_VRING_BASE),
        ("GET_VRING_BASE", GET_VRING_BASE),
        ("SET_VRING_KICK", SET_VRING_KICK),
        ("SET_VRING_CALL", SET_VRING_CALL),
        ("SET_VRING_ERR", SET_VRING_ERR),
        ("SET_VRING_ENABLE", SET_VRING_ENABLE),
    ] {
        for index in [2, 255, u32::MAX] {
            let with_fd = matches!(request, SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR);
            if with_fd && index > 255 {
                // The index has 8 bits there.
                continue;
            }
            rows.negotiated(format!("{what}: queue {index}"), Dropped, move |guest| {
                guest.share_memory();
                let file = event();
                let fds = if with_fd { vec![file.as_fd()] } else { vec![] };
                guest.tell(request, &queue_message(request, index), &fds)
            })
            .says(NO_SUCH_QUEUE);
        }
    }
    for size in [2048, 32768, 65536, u32::MAX] {
        rows.negotiated(
            format!("SET_VRING_NUM: {size} entries"),
            Dropped,
            move |guest| guest.tell(SET_VRING_NUM, &u32s(&[0, size]), &[]),
        )
        .says("lower its queue-size");
    }
    for base in [65536, u32::MAX] {
        rows.negotiated(format!("SET_VRING_BASE: {base}"), Dropped, move |guest| {
            guest.tell(SET_VRING_BASE, &u32s(&[0, base]), &[])
        });
    }
    for state in [2, u32::MAX] {
        rows.running(
            format!("SET_VRING_ENABLE: {state}"),
            Dropped,
            move |guest| guest.tell(SET_VRING_ENABLE, &u32s(&[0, state]), &[]),
        );
    }
    rows.negotiated("SET_VRING_KICK before memory", Dropped, |guest| {
        let kick = event();
        guest.tell(SET_VRING_KICK, &u64s(&[0]), &[kick.as_fd()])
    })
    .says("before there is guest memory");
    rows.negotiated(
        "SET_VRING_KICK before the ring addresses",
        Dropped,
        |guest| {
            guest.share_memory();
            guest.must(SET_VRING_NUM, &u32s(&[0, 16]), &[]);
            let kick = event();
            guest.tell(SET_VRING_KICK, &u64s(&[0]), &[kick.as_fd()])
        },
    )
    .says("SET_VRING_ADDR");
    rows.negotiated("SET_VRING_KICK before the ring size", Dropped, |guest| {
        guest.share_memory();
        let user_addr = guest.memory.user_addr(MEMORY);
        guest.must(
            SET_VRING_ADDR,
            &vring_addr(0, 0, user_addr, user_addr, user_addr),
            &[],
        );
        let kick = event();
        guest.tell(SET_VRING_KICK, &u64s(&[0]), &[kick.as_fd()])
    })
    .says("SET_VRING_NUM");
    rows.running("SET_VRING_NUM of a running queue", Dropped, |guest| {
        guest.tell(SET_VRING_NUM, &u32s(&[0, 8]), &[])
    })
    .says("the queue is running");
    rows.running(
        "SET_VRING_NUM of a running queue, as before",
        crate::row::OK,
        |guest| {
            guest.must(SET_VRING_NUM, &u32s(&[0, ENTRIES.into()]), &[]);
            guest.read_sector()
        },
    );
    rows.running("SET_VRING_BASE of a running queue", Dropped, |guest| {
        guest.tell(SET_VRING_BASE, &u32s(&[0, 8]), &[])
    })
    .says("the queue is running");
    rows.running(
        "SET_VRING_ADDR elsewhere for a running queue",
        Dropped,
        |guest| {
            let user_addr = guest.memory.user_addr(MEMORY);
            let payload = vring_addr(0, 0, user_addr, user_addr, user_addr);
            guest.tell(SET_VRING_ADDR, &payload, &[])
        },
    )
    .says("the queue is running");
    rows.running("SET_VRING_ADDR: unknown flags", Dropped, |guest| {
        guest.tell(SET_VRING_ADDR, &guest.addresses(0, 2), &[])
    });
    rows.running(
        "SET_VRING_KICK again for a running queue",
        crate::row::OK,
        |guest| {
            guest.queues[0].kick = event();
            guest.start(0);
            guest.read_sector()
        },
    );
    rows.negotiated(
        "GET_VRING_BASE of a queue that never ran, and again",
        Accepted,
        |guest| {
            for _ in 0..2 {
                let reply = guest.wire.ask(GET_VRING_BASE, &u32s(&[0, 0]), &[]);
                assert_eq!(reply, Some(u32s(&[0, 0])));
            }
            guest.still_there()
        },
    );
    rows.running(
        "RESET_DEVICE and RESET_OWNER while queues run, then kicks",
        Accepted,
        |guest| {
            guest.must(RESET_OWNER, &[], &[]);
            guest.must(RESET_DEVICE, &[], &[]);
            guest.queues[0].kick();
            guest.still_there()
        },
    );
    rows.running(
        "SET_FEATURES while queues run, to none",
        Accepted,
        |guest| {
            guest.must(SET_FEATURES, &u64s(&[0]), &[]);
            guest.still_there()
        },
    );
    rows.running(
        "200 queues started and stopped without a request",
        Accepted,
        |guest| {
            for _ in 0..100 {
                for index in [0, 1] {
                    guest
                        .wire
                        .ask(GET_VRING_BASE, &u32s(&[index, 0]), &[])
                        .unwrap();
                    guest.start(index);
                }
            }
            guest.still_there()
        },
    );
}
