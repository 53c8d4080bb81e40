//! Statistics agree with what guests did.

use serde_json::{Value, json};
use test_support::deadline::eventually_ok;

use crate::client::Client;
use crate::request_driver::{FLUSH, IN, OUT, RequestDriver, SLOTS};
use crate::start_with_disk;

const BLOCK: u64 = 4096;

/// One export of two queues on two iothreads, over a disk of 256 blocks.
const LINE: &str = "--object iothread,id=io0 --object iothread,id=io1 \
    --blockdev file,node-name=d,filename=disk,cache.direct=off \
    --export vhost-user-blk,id=e,node-name=d,writable=on,num-queues=2,addr.type=unix,addr.path=e.sock,\
iothread-vq-mapping.0.iothread=io0,iothread-vq-mapping.1.iothread=io1";

/// Numbers of an object by name.
fn numbers<const N: usize>(of: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}")))
}

const COUNTS: [&str; 6] = [
    "rd_operations",
    "rd_bytes",
    "wr_operations",
    "wr_bytes",
    "flush_operations",
    "invalid_rd_operations",
];

#[test]
fn statistics_are_exact_and_survive_reconnections() {
    let (folder, program, mut client) = start_with_disk(LINE);
    let before = client.block_stats("e");
    assert_eq!(before["connected"], false);
    assert_eq!(numbers(&before["stats"], COUNTS), [0; 6]);
    assert_eq!(before["queues"][1]["running"], false);

    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    for block in 0..20 {
        guest.request(0, OUT, block, 1);
        guest.request(1, IN, block, 0);
        guest.request(1, IN, block + 100, 0);
    }
    guest.request(1, FLUSH, 0, 0);
    // Beyond the end.
    guest.status_of(0, IN, 256, 0);
    let bases = [guest.stop(0), guest.stop(1)];
    let counts = [40, 40 * BLOCK, 20, 20 * BLOCK, 1, 1];
    let first = client.block_stats("e");
    assert_eq!(first["connected"], true);
    assert_eq!(first["node-name"], "d");
    assert_eq!(numbers(&first["stats"], COUNTS), counts);
    assert_eq!(first["stats"]["wr_highest_offset"], 20 * BLOCK);
    let [read_ns, idle_ns] = numbers(&first["stats"], ["rd_total_time_ns", "idle_time_ns"]);
    assert!(read_ns > 0 && idle_ns > 0);
    assert_eq!(
        numbers(&first["queues"][0]["stats"], COUNTS),
        [0, 0, 20, 20 * BLOCK, 0, 1]
    );
    assert_eq!(first["queues"][1]["iothread"], "io1");
    people_see_them(&mut client);

    guest.start(0, bases[0]);
    guest.start(1, bases[1]);
    guest.request(0, IN, 3, 0);
    let running = client.block_stats("e");
    assert_eq!(running["queues"][0]["running"], true);
    assert_eq!(running["queues"][0]["size"], 64);
    // A guest that looks may find the last answer before it is signalled.
    assert!(running["queues"][0]["notifications"].as_u64().unwrap() >= 21);
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 200, 1);
    guest.stop(0);
    let last = client.block_stats("e");
    let counts = [41, 41 * BLOCK, 21, 21 * BLOCK, 1, 1];
    assert_eq!(numbers(&last["stats"], COUNTS), counts);
    assert_eq!(last["stats"]["wr_highest_offset"], 201 * BLOCK);

    // The parts are the whole, and histograms have each request once.
    let queues = last["queues"].as_array().unwrap();
    for name in last["stats"].as_object().unwrap().keys() {
        if ["idle_time_ns", "wr_highest_offset"].contains(&name.as_str()) {
            continue;
        }
        if let Some(whole) = last["stats"][name].as_u64() {
            let parts = queues
                .iter()
                .map(|queue| numbers(&queue["stats"], [name])[0]);
            let difference = parts.sum::<u64>().abs_diff(whole);
            // Each was turned from ticks into nanoseconds for itself.
            assert!(difference <= u64::from(name.ends_with("_ns")), "{name}");
        }
    }
    for (kind, prefix) in [
        ("read", "rd"),
        ("write", "wr"),
        ("flush", "flush"),
        ("unmap", "unmap"),
    ] {
        for queue in queues {
            let counts = queue["latency"][kind]["counts"].as_array().unwrap();
            let total: u64 = counts.iter().filter_map(Value::as_u64).sum();
            assert_eq!(queue["stats"][format!("{prefix}_operations")], total);
            let bounds = queue["latency"][kind]["bounds"].as_array().unwrap();
            assert!(bounds.is_sorted_by_key(Value::as_u64), "{bounds:?}");
            assert_eq!(bounds.len(), counts.len());
        }
    }
    program.stop();
}

/// As QEMU's monitor shows them. Times are there, but in the first second of a program they are
/// in nanoseconds that are not final.
fn people_see_them(client: &mut Client) {
    let line = json!({"command-line": "info blockstats"});
    let said = client.done("human-monitor-command", line);
    let said = said.as_str().unwrap().strip_suffix("\r\n").unwrap();
    let words = said.split(' ').map(|word| match word.split_once('=') {
        Some((name, ns)) if name.ends_with("_ns") => {
            assert!(ns.parse::<u64>().unwrap() > 0, "{said}");
            name
        }
        _ => word,
    });
    assert_eq!(
        words.collect::<Vec<_>>().join(" "),
        "e: rd_bytes=163840 wr_bytes=81920 rd_operations=40 wr_operations=20 flush_operations=1 \
         wr_total_time_ns rd_total_time_ns flush_total_time_ns rd_merged=0 wr_merged=0 idle_time_ns"
    );
}

#[test]
fn queues_and_iothreads_count_batches_polls_and_sleeps() {
    let (folder, program, mut client) = start_with_disk(LINE);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    for block in 0..5 {
        guest.request(0, IN, block, 0);
        guest.ask_all(1, IN, (0..SLOTS as u64).map(|block| (block, 0)));
        guest.watch_all(1);
    }
    let shown = client.block_stats("e");
    for (queue, operations) in [(0, 5), (1, 5 * SLOTS)] {
        let queue = &shown["queues"][queue];
        assert_eq!(queue["stats"]["rd_operations"], operations);
        assert_eq!(queue["turns"], 5, "{queue}");
    }
    guest.stop(0);
    guest.stop(1);
    let iothreads = client.execute("query-iothreads");
    for index in 0..2 {
        let stats = &iothreads[index]["stats"];
        let names = ["cpu-time-ns", "iterations", "sleeps"];
        assert!(numbers(stats, names).iter().all(|&count| count > 0));
        let [polls, hits] = numbers(stats, ["polls", "poll-hits"]);
        assert!(hits <= polls, "{stats}");
        let names = ["requests-submitted", "submit-calls", "largest-batch"];
        let [requests, calls, largest] = numbers(stats, names);
        assert!(calls <= requests && largest <= requests, "{stats}");
    }
    program.stop();
}

/// Exact when the iothread has nothing to do, however it was handed over.
#[test]
fn submitted_requests_are_counted_exactly() {
    if !test_support::report::has_io_uring() {
        return;
    }
    let line = "--object iothread,id=io0,aio-max-batch=4 --object iothread,id=idle \
        --blockdev file,node-name=d,filename=disk,cache.direct=off,aio=io_uring \
        --export vhost-user-blk,id=e,node-name=d,iothread=io0,addr.type=unix,addr.path=e.sock";
    let (folder, program, mut client) = start_with_disk(line);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    for block in 0..21 {
        guest.request(0, IN, block, 0);
    }
    let names = ["requests-submitted", "submit-calls", "largest-batch"];
    eventually_ok("21 requests, each in a call of its own", || {
        let iothreads = client.execute("query-iothreads");
        let counts = [0, 1].map(|index| numbers(&iothreads[index]["stats"], names));
        match counts {
            [[21, 21, 1], [0, 0, 0]] => Ok(()),
            other => Err(other),
        }
    });
    program.stop();
}
