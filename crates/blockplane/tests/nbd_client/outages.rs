//! Servers that are killed and started again under a verifying load.

use std::thread;
use std::time::Duration;

use test_support::deadline::eventually;
use test_support::nbd_server::NbdServer;
use test_support::verifying::load::VerifyingLoad;

use crate::process::Folder;
use crate::request_driver::{IN, RequestDriver};
use crate::{MIB, SOCKET, failed_requests, file_server, line, one_connection_server, start};

/// Kills the server of the file `image` so many times while a front-end with two queues writes, and starts it again after a while.
/// No request fails, and the file has what was written.
#[track_caller]
pub fn assert_kills_are_a_pause(
    folder: &Folder,
    server: &mut NbdServer,
    line: &str,
    kills: u32,
    downtime: Duration,
) {
    let (mut program, mut client) = start(folder, line);
    let mut load = VerifyingLoad::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    for _ in 0..kills {
        load.run(500);
        load.fill();
        server.kill();
        load.fill();
        thread::sleep(downtime);
        server.start();
    }
    load.run(500);
    load.read_all();
    assert_eq!(failed_requests(&mut client), 0);
    program.stop();
    load.assert_content(&std::fs::read(folder.join("image")).unwrap());
}

#[test]
fn a_killed_server_is_a_pause_within_the_reconnect_delay() {
    let folder = Folder::new();
    let Some(mut server) = file_server(&folder) else {
        return;
    };
    let queues = ",num-queues=2,iothread.0=io0,iothread.1=io1";
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 {}",
        line(&server, ",reconnect-delay=60", queues)
    );
    assert_kills_are_a_pause(&folder, &mut server, &line, 3, Duration::from_millis(200));
}

#[test]
fn the_same_holds_for_a_server_with_one_connection() {
    let folder = Folder::new();
    let Some(mut server) = one_connection_server(&folder) else {
        return;
    };
    let line = line(&server, ",reconnect-delay=60", ",num-queues=2");
    assert_kills_are_a_pause(&folder, &mut server, &line, 3, Duration::ZERO);
}

#[test]
fn requests_fail_without_a_delay_and_the_disk_recovers() {
    let folder = Folder::new();
    let Some(mut server) = file_server(&folder) else {
        return;
    };
    let (program, mut client) = start(&folder, &line(&server, "", ""));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, IN, 0, 0);
    server.kill();
    let read = |guest: &mut RequestDriver| guest.status_of(0, IN, 0, 0);
    assert_eq!(read(&mut guest), 1);
    assert_eq!(read(&mut guest), 1);
    server.start();
    eventually("requests succeed again", || read(&mut guest) == 0);
    assert!(failed_requests(&mut client) >= 2);
    program.stop();
}
