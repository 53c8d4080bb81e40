//! Live upgrades, reopened and removed nodes, and devices that stop while the server is silent.

use serde_json::json;
use test_support::nbd_server::NbdServer;
use test_support::sockets;
use test_support::upgraded_daemon::Daemon;
use test_support::verifying::load::VerifyingLoad;

use crate::process::Folder;
use crate::request_driver::{BLOCK, IN, NO_STATUS, OUT, RequestDriver};
use crate::{MIB, SOCKET, line, one_connection_server, start};

#[test]
fn upgrades_under_load_lose_nothing_at_a_server_with_one_connection() {
    let folder = Folder::new();
    let Some(server) = one_connection_server(&folder) else {
        return;
    };
    let mut daemon = Daemon::start_in(Folder::new(), &line(&server, "", ",num-queues=2"), &[]);
    let stream = sockets::connect(&daemon.folder.join(SOCKET));
    let mut load = VerifyingLoad::over(sockets::limited(stream), 2, MIB);
    for _ in 0..2 {
        load.run(200);
        load.run_while(|| _ = daemon.upgrade());
    }
    load.run(200);
    load.read_all();
    load.assert_content(&std::fs::read(folder.join("image")).unwrap());
}

#[test]
fn a_reopened_node_keeps_its_connection() {
    let folder = Folder::new();
    let Some(server) = one_connection_server(&folder) else {
        return;
    };
    let (program, mut client) = start(&folder, &line(&server, "", ""));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 3, 7);
    let nodes = client.execute("query-named-block-nodes");
    let file = format!("nbd+unix://?socket={}", server.socket().display());
    assert_eq!(nodes[0]["file"], file);
    assert_eq!(nodes[0]["image"]["virtual-size"], MIB);
    let node = json!({
        "driver": "nbd", "node-name": "d", "discard": "unmap",
        "server": {"type": "unix", "path": server.socket()},
    });
    client.done("blockdev-reopen", json!({"options": [node]}));
    guest.request(0, IN, 3, 0);
    assert_eq!(guest.data(0, 0), [7; BLOCK]);
    let moved = json!({
        "driver": "nbd", "node-name": "d", "server": {"type": "unix", "path": "/elsewhere"},
    });
    let error = client.fails("blockdev-reopen", json!({"options": [moved]}));
    let expected = "Cannot change the option 'server'";
    assert!(error.contains(expected), "{error}");
    program.stop();
}

#[test]
fn a_device_stops_within_a_bound_while_the_server_is_silent() {
    let folder = Folder::new();
    let Some(server) = NbdServer::nbdkit(&folder, "memory 1M") else {
        return;
    };
    let (program, mut client) = start(&folder, &line(&server, ",reconnect-delay=3600", ""));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 3, 7);
    server.pause();
    guest.ask(0, 0, IN, 3, 0);
    guest.submit(0);
    // It would wait for ever without a bound.
    guest.stop(0);
    // A queue that stops before it has read the request leaves it there.
    while guest.status(0, 0) == NO_STATUS {
        guest.start(0, 1);
        guest.stop(0);
    }
    assert_eq!(guest.status(0, 0), 1, "the request has failed");
    server.resume();
    guest.start(0, 1);
    drop(guest);
    client.execute("block-export-del id=e mode=hard");
    client.event("BLOCK_EXPORT_DELETED", "e");
    client.execute("blockdev-del node-name=d");
    program.stop();
}
