//! Inactive nodes, whose images other processes use meanwhile.

use std::fs;

use test_support::deadline::eventually;
use test_support::request_driver::{IN, OUT, RequestDriver};

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::{MIB, MONITOR, start, start_with_disk};

/// A file, and a node in front of it.
const LINE: &str = "--blockdev file,node-name=d,filename=disk,active=off \
    --blockdev raw,node-name=r,file=d,active=off";

/// Another node with the same image.
const ADD_OTHER: &str = "blockdev-add driver=file node-name=other filename=disk";
const REMOVE_OTHER: &str = "blockdev-del node-name=other";
const ACTIVATE: &str = "blockdev-set-active node-name=r active=true";
const INACTIVATE: &str = "blockdev-set-active node-name=r active=false";
const INACTIVATE_ALL: &str = "blockdev-set-active active=false";
const EXPORT: &str =
    "block-export-add type=vhost-user-blk id=e node-name=r addr.type=unix addr.path=e.sock";

/// Names of active nodes, newest first.
fn active(client: &mut Client) -> Vec<String> {
    let nodes = client.execute("query-named-block-nodes");
    let nodes = nodes.as_array().unwrap().iter();
    let active = nodes.filter(|node| node["active"] == true);
    active
        .map(|node| node["node-name"].as_str().unwrap().to_owned())
        .collect()
}

/// Whether no node is active, and another one can have the image.
fn is_free(client: &mut Client) -> bool {
    if !active(client).is_empty() {
        return false;
    }
    client.execute(ADD_OTHER);
    client.execute(REMOVE_OTHER);
    true
}

#[test]
fn an_image_is_locked_and_resized_while_its_node_is_active_and_only_then() {
    let (folder, program, mut client) = start_with_disk(LINE);
    assert_eq!(active(&mut client), [""; 0]);
    client.execute(ADD_OTHER);
    client.assert_errors(&format!(
        "{ACTIVATE} => disk
         block_resize node-name=d size=2097152 => is inactive
         block_resize node-name=r size=2097152 => is inactive"
    ));
    let size = || fs::metadata(folder.join("disk")).unwrap().len();
    assert_eq!(size(), MIB);
    // It is reopened without a lock, and has none then.
    client.reopen("driver=file node-name=d filename=disk cache.direct=false");
    assert_eq!(active(&mut client), ["other"]);
    client.error_of(ACTIVATE);
    client.execute(REMOVE_OTHER);
    client.execute(ACTIVATE);
    assert_eq!(active(&mut client), ["r", "d"], "what is below comes first");
    client.error_of(ADD_OTHER);
    client.execute("block_resize node-name=r size=2097152");
    assert_eq!(size(), 2 * MIB);
    client.execute(INACTIVATE);
    assert!(is_free(&mut client));
    program.stop();
}

#[test]
fn a_node_stays_active_while_something_uses_it() {
    let (folder, program, mut client) = start_with_disk(LINE);
    client.execute(EXPORT);
    assert_eq!(active(&mut client), ["r", "d"], "the export needs them");
    RequestDriver::connect(&folder.join("e.sock"), 1).request(0, IN, 0, 0);
    client.assert_errors(&format!(
        "blockdev-set-active node-name=d active=false => Node 'd' has active parent node 'r'
         {INACTIVATE} => Node 'r' is in use by export 'e'
         blockdev-set-active node-name=nope active=false => Failed to find node with node-name='nope'
         {INACTIVATE_ALL} => in use by export 'e'"
    ));
    assert_eq!(active(&mut client), ["r", "d"]);
    client.execute("block-export-del id=e mode=hard");
    client.event("BLOCK_EXPORT_DELETED", "e");
    // Another node in front of it keeps the file active.
    client.execute("blockdev-add driver=raw node-name=second file=d");
    client.execute(INACTIVATE);
    assert_eq!(active(&mut client), ["second", "d"]);
    client.execute(INACTIVATE_ALL);
    assert_eq!(active(&mut client), [""; 0]);
    client.execute("blockdev-set-active active=true");
    assert_eq!(active(&mut client), ["second", "r", "d"]);
    program.stop();
}

#[test]
fn active_node_cannot_use_an_inactive_one() {
    const REFUSED: &str = "Inactive 'd' can't be";
    let (_folder, program, mut client) = start_with_disk(LINE);
    let second = "driver=raw node-name=second file=d";
    client.assert_errors(&format!(
        "blockdev-add {second} => {REFUSED}
         blockdev-add driver=raw node-name=third active=false file.driver=raw file.active=true file.file=d => {REFUSED}"
    ));
    client.execute(
        "blockdev-add driver=null-co node-name=n
         blockdev-add driver=raw node-name=second file=n",
    );
    let with_file = format!("{second}\ndriver=file node-name=d filename=disk");
    for nodes in [second, &with_file] {
        let error = client.reopen_error(nodes);
        assert!(error.starts_with(REFUSED), "{error}");
    }
    program.stop();
}

#[test]
fn an_export_with_allow_inactive_has_its_image_while_queues_run() {
    let (folder, program, mut client) = start_with_disk(LINE);
    let socket = folder.join("e.sock");
    client.execute(&format!(
        "{EXPORT} allow-inactive=true writable=true num-queues=2"
    ));
    assert!(is_free(&mut client));
    // No queue starts without the image.
    client.execute(ADD_OTHER);
    RequestDriver::connect_refused(&socket);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    assert_eq!(active(&mut client), ["other"]);
    client.execute(REMOVE_OTHER);
    let mut guest = RequestDriver::connect(&socket, 2);
    guest.request(0, OUT, 0, 1);
    assert_eq!(active(&mut client), ["r", "d"]);
    for refused in [ADD_OTHER, INACTIVATE, INACTIVATE_ALL] {
        client.error_of(refused);
    }
    let bases = [guest.stop(0), guest.stop(1)];
    assert!(is_free(&mut client));
    guest.start(0, bases[0]);
    guest.request(0, IN, 0, 0);
    assert_eq!(guest.stop(1), bases[1], "it does not run");
    assert_eq!(active(&mut client), ["r", "d"], "the first one runs");
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    assert_eq!(active(&mut client), [""; 0]);
    // By hand, as long as no queue runs.
    client.execute(ACTIVATE);
    assert_eq!(active(&mut client), ["r", "d"]);
    client.execute(INACTIVATE);
    assert_eq!(active(&mut client), [""; 0]);
    program.stop();
}

#[test]
fn an_export_without_allow_inactive_gives_its_image_up_to_a_migration_only() {
    let (folder, program, mut client) = start_with_disk(LINE);
    client.execute(EXPORT);
    let guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    let base = guest.stop(0);
    assert_eq!(active(&mut client), ["r", "d"], "its driver resets it");
    guest.start(0, base);
    guest.log_dirty_pages(true);
    let base = guest.stop(0);
    assert!(is_free(&mut client));
    // The migration is cancelled.
    guest.start(0, base);
    assert_eq!(active(&mut client), ["r", "d"]);
    guest.log_dirty_pages(false);
    // A guest whose VMM crashes while it migrates may go on here.
    guest.log_dirty_pages(true);
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    assert_eq!(active(&mut client), ["r", "d"]);
    program.stop();
}

/// A daemon each for the two ends of a migration.
#[test]
fn the_image_moves_with_a_guest_to_another_daemon() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let line = |active: &str, allow: &str, socket: &str| {
        format!(
            "--blockdev file,node-name=d,filename=disk{active} --blockdev raw,node-name=r,file=d{active} \
             --export vhost-user-blk,id=e,node-name=r,writable=on,addr.type=unix,addr.path={socket}{allow}"
        )
    };
    let (here, mut here_client) = start(&folder, &line("", "", "here.sock"));
    fs::rename(folder.join("qmp"), folder.join("qmp-here")).unwrap();
    let line = line(",active=off", ",allow-inactive=on", "there.sock");
    let mut command = folder.command(words(&format!("{line} {MONITOR}")));
    command.env("BLOCKPLANE_LOG", "info");
    let mut there = Process::spawn(command);
    let mut there_client = Client::of(there.connection(&folder.join("qmp")));
    let mut source = RequestDriver::connect(&folder.join("here.sock"), 1);
    source.request(0, OUT, 0, 1);
    source.log_dirty_pages(true);
    let there_socket = folder.join("there.sock");
    // The destination waits for the lock. It has no order with the source's stop, except that it cannot come before it.
    let destination = std::thread::spawn(move || RequestDriver::connect(&there_socket, 1));
    eventually("the destination waits, or does not", || {
        destination.is_finished() || there.stderr().contains("waits until its images are free")
    });
    assert!(!destination.is_finished(), "both ends have the image");
    let base = source.stop(0);
    let mut destination = destination.join().unwrap();
    destination.request(0, OUT, 0, 2);
    assert_eq!(active(&mut here_client), [""; 0]);
    assert_eq!(active(&mut there_client), ["r", "d"]);
    source.start_refused(0, base);
    assert_eq!(destination.read(0, 0)[0], 2);
    drop(destination);
    let mut back = RequestDriver::connect(&folder.join("here.sock"), 1);
    assert_eq!(back.read(0, 0)[0], 2);
    assert_eq!(active(&mut here_client), ["r", "d"]);
    assert_eq!(active(&mut there_client), [""; 0]);
    there.stop();
    here.stop();
}
