//! State of images for operators: monitors, metrics, `blockplane info` and `top`, and the log.

use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::prometheus_client::{Figures, OPENMETRICS, documented_samples, has_parser};

use crate::client::Client;
use crate::disk::{SOCKET, remove_export};
use crate::process::Folder;
use crate::request_driver::{FLUSH, IN, OUT, RequestDriver};
use crate::{new_disk, serve, start};

/// The member `rbd` of the node `d`.
pub fn state(client: &mut Client) -> Value {
    client.execute("query-named-block-nodes")[0]["rbd"].take()
}

/// What a command for operators prints.
pub fn output_of(folder: &Folder, command: &str) -> String {
    let ended = folder.run(command);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

#[test]
fn queries_show_the_image_its_cluster_and_its_lock() {
    let Some(disk) = new_disk("seen") else {
        return;
    };
    let cluster = disk.cluster;
    cluster.rbd(["namespace", "create", "rbd/tenant"]);
    cluster.rbd(["create", "--size", "1M", "rbd/tenant/other"]);
    cluster.rbd(["snap", "create", "--no-progress", "rbd/tenant/other@monday"]);
    let other = format!(
        "--blockdev rbd,node-name=s,pool=rbd,namespace=tenant,image=other,snapshot=monday,conf={}",
        cluster.conf().display()
    );
    let folder = Folder::new();
    let (program, mut client) = start(&folder, &format!("{other} {}", disk.line()));
    let mut expected = json!({
        "pool": "rbd", "image": "seen", "user": "admin",
        "fsid": cluster.ceph(["fsid"]).trim(),
        "monitors": format!("[v2:{}]", cluster.monitor_address()),
        "connection": 1, "state": "connected", "lock": "released", "in-flight": 0,
    });
    assert_eq!(state(&mut client), expected);
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    expected["lock"] = "held".into();
    let nodes = client.execute("query-named-block-nodes");
    assert_eq!(nodes[0]["rbd"], expected);
    assert_eq!(nodes[1]["rbd"]["namespace"], "tenant");
    assert_eq!(nodes[1]["rbd"]["snapshot"], "monday");
    // As QEMU has it.
    let image = &nodes[0]["image"];
    assert_eq!(image["cluster-size"], 64 << 10);
    assert_eq!(image["format-specific"], json!({"type": "rbd", "data": {}}));
    let stats = client.execute("query-blockstats");
    assert_eq!(stats[0]["rbd"], expected);

    let info_block = json!({"command-line": "info block"});
    let block = client.done("human-monitor-command", info_block);
    let block = block.as_str().unwrap();
    for part in [
        expected["fsid"].as_str().unwrap(),
        "connection 1: connected",
    ] {
        assert!(block.contains(part), "{block}");
    }
    let info = output_of(&folder, "info qmp nodes");
    let rows: Vec<_> = info
        .lines()
        .map(|row| row.split_whitespace().collect::<Vec<_>>())
        .collect();
    let of_snapshot = ["rbd:rbd/tenant/other@monday", "connected"];
    assert_eq!(rows[1][7..], of_snapshot, "{info}");
    let of_disk = ["rbd:rbd/seen", "connected,", "lock", "held"];
    assert_eq!(rows[2][7..], of_disk, "{info}");
    let top = output_of(&folder, "top qmp --once --queues --interval 100ms");
    let expected = "\n  rbd:rbd/seen: connected, lock held\n";
    assert!(top.contains(expected), "{top}");
    program.stop();
}

#[test]
fn metrics_name_images_and_count_their_requests() {
    if !has_parser() {
        return;
    }
    let metrics = " --metrics unix:m";
    let Some((disk, folder, program, mut client)) = serve("measured", "", metrics) else {
        return;
    };
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    for block in 0..5 {
        guest.request(0, OUT, block, 1);
        guest.request(0, IN, block, 0);
    }
    guest.request(0, FLUSH, 0, 0);
    // The main thread has shown what there is before it takes this command.
    client.execute("query-iothreads");
    let figures = Figures::scrape(&folder.join("m"), OPENMETRICS);
    let fsid = disk.cluster.ceph(["fsid"]);
    let image = json!({"node": "d", "cluster": fsid.trim(), "pool": "rbd", "namespace": "",
        "image": "measured", "snapshot": "", "connection": "1"});
    assert_eq!(figures.one("blockplane_image_info", image), 1.0);
    for (op, count) in [("read", 5.0), ("write", 5.0), ("flush", 1.0)] {
        let of = json!({"node": "d", "op": op});
        let found = figures.one("blockplane_image_latency_seconds_count", of.clone());
        assert_eq!(found, count, "{op}");
        // The request's own latency has this part, and more.
        let sum = figures.one("blockplane_image_latency_seconds_sum", of.clone());
        let of_queue = json!({"export": "e", "queue": "0", "op": op});
        let whole = figures.one("blockplane_queue_latency_seconds_sum", of_queue);
        assert!(0.0 < sum && sum < whole, "{op}: {sum} of {whole}");
        assert_eq!(figures.one("blockplane_image_errors_total", of), 0.0);
    }
    let in_flight = figures.one("blockplane_image_inflight", json!({"node": "d"}));
    assert_eq!(in_flight, 0.0);
    let connection = |state: &str| json!({"connection": "1", "state": state});
    for (state, value) in [
        ("connected", 1.0),
        ("blocklisted", 0.0),
        ("not-answering", 0.0),
    ] {
        let found = figures.one("blockplane_ceph_connection_state", connection(state));
        assert_eq!(found, value, "{state}");
    }
    let of = json!({"connection": "1"});
    for (name, value) in [("images", 1.0), ("inflight", 0.0)] {
        let name = format!("blockplane_ceph_connection_{name}");
        assert_eq!(figures.one(&name, of.clone()), value, "{name}");
    }
    let of_ceph = |(name, _): &(String, Vec<String>)| {
        name.starts_with("blockplane_image_") || name.starts_with("blockplane_ceph_")
    };
    let documented: Vec<_> = documented_samples().into_iter().filter(of_ceph).collect();
    let found: Vec<_> = figures.names().into_iter().filter(of_ceph).collect();
    assert_eq!(documented, found);

    drop(guest);
    remove_export(&mut client, "d");
    // The image is closed by another thread.
    eventually("no figures of images and connections", || {
        let names = Figures::scrape(&folder.join("m"), OPENMETRICS).names();
        !names.iter().any(of_ceph)
    });
    program.stop();
}

#[test]
fn admin_socket_of_the_configuration_is_no_error_in_the_sandbox() {
    let Some(disk) = new_disk("quiet") else {
        return;
    };
    let folder = Folder::new();
    let socket = folder.join("asok");
    let setting = format!("admin_socket = {}", socket.display());
    let node = disk.line_with_setting("admin-socket.conf", &setting);
    let (program, mut client) = start(&folder, &node);
    assert_eq!(state(&mut client)["state"], "connected");
    let log = program.stderr();
    assert!(!log.contains("asok"), "{log}");
    assert!(!socket.exists());
    program.stop();
    let (program, _client) = start(&folder, &format!("--sandbox off {node}"));
    assert!(socket.exists(), "it works without a sandbox");
    program.stop();
}
