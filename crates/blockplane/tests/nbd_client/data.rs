//! The data of served exports, compared with what the server has.

use crate::guest::{BLOCK, DISCARD, FLUSH, Guest, IN, OUT, WRITE_ZEROES};
use crate::load::Load;
use crate::process::{Folder, Process};
use crate::servers::Server;
use crate::{MIB, SOCKET, failed_requests, line, start};
use test_support::report;

/// A file of 1 MiB in a folder.
fn image(folder: &Folder) -> std::path::PathBuf {
    folder.image("image", MIB);
    folder.join("image")
}

#[test]
fn a_file_behind_nbdkit_holds_what_the_front_end_has_written() {
    let folder = Folder::new();
    let image = image(&folder);
    let Some(server) = Server::nbdkit(&folder, &format!("file {}", image.display())) else {
        return;
    };
    let uri = format!("nbd+unix:///?socket={}", server.socket().display());
    let mut program = folder.start(&format!("serve {uri} --socket {SOCKET}"), SOCKET);
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    load.run(3000);
    load.drain();
    assert_eq!(program.stop().code, Some(0));
    load.assert_content(&std::fs::read(image).unwrap());
}

#[test]
fn a_file_behind_qemu_nbd_holds_what_the_front_end_has_written() {
    let folder = Folder::new();
    let image = image(&folder);
    // One client, and the server does not offer several connections.
    let Some(server) = Server::qemu_nbd(&folder, "--shared 1 --discard unmap", &image) else {
        return;
    };
    let (mut program, _) = start(&folder, &line(&server, ",discard=unmap", ",num-queues=2"));
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    load.run(3000);
    load.read_all();
    assert_eq!(program.stop().code, Some(0));
    load.assert_content(&std::fs::read(image).unwrap());
}

#[test]
fn queues_of_several_iothreads_share_an_export() {
    let folder = Folder::new();
    let Some(server) = Server::nbdkit(&folder, "memory 1M") else {
        return;
    };
    let queues = ",num-queues=3,iothread.0=io0,iothread.1=io1";
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 {}",
        line(&server, "", queues)
    );
    let (mut program, mut client) = start(&folder, &line);
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 3, MIB);
    load.run(3000);
    load.read_all();
    assert_eq!(failed_requests(&mut client), 0);
    assert_eq!(program.stop().code, Some(0));
}

#[test]
fn slow_and_out_of_order_answers_reach_their_requests() {
    let folder = Folder::new();
    let filters = "--filter=delay --filter=error memory 1M rdelay=3ms wdelay=1ms error-rate=0";
    let Some(server) = Server::nbdkit(&folder, filters) else {
        return;
    };
    let (mut program, _) = start(&folder, &line(&server, "", ",num-queues=2"));
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    load.run(1000);
    load.read_all();
    assert_eq!(program.stop().code, Some(0));
}

#[test]
fn errors_of_the_server_are_those_of_the_guest() {
    let folder = Folder::new();
    let filters = "--filter=error memory 1M error-pread=EIO error-pread-rate=100%";
    let Some(server) = Server::nbdkit(&folder, filters) else {
        return;
    };
    let (program, mut client) = start(&folder, &line(&server, "", ""));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.ask(0, 0, IN, 0, 0);
    guest.submit(0);
    guest.watch(0, 0);
    assert_eq!(guest.status(0, 0), 1);
    guest.request(0, OUT, 0, 7);
    assert_eq!(failed_requests(&mut client), 1);
    program.stop();
}

#[test]
fn discards_and_zeroes_reach_the_server() {
    let folder = Folder::new();
    let Some(server) = Server::nbdkit(&folder, "memory 1M") else {
        return;
    };
    let (program, _) = start(&folder, &line(&server, ",discard=unmap", ""));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
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
    assert_eq!(program.stop().code, Some(0));
}

#[test]
fn zeroes_are_written_to_a_server_that_lacks_them() {
    let folder = Folder::new();
    let filters = "--filter=nozero --filter=noextents memory 1M zeromode=none";
    let Some(server) = Server::nbdkit(&folder, filters) else {
        return;
    };
    let (program, _) = start(&folder, &line(&server, "", ""));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 1, 7);
    assert_eq!(guest.request_range(WRITE_ZEROES, 0, 256, true), 0);
    guest.request(0, IN, 1, 0);
    assert_eq!(guest.data(0, 0), [0; BLOCK]);
    assert_eq!(program.stop().code, Some(0));
}

#[test]
fn a_server_over_tcp_is_reached_from_the_sandbox_also_again() {
    let folder = Folder::new();
    let Some(_unix) = Server::nbdkit(&folder, "memory 1M") else {
        return;
    };
    // Any free port: the kernel chooses one, and the test closes it again.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let start_server = || {
        let words = format!("--foreground --port {port} --ipaddr 127.0.0.1 memory 1M");
        let mut command = std::process::Command::new("nbdkit");
        command.args(crate::words(&words));
        let mut process = crate::Process::spawn(command);
        let address = format!("127.0.0.1:{port}");
        process.wait_until("it listens", || {
            std::net::TcpStream::connect(&address).is_ok()
        });
        process
    };
    let server = start_server();
    let options = format!(
        "--blockdev nbd,node-name=d,server.type=inet,server.host=localhost,server.port={port},reconnect-delay=60 --export \
         vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={SOCKET},writable=on"
    );
    let (program, mut client) = start(&folder, &options);
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 3, 7);
    drop(server);
    let _server = start_server();
    guest.request(0, OUT, 4, 8);
    guest.request(0, IN, 4, 0);
    assert_eq!(guest.data(0, 0), [8; BLOCK]);
    assert_eq!(failed_requests(&mut client), 0);
    program.stop();
}

/// A client that knew nothing of it would send requests that the server refuses.
#[test]
fn exports_of_a_server_have_its_smallest_block() {
    let folder = Folder::new();
    let plugin =
        "--filter=blocksize-policy memory 1M blocksize-minimum=4096 blocksize-error-policy=error";
    let Some(server) = Server::nbdkit(&folder, plugin) else {
        return;
    };
    if !report::installed("qemu-io") {
        return;
    }
    let again = " --nbd-server addr.type=unix,addr.path=again --export nbd,id=n,name=d,node-name=d,writable=on";
    let (program, _) = start(
        &folder,
        &(line(&server, "", ",logical-block-size=4096") + again),
    );
    let uri = format!("nbd+unix:///d?socket={}", folder.join("again").display());
    let commands = ["-c", "write -P 5 512 512", "-c", "read -P 5 512 512"];
    let mut qemu_io = std::process::Command::new("qemu-io");
    qemu_io.args(["-f", "raw", &uri]).args(commands);
    let output = Process::spawn(qemu_io).ended();
    assert!(output.code == Some(0), "{output:?}");
    assert_eq!(program.stop().code, Some(0));
}
