//! Tests of blockdev-add and blockdev-del.

use std::time::Duration;

use serde_json::Value;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::{MIB, start, start_with_disk};

fn names(client: &mut Client) -> Vec<String> {
    let nodes = client.execute("query-named-block-nodes");
    let name = |node: &Value| node["node-name"].as_str().unwrap().to_owned();
    nodes.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn file_node_is_added_queried_and_removed() {
    let (folder, program, mut client) = start_with_disk("");
    std::fs::write(folder.join("disk"), vec![1; 1 << 20]).unwrap();
    client.execute(
        "blockdev-add driver=file node-name=d filename=disk read-only=true cache.direct=false",
    );
    let nodes = client.execute("query-named-block-nodes flat=true");
    let node = &nodes[0];
    assert_eq!(node["drv"], "file");
    assert_eq!(node["ro"], true);
    assert_eq!(node["file"], "disk");
    assert_eq!(node["image"]["virtual-size"], MIB);
    assert_eq!(node["image"]["actual-size"], MIB);
    assert_eq!(node["cache"]["direct"], false);
    let disk = folder.join("disk").canonicalize().unwrap();
    assert!(program.open_files().contains(&disk));
    client.execute("blockdev-del node-name=d");
    assert!(!program.open_files().contains(&disk));
    program.stop();
}

#[test]
fn nodes_in_use_stay_and_failed_ones_leave_nothing() {
    let (_folder, program, mut client) = start_with_disk("--blockdev null-co,node-name=n");
    client.execute(
        "blockdev-add driver=raw node-name=r1 file=n
         blockdev-add driver=raw node-name=r2 file.driver=null-co file.node-name=inner
         blockdev-add driver=raw node-name=r3 file.driver=null-co
         blockdev-add driver=raw node-name=r4 file.driver=raw file.file.driver=null-co
         block-export-add type=vhost-user-blk id=e node-name=inner addr.type=unix addr.path=e.sock",
    );
    client.assert_errors(
        "blockdev-del node-name=n => Block device n is in use by node 'r1'
         blockdev-del node-name=inner => Node inner is not owned by the monitor: it belongs to node 'r2'
         blockdev-del node-name=r2 => Node inner is in use by export 'e'
         blockdev-del node-name=nope => Failed to find node with node-name='nope'",
    );
    client.execute("block-export-del id=e");
    for name in ["r1", "r2", "r3", "r4", "n"] {
        client.execute(&format!("blockdev-del node-name={name}"));
    }
    assert_eq!(names(&mut client), [""; 0]);
    client.execute("blockdev-add driver=null-co node-name=n");
    let before = program.open_files().len();
    // (In the last case the inner node could be opened.)
    client.assert_errors(
        "blockdev-add driver=null-co node-name=n => Duplicate nodes
         blockdev-add driver=qcow2 node-name=q => does not accept value 'qcow2'
         blockdev-add driver=file node-name=f filename=nope => nope
         blockdev-add driver=raw node-name=r file=nope => node-name='nope'
         blockdev-add driver=raw node-name=r offset=1 file.driver=null-co file.node-name=inner => multiple",
    );
    assert_eq!(names(&mut client), ["n"]);
    assert_eq!(program.open_files().len(), before);
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
        let nodes = client.execute("query-named-block-nodes");
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
