//! Tests of blockdev-add and blockdev-del.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::start;

fn names(client: &mut Client) -> Vec<String> {
    let nodes = client.done("query-named-block-nodes", json!({}));
    let name = |node: &Value| node["node-name"].as_str().unwrap().to_owned();
    nodes.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn file_node_is_added_queried_and_removed() {
    let folder = Folder::new();
    folder.image("disk", 1 << 20);
    std::fs::write(folder.join("disk"), vec![1; 1 << 20]).unwrap();
    let (program, mut client) = start(&folder, "");
    let add = json!({"driver": "file", "node-name": "d", "filename": "disk", "read-only": true,
        "cache": {"direct": false}});
    client.done("blockdev-add", add);
    let nodes = client.done("query-named-block-nodes", json!({"flat": true}));
    let node = &nodes[0];
    assert_eq!(node["drv"], "file");
    assert_eq!(node["ro"], true);
    assert_eq!(node["file"], "disk");
    assert_eq!(node["image"]["virtual-size"], 1 << 20);
    assert_eq!(node["image"]["actual-size"], 1 << 20);
    assert_eq!(node["cache"]["direct"], false);
    let open = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap();
        fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
            .any(|path| path == folder.join("disk").canonicalize().unwrap())
    };
    assert!(open());
    client.done("blockdev-del", json!({"node-name": "d"}));
    assert!(!open());
    program.stop();
}

#[test]
fn nodes_in_use_stay_and_inline_children_are_removed_along() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "--blockdev null-co,node-name=n");
    for (name, file) in [
        ("r1", json!("n")),
        ("r2", json!({"driver": "null-co", "node-name": "inner"})),
        ("r3", json!({"driver": "null-co"})),
        (
            "r4",
            json!({"driver": "raw", "file": {"driver": "null-co"}}),
        ),
    ] {
        client.done(
            "blockdev-add",
            json!({"driver": "raw", "node-name": name, "file": file}),
        );
    }
    for (name, reason) in [
        ("n", "Block device n is in use by node 'r1'"),
        (
            "inner",
            "Node inner is not owned by the monitor: it belongs to node 'r2'",
        ),
        ("nope", "Failed to find node with node-name='nope'"),
    ] {
        assert_eq!(
            client.fails("blockdev-del", json!({"node-name": name})),
            reason
        );
    }
    for name in ["r1", "r2", "r3", "r4", "n"] {
        client.done("blockdev-del", json!({"node-name": name}));
    }
    assert_eq!(names(&mut client), [""; 0]);
    program.stop();
}

#[test]
fn failed_blockdev_add_leaves_nothing() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "--blockdev null-co,node-name=n");
    let before = std::fs::read_dir(format!("/proc/{}/fd", program.pid()))
        .unwrap()
        .count();
    for (options, reason) in [
        (
            json!({"driver": "null-co"}),
            "'node-name' must be specified",
        ),
        (
            json!({"driver": "null-co", "node-name": "n"}),
            "Duplicate nodes",
        ),
        (
            json!({"driver": "qcow2", "node-name": "q"}),
            "does not accept value 'qcow2'",
        ),
        (
            json!({"driver": "file", "node-name": "f"}),
            "Parameter 'filename' is missing",
        ),
        (
            json!({"driver": "null-co", "node-name": "m", "filename": "x"}),
            "'filename' is unexpected",
        ),
        (
            json!({"driver": "null-co", "node-name": "m", "cache": {"x": true}}),
            "'cache.x' is unexpected",
        ),
        (
            json!({"driver": "null-co", "node-name": "m", "size": "1G"}),
            "expected: integer",
        ),
        (
            json!({"driver": "file", "node-name": "f", "filename": "nope"}),
            "nope",
        ),
        (
            json!({"driver": "raw", "node-name": "r", "file": "nope"}),
            "node-name='nope'",
        ),
        // The inner one could be opened.
        (
            json!({"driver": "raw", "node-name": "r", "offset": 1,
                "file": {"driver": "null-co", "node-name": "inner"}}),
            "multiple",
        ),
    ] {
        let text = client.fails("blockdev-add", options);
        assert!(text.contains(reason), "{text}");
    }
    assert_eq!(names(&mut client), ["n"]);
    let after = std::fs::read_dir(format!("/proc/{}/fd", program.pid()))
        .unwrap()
        .count();
    assert_eq!(after, before);
    program.stop();
}

/// The processor time of all threads of a process: what it does, however busy the machine is.
fn cpu_time(program: &Process) -> Duration {
    let pid = program.pid().as_raw_nonzero().get().cast_unsigned();
    let threads = bench::procfs::threads(pid).unwrap();
    Duration::from_nanos(bench::procfs::total(&threads).cpu_ns)
}

#[test]
fn query_of_a_chain_of_nodes_takes_about_as_long_as_one_of_separate_nodes() {
    const NODES: u32 = 2000;
    let query_time = |below: &dyn Fn(u32) -> u32| {
        let folder = Folder::new();
        let raw = |node| format!("--blockdev raw,node-name=n{node},file=n{} ", below(node));
        let chain: String = (1..NODES).map(raw).collect();
        let (program, mut client) =
            start(&folder, &format!("--blockdev null-co,node-name=n0 {chain}"));
        let before = cpu_time(&program);
        let nodes = client.done("query-named-block-nodes", json!({}));
        let spent = cpu_time(&program) - before;
        let nodes = nodes.as_array().unwrap();
        assert_eq!(nodes.len(), NODES as usize);
        assert!(nodes.iter().all(|node| node["file"] == "null-co://"));
        program.stop();
        spent
    };
    let separate = query_time(&|_| 0);
    let chain = query_time(&|node| node - 1);
    assert!(
        chain < 5 * separate + Duration::from_millis(100),
        "{separate:?}, {chain:?}"
    );
}
