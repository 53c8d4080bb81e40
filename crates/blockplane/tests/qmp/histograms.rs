//! Latencies between boundaries that a client chose. Arguments, answers and errors are those of QEMU 7.2.

use serde_json::{Value, json};

use crate::client::Client;
use crate::guest::{FLUSH, Guest, IN, OUT, SLOTS};
use crate::process::Folder;
use crate::start;

const SET: &str = "block-latency-histogram-set";
const SHOWN: [&str; 3] = [
    "rd_latency_histogram",
    "wr_latency_histogram",
    "flush_latency_histogram",
];

const LINE: &str = "--blockdev null-co,node-name=n,size=1M \
    --export vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2 \
    --export vhost-user-blk,id=f,node-name=n,addr.type=unix,addr.path=f.sock";

/// The statistics of an export.
#[track_caller]
fn export(client: &mut Client, id: &str) -> Value {
    let exports = client.done("query-blockstats", json!({}));
    let mut exports = exports.as_array().unwrap().iter();
    exports.find(|found| found["export"] == id).unwrap().clone()
}

/// Its histograms of reads, writes and flushes.
fn histograms(client: &mut Client, id: &str) -> [Value; 3] {
    let export = export(client, id);
    SHOWN.map(|name| export["stats"][name].clone())
}

fn boundaries(client: &mut Client) -> [Value; 3] {
    histograms(client, "e").map(|found| found["boundaries"].clone())
}

fn bins(of: &Value) -> Vec<u64> {
    let bins = of["bins"].as_array().unwrap().iter();
    bins.map(|count| count.as_u64().unwrap()).collect()
}

#[test]
fn histograms_are_set_and_removed_as_in_qemu() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, LINE);
    let none = json!(null);
    assert_eq!(boundaries(&mut client), [none.clone(), none.clone(), none]);
    // What is said, and the boundaries of reads, writes and flushes that are there then.
    for (said, reads, writes, flushes) in [
        (
            json!({"boundaries": [10, 20]}),
            json!([10, 20]),
            json!([10, 20]),
            json!([10, 20]),
        ),
        (
            json!({"boundaries": [10], "boundaries-read": [5]}),
            json!([5]),
            json!([10]),
            json!([10]),
        ),
        (
            json!({"boundaries-write": [7, 8], "boundaries-read": []}),
            json!([]),
            json!([7, 8]),
            json!([10]),
        ),
        (
            json!({"boundaries-flush": [5, -1]}),
            json!([]),
            json!([7, 8]),
            json!([5, u64::MAX]),
        ),
        (
            json!({"boundaries": [i64::MIN]}),
            json!([1_u64 << 63]),
            json!([1_u64 << 63]),
            json!([1_u64 << 63]),
        ),
        (json!({}), json!(null), json!(null), json!(null)),
        (
            json!({"boundaries-read": [1]}),
            json!([1]),
            json!(null),
            json!(null),
        ),
    ] {
        let mut arguments = said.clone();
        arguments["id"] = "e".into();
        assert_eq!(client.done(SET, arguments), json!({}));
        assert_eq!(boundaries(&mut client), [reads, writes, flushes], "{said}");
    }
    let shown = histograms(&mut client, "e");
    assert_eq!(shown[0], json!({"boundaries": [1], "bins": [0, 0]}));
    let other = histograms(&mut client, "f");
    assert!(other.iter().all(Value::is_null), "of another export");
    program.stop();
}

#[test]
fn invalid_boundaries_are_reported_as_in_qemu_and_earlier_kinds_stay_set() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, LINE);
    let unknown = client.ask(SET, json!({"id": "n", "boundaries": [1]}));
    let text = "Device 'n' not found";
    assert_eq!(
        unknown["error"],
        json!({"class": "DeviceNotFound", "desc": text})
    );
    for (arguments, text) in [
        (json!({}), "Parameter 'id' is missing"),
        (
            json!({"id": 1}),
            "Invalid parameter type for 'id', expected: string",
        ),
        (
            json!({"id": "e", "boundaries-zap": [1]}),
            "Parameter 'boundaries-zap' is unexpected",
        ),
        (
            json!({"id": "e", "boundaries": 5}),
            "Invalid parameter type for 'boundaries', expected: array",
        ),
        (
            json!({"id": "e", "boundaries": [1, "x"]}),
            "Parameter 'boundaries[1]' expects uint64",
        ),
        (
            json!({"id": "e", "boundaries-flush": [1.5]}),
            "Parameter 'boundaries-flush[0]' expects uint64",
        ),
    ] {
        assert_eq!(client.fails(SET, arguments), text);
    }
    client.done(SET, json!({"id": "e", "boundaries": [9]}));
    let many: Vec<u64> = (1..=1025).collect();
    for (list, kind, why) in [
        (
            json!([0]),
            "read",
            "0 follows 0: they must grow, from above 0",
        ),
        (
            json!([5, 5]),
            "write",
            "5 follows 5: they must grow, from above 0",
        ),
        (
            json!([6, 5]),
            "flush",
            "5 follows 6: they must grow, from above 0",
        ),
        (
            json!(many),
            "flush",
            "there are 1025 of them, at most 1024 are supported",
        ),
    ] {
        let mut arguments = json!({"id": "e"});
        arguments[format!("boundaries-{kind}")] = list;
        let text = client.fails(SET, arguments);
        assert_eq!(
            text,
            format!("Device 'e' set {kind} boundaries fail: {why}")
        );
        assert_eq!(
            boundaries(&mut client),
            [json!([9]), json!([9]), json!([9])]
        );
    }
    let second = json!({"id": "e", "boundaries": [1], "boundaries-write": [0]});
    let text = client.fails(SET, second);
    assert!(text.starts_with("Device 'e' set write boundaries fail"));
    assert_eq!(
        boundaries(&mut client),
        [json!([1]), json!([9]), json!([9])]
    );
    program.stop();
}

#[test]
fn histogram_bins_count_requests_between_boundaries() {
    let folder = Folder::new();
    let line = LINE.replace("size=1M", "size=1M,latency-ns=3000000");
    let (program, mut client) = start(&folder, &line);
    let set = json!({"id": "e", "boundaries": [1_000_000, 1_u64 << 62], "boundaries-flush": []});
    client.done(SET, set);
    let mut guest = Guest::connect(&folder.join("e.sock"), 2);
    let mut other = Guest::connect(&folder.join("f.sock"), 1);
    for block in 0..5 {
        guest.request(0, OUT, block, 1);
        guest.request(1, IN, block, 0);
        guest.request(0, IN, block, 0);
        other.request(0, IN, block, 0);
    }
    guest.request(1, FLUSH, 0, 0);
    // Beyond the end: not done, not counted.
    guest.ask(0, 0, IN, 256, 0);
    guest.watch(0, 0);
    drop(other);
    let shown = export(&mut client, "e");
    let of = |stats: &Value| SHOWN.map(|name| bins(&stats[name]));
    // None was faster than the disk says that it is, none took a century.
    let whole = [vec![0, 10, 0], vec![0, 5, 0], vec![1]];
    assert_eq!(of(&shown["stats"]), whole);
    let queues = [&shown["queues"][0]["stats"], &shown["queues"][1]["stats"]];
    assert_eq!(of(queues[0]), [vec![0, 5, 0], vec![0, 5, 0], vec![0]]);
    assert_eq!(of(queues[1]), [vec![0, 5, 0], vec![0, 0, 0], vec![1]]);
    let other = histograms(&mut client, "f");
    assert!(other.iter().all(Value::is_null));

    // A longer boundary; what is set again begins anew, the rest stays.
    client.done(SET, json!({"id": "e", "boundaries-read": [1_u64 << 62]}));
    guest.request(0, IN, 0, 0);
    guest.request(0, OUT, 0, 0);
    let [reads, writes, _] = histograms(&mut client, "e");
    assert_eq!([bins(&reads), bins(&writes)], [vec![1, 0], vec![0, 6, 0]]);
    client.done(SET, json!({"id": "e"}));
    guest.request(0, IN, 0, 0);
    let gone = histograms(&mut client, "e");
    assert!(gone.iter().all(Value::is_null));
    assert_eq!(export(&mut client, "e")["stats"]["rd_operations"], 12);
    program.stop();
}

#[test]
fn histograms_survive_reconnections_and_reopening() {
    let folder = Folder::new();
    folder.image("disk", 1 << 20);
    let line = LINE.replace(
        "null-co,node-name=n,size=1M",
        "file,node-name=n,filename=disk",
    );
    let (program, mut client) = start(&folder, &line);
    client.done(SET, json!({"id": "e", "boundaries": [1_u64 << 62]}));
    let socket = folder.join("e.sock");
    let mut guest = Guest::connect(&socket, 2);
    guest.request(0, OUT, 0, 1);
    guest.request(1, OUT, 0, 1);
    let base = guest.stop(1);
    guest.start(1, base);
    guest.request(1, OUT, 0, 1);
    let buffered = json!({"driver": "file", "node-name": "n", "filename": "disk",
        "cache": {"direct": false}});
    client.done("blockdev-reopen", json!({"options": [buffered]}));
    guest.request(1, OUT, 0, 1);
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    let mut guest = Guest::connect(&socket, 1);
    guest.request(0, OUT, 0, 1);
    let [_, writes, _] = histograms(&mut client, "e");
    assert_eq!(bins(&writes), [5, 0]);
    program.stop();
}

#[test]
fn histogram_of_a_busy_guest_lacks_requests_in_flight_only() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, LINE);
    let mut guest = Guest::connect(&folder.join("e.sock"), 2);
    let submit = |guest: &mut Guest| {
        for queue in [0, 1] {
            for slot in 0..SLOTS {
                guest.add(queue, slot, IN, slot as u64, 0);
            }
            guest.submit(queue);
        }
    };
    let finish = |guest: &mut Guest| {
        for queue in [0, 1] {
            for slot in 0..SLOTS {
                guest.watch(queue, slot);
            }
        }
    };
    let each = 2 * SLOTS as u64;
    for round in 1..=100 {
        submit(&mut guest);
        if round % 3 == 0 {
            client.done(SET, json!({"id": "e"}));
        }
        client.done(SET, json!({"id": "e", "boundaries": [1, round + 1000]}));
        finish(&mut guest);
        submit(&mut guest);
        finish(&mut guest);
        for queue in [0, 1] {
            let base = guest.stop(queue);
            guest.start(queue, base);
        }
        let shown = export(&mut client, "e");
        let counted: u64 = bins(&shown["stats"][SHOWN[0]]).iter().sum();
        assert!((each..=2 * each).contains(&counted), "{counted}");
        assert_eq!(shown["stats"]["rd_operations"], round * 2 * each);
    }
    program.stop();
}
