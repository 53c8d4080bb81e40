//! A monitor that accepts connections and says nothing: signals are obeyed, and monitors serve others.

use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::json;
use test_support::deadline::eventually;

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::serve;

/// A listener that is such a monitor, and its port.
fn silent_monitor() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port.to_string())
}

fn await_client(monitor: &TcpListener) {
    eventually("a client connects", || monitor.accept().is_ok());
}

#[test]
fn sigterm_ends_a_process_that_connects() {
    if !test_support::report::installed("rbd") {
        return;
    }
    let (monitor, port) = silent_monitor();
    let folder = Folder::new();
    let line = format!(
        "--blockdev rbd,node-name=n,pool=rbd,image=i,user=vm,conf=/dev/null,auth-client-required.0=none,\
server.0.host=127.0.0.1,server.0.port={port}"
    );
    let program = Process::spawn(folder.command(words(&line)));
    await_client(&monitor);
    program.signal(Signal::TERM);
    let ended = program.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // It does not wait until the time for connecting is over.
    assert!(!ended.stderr.contains("did not accept"), "{ended:?}");
}

#[test]
fn adding_a_node_of_a_silent_cluster_blocks_its_own_client_only() {
    let Some((disk, folder, program, mut waits)) = serve("beside", "", "") else {
        return;
    };
    let (monitor, port) = silent_monitor();
    let mut client = Client::connect(&folder.join("qmp"));
    let node = json!({"driver": "rbd", "node-name": "n", "pool": "rbd", "image": "i", "conf": "/dev/null",
        "auth-client-required": ["none"], "server": [{"host": "127.0.0.1", "port": port}]});
    waits.send("blockdev-add", &node);
    await_client(&monitor);
    client.execute("query-block");
    client.done("blockdev-add", disk.node_json("again"));
    client.execute("blockdev-del node-name=again");
    assert!(!waits.is_answered());
    // The end of the daemon does not wait for it.
    client.execute("quit");
    let ended = program.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("did not accept"), "{ended:?}");
}
