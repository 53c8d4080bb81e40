//! Metrics agree with monitors and with what guests did, and cost guests nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};
use test_support::deadline::{Deadline, eventually};
use test_support::prometheus_client::{
    Figures, OPENMETRICS, PLAIN, ask, documented_samples, get, has_parser,
};
use test_support::sockets::{connect, read_to_end};
use test_support::threads::{read_of_each_thread, status_field};

use crate::client::Client;
use crate::process::{Folder, Process, STUCK_AFTER};
use crate::request_driver::{FLUSH, IN, OUT, RequestDriver};
use crate::{start, start_with_disk};

/// One export of three queues on two iothreads, over a disk of 256 blocks.
const LINE: &str = "--metrics unix:m --object iothread,id=io0 --object iothread,id=io1 \
    --blockdev file,node-name=d,filename=disk \
    --export vhost-user-blk,id=e,node-name=d,writable=on,num-queues=3,addr.type=unix,addr.path=e.sock,\
iothread.0=io0,iothread.1=io1";

/// A guest that has done some of everything, and whose queues stand still.
fn worked(folder: &Folder) -> RequestDriver {
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    for block in 0..20 {
        guest.request(0, OUT, block, 1);
        guest.request(1, IN, block, 0);
    }
    guest.request(1, FLUSH, 0, 0);
    // Beyond the end.
    guest.status_of(0, IN, 256, 0);
    guest.stop(0);
    guest.stop(1);
    guest
}

/// All metrics. The main thread has shown what there is before it takes the command.
fn scrape(folder: &Folder, client: &mut Client) -> Figures {
    client.execute("query-iothreads");
    Figures::scrape(&folder.join("m"), OPENMETRICS)
}

#[test]
fn metrics_match_the_monitor_wake_no_iothread_and_follow_changes() {
    if !has_parser() {
        return;
    }
    let (folder, program, mut client) = start_with_disk(LINE);
    let guest = worked(&folder);
    let figures = scrape(&folder, &mut client);
    let export = client.block_stats("e");
    let number = |value: &Value| value.as_f64().unwrap();
    let of = |sample: &str| figures.sample(sample);
    for index in 0..2 {
        let said = &export["queues"][index];
        for member in ["turns", "notifications"] {
            let total = of(&format!("queue_{member}_total{{queue={index}}}"));
            assert_eq!(total, number(&said[member]), "{member}");
        }
        assert_eq!(of(&format!("queue_running{{queue={index}}}")), 0.0);
        for (kind, prefix) in [
            ("read", "rd"),
            ("write", "wr"),
            ("flush", "flush"),
            ("unmap", "unmap"),
        ] {
            let labels = json!({"queue": index.to_string(), "op": kind});
            let stats = |member: &str| number(&said["stats"][format!("{prefix}_{member}")]);
            let operations = figures.one("blockplane_queue_operations_total", labels.clone());
            assert_eq!(operations, stats("operations"), "{kind}");
            let buckets = figures.all("blockplane_queue_latency_seconds_bucket", &labels);
            if operations == 0.0 {
                assert!(buckets.is_empty(), "{kind}");
                continue;
            }
            assert!(buckets.is_sorted(), "{buckets:?}");
            assert_eq!(buckets.last(), Some(&operations));
            let seconds = figures.one("blockplane_queue_latency_seconds_sum", labels);
            let difference = (seconds - stats("total_time_ns") / 1e9).abs();
            // Ticks became nanoseconds at two moments of a young process.
            assert!(difference <= seconds / 1000.0, "{kind}: {seconds}");
        }
    }
    let iothreads = client.execute("query-iothreads");
    let io0 = |member: &str| number(&iothreads[0]["stats"][member]);
    for (sample, expected) in [
        ("queue_operations_total{queue=0,op=write}", 20.0),
        ("queue_transferred_bytes_total{queue=1,op=read}", 81_920.0),
        ("queue_errors_total{queue=0,op=read,kind=invalid}", 1.0),
        ("queue_info{queue=1,iothread=io1}", 1.0),
        ("export_queues{export=e}", 3.0),
        ("export_connected{export=e}", 1.0),
        ("export_requests_waiting{export=e}", 0.0),
        ("export_requests_late_total{export=e}", 0.0),
        (
            "iothread_submitted_total{iothread=io0}",
            io0("requests-submitted"),
        ),
        (
            "iothread_submit_calls_total{iothread=io0}",
            io0("submit-calls"),
        ),
    ] {
        assert_eq!(of(sample), expected, "{sample}");
    }
    let third = figures.all("blockplane_queue_info", &json!({"queue": "2"}));
    assert!(third.is_empty(), "never started");

    // Every scrape of an idle daemon finds the same, in both formats: no iothread has to do anything for it.
    let mut first = scrape(&folder, &mut client).still();
    let socket = folder.join("m");
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
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    client.execute(
        "qom-set path=/objects/io0 property=poll-max-ns value=50000
         block_resize node-name=d size=2097152",
    );
    let figures = scrape(&folder, &mut client);
    let of = |sample: &str| figures.sample(sample);
    assert_eq!(of("node_size_bytes{node=d}"), 2_097_152.0);
    assert_eq!(of("iothread_poll_max_seconds{iothread=io0}"), 50e-6);
    assert_eq!(of("export_connected{export=e}"), 0.0);

    client.execute(
        "block-export-del id=e
         object-del id=io1
         blockdev-del node-name=d",
    );
    let figures = scrape(&folder, &mut client);
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
    figures.sample("iothread_sleeps_total{iothread=io0}");
    program.stop();
    assert!(!folder.has("m"), "the socket goes with the daemon");
}

#[test]
fn documentation_and_dashboard_name_existing_metrics() {
    if !has_parser() {
        return;
    }
    let scsi = "--export vhost-user-scsi,id=s,node-name=d,addr.type=unix,addr.path=s.sock";
    let (folder, program, mut client) = start_with_disk(&format!("{LINE} {scsi}"));
    let _guest = worked(&folder);
    let mut unit = RequestDriver::connect_scsi(&folder.join("s.sock"), 1);
    // The first command reports that the unit was switched on.
    for status in [2, 0] {
        let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        assert_eq!(unit.command(2, (0, 0), &read), status);
    }
    let found = scrape(&folder, &mut client).names();
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
        let is_there = found.iter().any(|(found, _)| found == name);
        assert!(is_there, "{name} is not there");
    }
}

#[test]
fn slow_or_invalid_metrics_clients_do_not_disturb_others() {
    let (folder, program, _client) = start_with_disk(LINE);
    let socket = folder.join("m");
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
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
        let head = answer.head;
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    }
    let descriptors = program.open_files().len();
    assert!(descriptors < 100, "{descriptors} descriptors");
    let index = get(&socket, "/", "*/*");
    assert!(index.body.contains("/metrics"), "{}", index.body);
    let missing = get(&socket, "/metric", "*/*").head;
    assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
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
    let (folder, program, mut client) = start_with_disk(LINE);
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
    client.execute("qom-set path=/objects/io0 property=poll-max-ns value=5");
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
    let (_, addr) = log.split_once("tcp:").unwrap();
    let addr = addr.split_whitespace().next().unwrap();
    let connect = || {
        let addr = addr.parse().unwrap();
        let stream = TcpStream::connect_timeout(&addr, STUCK_AFTER).unwrap();
        stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        stream.set_write_timeout(Some(STUCK_AFTER)).unwrap();
        stream
    };
    let mut stream = connect();
    let requests = b"HEAD /metrics HTTP/1.1\r\n\r\n".repeat(3);
    stream.write_all(&requests).unwrap();
    stream.write_all(b"HEAD / HTTP/1.0\r\n\r\n").unwrap();
    let answers = read_to_end("the end of four answers", stream);
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 4);
    program.wait_until("it shows its export", || {
        let answer = ask(connect(), "GET /metrics HTTP/1.0\r\n\r\n");
        let info = "blockplane_export_info{export=\"disk\"";
        answer.body.contains(info)
    });
    let second = format!("serve null-co: --socket t --metrics tcp:{addr}");
    let refused = folder.run(&second);
    assert_eq!(refused.code, Some(1));
    for word in ["--metrics", addr, "another port"] {
        assert!(refused.stderr.contains(word), "{refused:?}");
    }
    program.stop();
}
