//! Latencies between boundaries that a client chose. Arguments, answers and errors are those of QEMU 7.2.

use serde_json::{Value, json};

use crate::client::Client;
use crate::request_driver::{FLUSH, IN, OUT, RequestDriver, SLOTS};
use crate::start_with_disk;

/// A client sets boundaries of export `e`.
const SET: &str = "block-latency-histogram-set id=e";
const SHOWN: [&str; 3] = [
    "rd_latency_histogram",
    "wr_latency_histogram",
    "flush_latency_histogram",
];

const LINE: &str = "--blockdev null-co,node-name=n,size=1M \
    --export vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2 \
    --export vhost-user-blk,id=f,node-name=n,addr.type=unix,addr.path=f.sock";

/// An export's histograms of reads, writes and flushes.
fn histograms(client: &mut Client, id: &str) -> [Value; 3] {
    let export = client.block_stats(id);
    SHOWN.map(|name| export["stats"][name].clone())
}

/// Their boundaries.
fn boundaries(client: &mut Client) -> Value {
    let found = histograms(client, "e");
    found.iter().map(|one| one["boundaries"].clone()).collect()
}

fn bins(of: &Value) -> Vec<u64> {
    let bins = of["bins"].as_array().unwrap().iter();
    bins.map(|count| count.as_u64().unwrap()).collect()
}

#[test]
fn histograms_are_set_removed_and_refused_as_in_qemu() {
    let (_folder, program, mut client) = start_with_disk(LINE);
    assert_eq!(boundaries(&mut client), json!([null, null, null]));
    // What is said, and the boundaries of reads, writes and flushes that are there then.
    for (said, expected) in [
        ("boundaries=[10,20]", json!([[10, 20], [10, 20], [10, 20]])),
        (
            "boundaries=[10] boundaries-read=[5]",
            json!([[5], [10], [10]]),
        ),
        (
            "boundaries-write=[7,8] boundaries-read=[]",
            json!([[], [7, 8], [10]]),
        ),
        (
            "boundaries-flush=[5,-1]",
            json!([[], [7, 8], [5, u64::MAX]]),
        ),
        (
            "boundaries=[-9223372036854775808]",
            json!([[1_u64 << 63], [1_u64 << 63], [1_u64 << 63]]),
        ),
        ("", json!([null, null, null])),
        ("boundaries-read=[1]", json!([[1], null, null])),
    ] {
        assert_eq!(client.execute(&format!("{SET} {said}")), json!({}));
        assert_eq!(boundaries(&mut client), expected, "{said}");
    }
    let shown = histograms(&mut client, "e");
    assert_eq!(shown[0], json!({"boundaries": [1], "bins": [0, 0]}));
    let other = histograms(&mut client, "f");
    assert!(other.iter().all(Value::is_null), "of another export");

    let unknown = client.ask("block-latency-histogram-set", json!({"id": "n"}));
    let error = json!({"class": "DeviceNotFound", "desc": "Device 'n' not found"});
    assert_eq!(unknown["error"], error);
    client.execute(&format!("{SET} boundaries=[9]"));
    let many: Vec<u64> = (1..=1025).collect();
    let many = json!(many);
    client.assert_errors(&format!(
        "block-latency-histogram-set => Parameter 'id' is missing
         block-latency-histogram-set id=1 => Invalid parameter type for 'id', expected: string
         {SET} boundaries-zap=[1] => Parameter 'boundaries-zap' is unexpected
         {SET} boundaries=5 => Invalid parameter type for 'boundaries', expected: array
         {SET} boundaries=[1,\"x\"] => Parameter 'boundaries[1]' expects uint64
         {SET} boundaries-flush=[1.5] => Parameter 'boundaries-flush[0]' expects uint64
         {SET} boundaries-read=[0] => Device 'e' set read boundaries fail: 0 follows 0: they must grow, from above 0
         {SET} boundaries-write=[5,5] => Device 'e' set write boundaries fail: 5 follows 5: they must grow, from above 0
         {SET} boundaries-flush={many} => Device 'e' set flush boundaries fail: there are 1025 of them, at most 1024 are supported"
    ));
    assert_eq!(boundaries(&mut client), json!([[9], [9], [9]]));
    let text = client.error_of(&format!("{SET} boundaries=[1] boundaries-write=[0]"));
    assert!(text.starts_with("Device 'e' set write boundaries fail"));
    assert_eq!(boundaries(&mut client), json!([[1], [9], [9]]));
    program.stop();
}

#[test]
fn histogram_bins_count_requests_between_boundaries() {
    let line = LINE.replace("size=1M", "size=1M,latency-ns=3000000");
    let (folder, program, mut client) = start_with_disk(&line);
    client.execute(&format!(
        "{SET} boundaries=[1000000,4611686018427387904] boundaries-flush=[]"
    ));
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    let mut other = RequestDriver::connect(&folder.join("f.sock"), 1);
    for block in 0..5 {
        guest.request(0, OUT, block, 1);
        guest.request(1, IN, block, 0);
        guest.request(0, IN, block, 0);
        other.request(0, IN, block, 0);
    }
    guest.request(1, FLUSH, 0, 0);
    // Beyond the end: not done, not counted.
    guest.status_of(0, IN, 256, 0);
    drop(other);
    let shown = client.block_stats("e");
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
    client.execute(&format!("{SET} boundaries-read=[4611686018427387904]"));
    guest.request(0, IN, 0, 0);
    guest.request(0, OUT, 0, 0);
    let [reads, writes, _] = histograms(&mut client, "e");
    assert_eq!([bins(&reads), bins(&writes)], [vec![1, 0], vec![0, 6, 0]]);
    client.execute(SET);
    guest.request(0, IN, 0, 0);
    let gone = histograms(&mut client, "e");
    assert!(gone.iter().all(Value::is_null));
    assert_eq!(client.block_stats("e")["stats"]["rd_operations"], 12);
    program.stop();
}

#[test]
fn histograms_survive_reconnections_and_reopening() {
    let line = LINE.replace(
        "null-co,node-name=n,size=1M",
        "file,node-name=n,filename=disk",
    );
    let (folder, program, mut client) = start_with_disk(&line);
    client.execute(&format!("{SET} boundaries=[4611686018427387904]"));
    let socket = folder.join("e.sock");
    let mut guest = RequestDriver::connect(&socket, 2);
    guest.request(0, OUT, 0, 1);
    guest.request(1, OUT, 0, 1);
    let base = guest.stop(1);
    guest.start(1, base);
    guest.request(1, OUT, 0, 1);
    client.reopen("driver=file node-name=n filename=disk cache.direct=false");
    guest.request(1, OUT, 0, 1);
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    let mut guest = RequestDriver::connect(&socket, 1);
    guest.request(0, OUT, 0, 1);
    let [_, writes, _] = histograms(&mut client, "e");
    assert_eq!(bins(&writes), [5, 0]);
    program.stop();
}

#[test]
fn histogram_of_a_busy_guest_lacks_requests_in_flight_only() {
    let (folder, program, mut client) = start_with_disk(LINE);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    let submit = |guest: &mut RequestDriver| {
        for queue in [0, 1] {
            guest.ask_all(queue, IN, (0..SLOTS as u64).map(|block| (block, 0)));
        }
    };
    let each = 2 * SLOTS as u64;
    for round in 1..=100 {
        submit(&mut guest);
        if round % 3 == 0 {
            client.execute(SET);
        }
        client.execute(&format!("{SET} boundaries=[1,{}]", round + 1000));
        for queue in [0, 1] {
            guest.watch_all(queue);
        }
        submit(&mut guest);
        for queue in [0, 1] {
            guest.watch_all(queue);
            let base = guest.stop(queue);
            guest.start(queue, base);
        }
        let shown = client.block_stats("e");
        let counted: u64 = bins(&shown["stats"][SHOWN[0]]).iter().sum();
        assert!((each..=2 * each).contains(&counted), "{counted}");
        assert_eq!(shown["stats"]["rd_operations"], round * 2 * each);
    }
    program.stop();
}
