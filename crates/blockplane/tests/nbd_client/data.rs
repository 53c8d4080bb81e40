//! The data of served exports, compared with what the server has.

use std::net::TcpStream;

use test_support::deadline::eventually;
use test_support::nbd_server::NbdServer;
use test_support::report;
use test_support::reserved_port::ReservedPort;
use test_support::verifying::load::VerifyingLoad;

use crate::process::{Folder, Process};
use crate::request_driver::{BLOCK, DISCARD, FLUSH, IN, OUT, RequestDriver, WRITE_ZEROES};
use crate::{MIB, SOCKET, failed_requests, file_server, line, start, words};

#[test]
fn a_file_behind_nbdkit_holds_what_the_front_end_has_written() {
    let folder = Folder::new();
    let Some(server) = file_server(&folder) else {
        return;
    };
    let uri = format!("nbd+unix:///?socket={}", server.socket().display());
    let mut program = folder.start(&format!("serve {uri} --socket {SOCKET}"), SOCKET);
    let mut load = VerifyingLoad::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    load.run(3000);
    load.drain();
    program.stop();
    load.assert_content(&std::fs::read(folder.join("image")).unwrap());
}

#[test]
fn discards_and_zeroes_reach_the_server() {
    let folder = Folder::new();
    let Some(server) = NbdServer::nbdkit(&folder, "memory 1M") else {
        return;
    };
    let (program, _) = start(&folder, &line(&server, ",discard=unmap", ""));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    for block in 0..4 {
        guest.request(0, OUT, block, 7);
    }
    assert_eq!(guest.request_range(DISCARD, 0, 1, false), 0);
    assert_eq!(guest.request_range(WRITE_ZEROES, 1, 1, true), 0);
    assert_eq!(guest.request_range(WRITE_ZEROES, 2, 1, false), 0);
    guest.request(0, FLUSH, 0, 0);
    for (block, byte) in [(0, 0), (1, 0), (2, 0), (3, 7)] {
        guest.request(0, IN, block, 0);
        assert_eq!(guest.data(0, 0), [byte; BLOCK], "{block}");
    }
    program.stop();
}

#[test]
fn a_server_over_tcp_is_reached_from_the_sandbox_also_again() {
    let folder = Folder::new();
    let Some(_unix) = NbdServer::nbdkit(&folder, "memory 1M") else {
        return;
    };
    let reserved = ReservedPort::reserve();
    let (address, port) = (reserved.address(), reserved.address().port());
    let start_server = || {
        let line = format!("--foreground --port {port} --ipaddr 127.0.0.1 memory 1M");
        let mut command = std::process::Command::new("nbdkit");
        command.args(words(&line));
        let mut process = Process::spawn(command);
        process.wait_until("it listens", || TcpStream::connect(address).is_ok());
        process
    };
    let server = start_server();
    let options = format!(
        "--blockdev nbd,node-name=d,server.type=inet,server.host=localhost,server.port={port},reconnect-delay=60 --export \
         vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={SOCKET},writable=on"
    );
    let (program, mut client) = start(&folder, &options);
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 3, 7);
    drop(server);
    let _server = start_server();
    guest.request(0, OUT, 4, 8);
    guest.request(0, IN, 4, 0);
    assert_eq!(guest.data(0, 0), [8; BLOCK]);
    assert_eq!(failed_requests(&mut client), 0);
    program.stop();
}

/// Neighbours of one batch are one request to the server. To the guest, and to who counts those that wait, they are what they were.
#[test]
fn merged_requests_that_fail_wait_as_many_and_return_to_the_ring() {
    let folder = Folder::new();
    let full = folder.join("full");
    std::fs::write(&full, "").unwrap();
    let plugin = format!(
        "--filter=error memory 1M error-pwrite=ENOSPC error-pwrite-rate=100% error-pwrite-file={}",
        full.display()
    );
    let Some(server) = NbdServer::nbdkit(&folder, &plugin) else {
        return;
    };
    let (program, mut client) = start(&folder, &line(&server, "", ",werror=stop"));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    let base = guest.stop(0);
    for slot in 0..3 {
        guest.ask(0, slot, OUT, slot as u64, 7);
    }
    guest.start(0, base);
    eventually("all of them wait", || {
        client.export("e")["waiting-requests"] == 3
    });
    assert_eq!(client.block_stats("e")["stats"]["wr_merged"], 2);
    assert_eq!(guest.stop(0), base);
    std::fs::remove_file(&full).unwrap();
    guest.start(0, base);
    for slot in 0..3 {
        guest.wait(0, slot);
        assert_eq!(guest.status(0, slot), 0);
    }
    program.stop();
}

/// A client of an NBD export that knew nothing of it would send requests that the server refuses.
#[test]
fn smallest_block_of_a_server_is_that_of_guests_and_of_clients() {
    let folder = Folder::new();
    let plugin = "--filter=blocksize-policy memory 1M blocksize-minimum=4096 blocksize-preferred=4096 \
                  blocksize-maximum=1M blocksize-error-policy=error";
    let Some(server) = NbdServer::nbdkit(&folder, plugin) else {
        return;
    };
    let output = folder.run(&line(&server, "", ""));
    output.assert_fails_naming(&["set logical-block-size=4096"]);
    let again = " --nbd-server addr.type=unix,addr.path=again --export nbd,id=n,name=d,node-name=d,writable=on";
    let (program, _) = start(
        &folder,
        &(line(&server, "", ",logical-block-size=4096") + again),
    );
    if report::installed("qemu-io") {
        let uri = format!("nbd+unix:///d?socket={}", folder.join("again").display());
        let commands = ["-c", "write -P 5 512 512", "-c", "read -P 5 512 512"];
        let mut qemu_io = std::process::Command::new("qemu-io");
        qemu_io.args(["-f", "raw", &uri]).args(commands);
        let output = Process::spawn(qemu_io).ended();
        assert!(output.code == Some(0), "{output:?}");
    }
    program.stop();
}
