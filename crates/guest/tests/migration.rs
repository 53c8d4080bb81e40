//! A guest that moves between two QEMUs, each with a server of its own on the same image.
//!
//! An emulated processor may lose writes of its own while its guest is copied: of a QEMU 7.2 with a disk of its own, without any
//! server, one guest in a few dozen moves oopses or reads what it did not write. So these are for who looks at the outcome, as in
//! `cargo test -p guest --test migration -- --ignored`; that the device's writes are all copied is what `virtqueue/tests/dirty_log.rs` says.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::thread;
use std::time::Duration;

use guest::{Boot, Movable, Report, Scenario, Server, ServerOptions};

/// There and back.
const ROUNDS: u32 = 10;
/// Long enough for the guest to be at work.
const AT_WORK: Duration = Duration::from_millis(700);

/// Two servers of one disk.
struct Hosts {
    _folder: tempfile::TempDir,
    servers: [Server; 2],
}

impl Hosts {
    fn new(num_queues: u16, packed: bool) -> Hosts {
        let folder = guest::disk_folder().unwrap();
        let mut options = ServerOptions::new(&folder.path().join("disk.img"), 64 << 20);
        options.num_queues = num_queues;
        options.packed = packed;
        options.monitor = true;
        options.faults = true;
        let program = guest::blockplane().unwrap();
        let serve = |locking| {
            let options = ServerOptions {
                locking: Some(locking),
                ..options.clone()
            };
            Server::start(&program, &options).unwrap_or_else(|error| panic!("{error}"))
        };
        let servers = [serve("on"), serve("off")];
        Hosts {
            _folder: folder,
            servers,
        }
    }

    /// Has a guest write and read back on the first host while `act` moves it.
    fn while_at_work(&self, mut act: impl FnMut(&mut Movable<'_>)) -> Report {
        let report = Boot::new(&self.servers[0], Scenario::Crashes)
            .run_moving(|question, guest| {
                assert_eq!(question, "crashes");
                thread::sleep(AT_WORK);
                act(guest);
                thread::sleep(AT_WORK);
            })
            .unwrap_or_else(|error| panic!("{error}"));
        for writer in 0..2 * self.servers[0].options().num_queues {
            let rounds = report.fact(&format!("rounds.{writer}")).unwrap();
            assert_ne!(rounds, "0", "writer {writer} wrote something");
        }
        report
    }

    fn stop(self) {
        for server in self.servers {
            server.stop().unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// Opens the image anew.
fn lock(server: &Server, locking: &str) -> guest::Result<()> {
    let disk = server.options().disk.display();
    let options = format!(
        r#"{{"options": [{{"driver": "file", "node-name": "d", "filename": "{disk}", "locking": "{locking}",
            "cache": {{"direct": true}}, "aio": "native", "discard": "unmap"}}]}}"#
    )
    .replace('\n', "");
    server.execute("blockdev-reopen", &options)
}

/// Moves a guest, and then the lock of its image.
fn move_to(guest: &mut Movable<'_>, from: &Server, to: &Server) {
    guest.move_to(to).unwrap_or_else(|error| panic!("{error}"));
    assert!(lock(to, "on").is_err(), "the other one has it");
    for (server, locking) in [(from, "off"), (to, "on")] {
        lock(server, locking).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn there_and_back(num_queues: u16, packed: bool, rounds: u32) {
    let hosts = Hosts::new(num_queues, packed);
    let [here, there] = &hosts.servers;
    hosts.while_at_work(|guest| {
        for _ in 0..rounds {
            for (from, to) in [(here, there), (there, here)] {
                move_to(guest, from, to);
                thread::sleep(AT_WORK);
            }
        }
    });
    hosts.stop();
}

#[test]
#[ignore = "QEMU's emulated processors lose writes while a guest is copied"]
fn a_guest_moves_there_and_back_while_it_works() {
    there_and_back(2, false, ROUNDS);
}

#[test]
#[ignore = "QEMU's emulated processors lose writes while a guest is copied"]
fn a_guest_with_packed_queues_does_so_too() {
    there_and_back(2, true, 1);
}

/// Requests that wait after an error.
fn waiting(server: &Server) -> u32 {
    let exports = server.query("query-block-exports", "{}").unwrap();
    let key = r#""waiting-requests": "#;
    let at = exports.find(key).map(|at| at + key.len()).unwrap();
    let digits: String = exports[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

#[test]
#[ignore = "QEMU's emulated processors lose writes while a guest is copied"]
fn requests_that_wait_after_an_error_move_with_the_guest() {
    let hosts = Hosts::new(2, false);
    let [here, there] = &hosts.servers;
    hosts.while_at_work(|guest| {
        for (from, to) in [(here, there), (there, here)] {
            let fail = r#"{"node-name": "b", "inject-error": [{"errno": 5}]}"#;
            from.execute("x-blkdebug-set", fail).unwrap();
            while waiting(from) == 0 {
                thread::sleep(Duration::from_millis(10));
            }
            // The other writers run into it as well.
            thread::sleep(AT_WORK);
            move_to(guest, from, to);
            assert_eq!(waiting(from), 0);
            from.execute(
                "x-blkdebug-set",
                r#"{"node-name": "b", "inject-error": []}"#,
            )
            .unwrap();
            thread::sleep(AT_WORK);
        }
    });
    hosts.stop();
}
