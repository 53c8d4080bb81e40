//! Metrics agree with monitors and with what guests did, and cost guests nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use test_support::deadline::{Deadline, eventually};
use test_support::sockets::connect;
use test_support::threads::{read_of_each_thread, status_field};

use crate::client::Client;
use crate::guest::{FLUSH, Guest, IN, OUT};
use crate::process::{Folder, Process, STUCK_AFTER, words};
use crate::prometheus_client::{
    Figures, OPENMETRICS, PLAIN, ask, documented_samples, get, has_parser,
};
use crate::start;

const BLOCK: u64 = 4096;

/// One export of three queues on two iothreads, over a disk of 256 blocks.
fn line(folder: &Folder) -> &'static str {
    folder.image("disk", 256 * BLOCK);
    "--metrics unix:m --object iothread,id=io0 --object iothread,id=io1 \
     --blockdev file,node-name=d,filename=disk \
     --export vhost-user-blk,id=e,node-name=d,writable=on,num-queues=3,addr.type=unix,addr.path=e.sock,\
     iothread.0=io0,iothread.1=io1"
}

/// A guest that has done some of everything, and whose queues stand still.
fn worked(folder: &Folder) -> Guest {
    let mut guest = Guest::connect(&folder.join("e.sock"), 2);
    for block in 0..20 {
        guest.request(0, OUT, block, 1);
        guest.request(1, IN, block, 0);
    }
    guest.request(1, FLUSH, 0, 0);
    // Beyond the end.
    guest.ask(0, 0, IN, 256, 0);
    guest.watch(0, 0);
    guest.stop(0);
    guest.stop(1);
    guest
}

/// The main thread has shown what there is before it takes this command.
fn shown(client: &mut Client) {
    client.done("query-iothreads", json!({}));
}

#[test]
fn metrics_match_the_monitor_and_the_guest() {
    if !has_parser() {
        return;
    }
    let folder = Folder::new();
    let (program, mut client) = start(&folder, line(&folder));
    let guest = worked(&folder);
    shown(&mut client);
    let figures = Figures::scrape(&folder.join("m"), OPENMETRICS);
    let op = |queue: &str, op: &str| json!({"export": "e", "queue": queue, "op": op});
    assert_eq!(
        figures.one("blockplane_queue_operations_total", op("0", "write")),
        20.0
    );
    assert_eq!(
        figures.one("blockplane_queue_transferred_bytes_total", op("1", "read")),
        81_920.0
    );
    let mut invalid = op("0", "read");
    invalid["kind"] = "invalid".into();
    assert_eq!(figures.one("blockplane_queue_errors_total", invalid), 1.0);

    let export = client.done("query-blockstats", json!({}))[0].take();
    let number = |value: &Value| value.as_f64().unwrap();
    for index in 0..2 {
        let (name, said) = (index.to_string(), &export["queues"][index]);
        let queue = json!({"export": "e", "queue": name});
        let turns = figures.one("blockplane_queue_turns_total", queue.clone());
        assert_eq!(turns, number(&said["turns"]));
        let notifications = figures.one("blockplane_queue_notifications_total", queue.clone());
        assert_eq!(notifications, number(&said["notifications"]));
        assert_eq!(figures.one("blockplane_queue_running", queue), 0.0);
        for (kind, prefix) in [
            ("read", "rd"),
            ("write", "wr"),
            ("flush", "flush"),
            ("unmap", "unmap"),
        ] {
            let stats = |member: &str| number(&said["stats"][format!("{prefix}_{member}")]);
            let operations = figures.one("blockplane_queue_operations_total", op(&name, kind));
            assert_eq!(operations, stats("operations"), "{kind}");
            let buckets = figures.all("blockplane_queue_latency_seconds_bucket", &op(&name, kind));
            if operations == 0.0 {
                assert!(buckets.is_empty(), "{kind}");
                continue;
            }
            assert!(buckets.is_sorted(), "{buckets:?}");
            assert_eq!(buckets.last(), Some(&operations));
            let seconds = figures.one("blockplane_queue_latency_seconds_sum", op(&name, kind));
            let difference = (seconds - stats("total_time_ns") / 1e9).abs();
            // Ticks became nanoseconds at two moments of a young process.
            assert!(difference <= seconds / 1000.0, "{kind}: {seconds}");
        }
    }
    let third = json!({"export": "e", "queue": "2"});
    assert!(
        figures.all("blockplane_queue_info", &third).is_empty(),
        "never started"
    );
    assert_eq!(
        figures.one("blockplane_export_queues", json!({"export": "e"})),
        3.0
    );
    assert_eq!(
        figures.one("blockplane_export_connected", json!({"export": "e"})),
        1.0
    );
    for name in ["waiting", "late_total"] {
        let name = format!("blockplane_export_requests_{name}");
        assert_eq!(figures.one(&name, json!({"export": "e"})), 0.0);
    }
    figures.one(
        "blockplane_queue_info",
        json!({"export": "e", "queue": "1", "iothread": "io1"}),
    );

    let iothreads = client.done("query-iothreads", json!({}));
    for (name, member) in [
        ("submitted", "requests-submitted"),
        ("submit_calls", "submit-calls"),
    ] {
        let name = format!("blockplane_iothread_{name}_total");
        let found = figures.one(&name, json!({"iothread": "io0"}));
        assert_eq!(found, number(&iothreads[0]["stats"][member]), "{name}");
    }
    drop(guest);
    program.stop();
    assert!(!folder.has("m"), "the socket goes with the daemon");
}

#[test]
fn metrics_follow_changes_and_removals() {
    if !has_parser() {
        return;
    }
    let folder = Folder::new();
    let (program, mut client) = start(&folder, line(&folder));
    drop(worked(&folder));
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    let set = json!({"path": "/objects/io0", "property": "poll-max-ns", "value": 50_000});
    client.done("qom-set", set);
    client.done(
        "block_resize",
        json!({"node-name": "d", "size": 512 * BLOCK}),
    );
    shown(&mut client);
    let figures = Figures::scrape(&folder.join("m"), OPENMETRICS);
    assert_eq!(
        figures.one("blockplane_node_size_bytes", json!({"node": "d"})),
        2_097_152.0
    );
    let poll_max = figures.one(
        "blockplane_iothread_poll_max_seconds",
        json!({"iothread": "io0"}),
    );
    assert_eq!(poll_max, 50e-6);
    assert_eq!(
        figures.one("blockplane_export_connected", json!({"export": "e"})),
        0.0
    );

    client.done("block-export-del", json!({"id": "e"}));
    client.done("object-del", json!({"id": "io1"}));
    client.done("blockdev-del", json!({"node-name": "d"}));
    shown(&mut client);
    let figures = Figures::scrape(&folder.join("m"), OPENMETRICS);
    for labels in [
        json!({"export": "e"}),
        json!({"iothread": "io1"}),
        json!({"node": "d"}),
    ] {
        let names = figures.names();
        let left = names
            .iter()
            .filter(|(name, _)| !figures.all(name, &labels).is_empty());
        assert_eq!(left.count(), 0, "{labels}");
    }
    figures.one(
        "blockplane_iothread_sleeps_total",
        json!({"iothread": "io0"}),
    );
    program.stop();
}

/// Every scrape of an idle daemon finds the same, in both formats: no iothread has to do anything for it.
#[test]
fn scrape_does_not_wake_iothreads() {
    if !has_parser() {
        return;
    }
    let folder = Folder::new();
    let (program, mut client) = start(&folder, line(&folder));
    let guest = worked(&folder);
    shown(&mut client);
    let socket = folder.join("m");
    let mut first = Figures::scrape(&socket, OPENMETRICS).still();
    for _ in 0..50 {
        get(&socket, "/metrics", OPENMETRICS);
    }
    // An iothread that has just been used may go around once more before it sleeps.
    eventually("the iothread sleeps", || {
        let again = Figures::scrape(&socket, PLAIN).still();
        let same = first == again;
        first = again;
        same
    });
    for _ in 0..50 {
        get(&socket, "/metrics", OPENMETRICS);
    }
    assert_eq!(Figures::scrape(&socket, OPENMETRICS).still(), first);
    drop(guest);
    program.stop();
}

#[test]
fn documentation_and_dashboard_name_existing_metrics() {
    if !has_parser() {
        return;
    }
    let folder = Folder::new();
    let scsi = "--export vhost-user-scsi,id=s,node-name=d,addr.type=unix,addr.path=s.sock";
    let (program, mut client) = start(&folder, &format!("{} {scsi}", line(&folder)));
    let guest = worked(&folder);
    let mut unit = Guest::connect_scsi(&folder.join("s.sock"), 1);
    // The first command reports that the unit was switched on.
    for status in [2, 0] {
        assert_eq!(
            unit.command(2, (0, 0), &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0]),
            status
        );
    }
    shown(&mut client);
    let found = Figures::scrape(&folder.join("m"), OPENMETRICS).names();
    drop(guest);
    program.stop();

    let mut documented = documented_samples();
    // Tests of images and of throttled nodes compare those.
    let of_others = ["image_", "ceph_", "throttle_"].map(|part| format!("blockplane_{part}"));
    documented.retain(|(name, _)| !of_others.iter().any(|prefix| name.starts_with(prefix)));
    assert_eq!(documented, found);

    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let text = fs::read_to_string(format!("{root}packaging/grafana/blockplane.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 8);
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let named: BTreeSet<&str> = text
        .match_indices("blockplane_")
        .map(|(at, _)| text[at..].split(|c| !is_name(c)).next().unwrap())
        .collect();
    assert!(named.len() > 10);
    for name in named {
        assert!(
            found.iter().any(|(found, _)| found == name),
            "{name} is not there"
        );
    }
}

#[test]
fn slow_or_invalid_metrics_clients_do_not_disturb_others() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, line(&folder));
    let socket = folder.join("m");
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    let mut held = Vec::new();
    for index in 0..100 {
        let mut stream = connect(&socket);
        // Who was dropped to make room hears it now.
        let _ = match index % 4 {
            0 => Ok(()),
            1 => stream.write_all(b"GET /met"),
            2 => stream.write_all(&b"GET /metrics HTTP/1.1\r\n\r\n".repeat(100)),
            _ => stream.write_all(&[0xff; 100]),
        };
        held.push(stream);
        guest.request(0, IN, index, 0);
        let answer = get(&socket, "/metrics", OPENMETRICS);
        assert!(
            answer.head.starts_with("HTTP/1.1 200 OK"),
            "{}",
            answer.head
        );
    }
    let index = get(&socket, "/", "*/*");
    assert!(index.body.contains("/metrics"), "{}", index.body);
    let fds = fs::read_dir(format!("/proc/{}/fd", program.pid()))
        .unwrap()
        .count();
    assert!(fds < 100, "{fds} descriptors");
    let missing = get(&socket, "/metric", "*/*");
    assert!(
        missing.head.starts_with("HTTP/1.1 404 "),
        "{}",
        missing.head
    );
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
    let stream = connect(&socket);
    assert!(ask(stream, &long).head.starts_with("HTTP/1.1 431 "));
    let stream = connect(&socket);
    let posted = "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
    assert!(ask(stream, posted).head.starts_with("HTTP/1.1 405 "));
    drop(guest);
    program.stop();
}

/// How often the thread that serves figures has blocked so far; `None`: there is no such thread.
fn sleeps(program: &Process) -> Option<u64> {
    let threads = read_of_each_thread(program.pid(), "status");
    let is_metrics = |status: &str| status_field(status, "Name") == "metrics";
    let metrics = threads.iter().find(|thread| is_metrics(&thread.text))?;
    let switches = status_field(&metrics.text, "voluntary_ctxt_switches");
    Some(switches.parse().unwrap())
}

#[test]
fn metrics_thread_sleeps_without_clients() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, line(&folder));
    get(&folder.join("m"), "/metrics", OPENMETRICS);
    // Until it has noticed that its client is gone.
    let (mut before, mut same) = (None, 0);
    let deadline = Deadline::default();
    while same < 10 {
        deadline.check("the thread for metrics sleeps");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = sleeps(&program);
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    drop(worked(&folder));
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    client.done(
        "qom-set",
        json!({"path": "/objects/io0", "property": "poll-max-ns", "value": 5}),
    );
    assert_eq!(sleeps(&program), before);
    program.stop();
    let (program, _client) = start(&folder, "");
    assert_eq!(sleeps(&program), None, "not asked for");
    program.stop();
}

#[test]
fn metrics_are_served_over_tcp_with_persistent_connections() {
    let folder = Folder::new();
    let line = "serve null-co: --socket s --metrics tcp:127.0.0.1:0";
    let mut program = folder.start(line, "s");
    let log = program.stderr();
    let addr = log
        .split_once("tcp:")
        .unwrap()
        .1
        .split_whitespace()
        .next()
        .unwrap();
    let connect = || {
        let addr = addr.parse().unwrap();
        let stream = TcpStream::connect_timeout(&addr, STUCK_AFTER).unwrap();
        stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        stream.set_write_timeout(Some(STUCK_AFTER)).unwrap();
        stream
    };
    let mut stream = connect();
    for _ in 0..3 {
        stream
            .write_all(b"HEAD /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
            .unwrap();
        let (mut answer, deadline) = (Vec::new(), Deadline::default());
        while !answer.ends_with(b"\r\n\r\n") {
            deadline.check("the end of an answer's head");
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            answer.extend(byte);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    program.wait_until("it shows its export", || {
        let request = "GET /metrics HTTP/1.0\r\n\r\n";
        let answer = ask(connect(), request);
        answer
            .body
            .contains("blockplane_export_info{export=\"disk\"")
    });
    let second = format!("serve null-co: --socket t --metrics tcp:{addr}");
    let refused = Process::spawn(folder.command(words(&second))).ended();
    assert_eq!(refused.code, Some(1));
    for word in ["--metrics", addr, "another port"] {
        assert!(refused.stderr.contains(word), "{refused:?}");
    }
    program.stop();
}
