//! Filters are inserted and removed under running disks while their guests write and read.

use std::path::Path;

use test_support::deadline::eventually;
use test_support::request_driver::commands::Data;
use test_support::request_driver::{IN, OUT, RequestDriver};
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;
use test_support::verifying::guest::VerifyingGuest;
use test_support::verifying::load::VerifyingLoad;
use test_support::vhost_user::wire::Wire;

use crate::client::{Client, reopen_arguments};
use crate::process::{Folder, Process};
use crate::start;

const BLOCKS: u64 = 256;
/// Logical blocks of 512 bytes in one.
const SECTORS: u8 = 8;
const QUEUES: usize = 4;
const ROUNDS: usize = 60;

/// Adds a filter with faults; `disk` is not on it yet.
const ADD_FILTER: &str = "blockdev-add driver=blkdebug node-name=f image=d";
/// Writes take an hour.
const SLOW_WRITES: &str =
    "inject-error.0.action=delay inject-error.0.iotype=write inject-error.0.delay-ns=3600000000000";

const ONTO_FILTER: &str = "driver=raw node-name=disk file=f";
const ONTO_FILE: &str = "driver=raw node-name=disk file=d";

/// A file, a node in front of it that keeps its name, and an export of that on two iothreads.
fn start_disk(folder: &Folder, kind: &str, more: &str) -> (Process, Client) {
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 \
         --blockdev file,node-name=d,filename=disk.img \
         --blockdev raw,node-name=disk,file=d \
         --export {kind},id=e,node-name=disk,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock {more}"
    );
    start(folder, &line)
}

/// Inserts a node that is added by these commands and removes it in each round, under load; nothing may be lost or accumulate.
fn nodes_come_and_go(kind: &str, device: Device, add: &str, remove: &str) {
    let folder = Folder::new();
    let (program, mut client) = start_disk(&folder, kind, "");
    let guest = VerifyingGuest::new(device, false, QUEUES, BLOCKS);
    let mut load = VerifyingLoad::with_guest(Wire::connect(&folder.join("e.sock")), guest);
    let footprint = || (program.open_files().len(), program.anonymous_memory_kib());
    let mut before = None;
    load.run_while(|| {
        for round in 0..ROUNDS {
            client.execute(add);
            client.reopen(ONTO_FILTER);
            if client.node("f")["drv"] == "throttle" {
                eventually("a request waits", || {
                    client.block_stats("e")["throttle"][0]["waiting"].as_u64() > Some(0)
                });
            }
            client.reopen(ONTO_FILE);
            client.execute(remove);
            if round == ROUNDS / 4 {
                before = Some(footprint());
            }
        }
    });
    load.read_all();
    let answers = load.answers();
    assert!(answers > ROUNDS as u64, "{answers}");
    drop(load);
    // The guest's own connection and queues are there in both counts, or gone in the second.
    let ((fds, memory), now) = (before.unwrap(), footprint());
    assert!(now.0 <= fds, "{} descriptors, not {fds}", now.0);
    assert!(now.1 <= memory + 4096, "{} KiB, not {memory}", now.1);
    program.stop();
}

/// Some requests are still with it when it is taken away.
const DELAYS: &str = "blockdev-add driver=blkdebug node-name=f image=d \
    inject-error.0.action=delay inject-error.0.delay-ns=200000 inject-error.0.one-in=3";

#[test]
fn filter_is_inserted_and_removed_under_a_busy_virtio_disk() {
    let remove = "blockdev-del node-name=f";
    nodes_come_and_go("vhost-user-blk", Device::Blk, DELAYS, remove);
}

#[test]
fn filter_is_inserted_and_removed_under_a_busy_scsi_disk() {
    let remove = "blockdev-del node-name=f";
    nodes_come_and_go("vhost-user-scsi", Device::Scsi, DELAYS, remove);
}

#[test]
fn throttled_node_is_inserted_and_removed_under_a_busy_disk() {
    // Most requests wait, so that some do when it is taken away.
    let add = "object-add qom-type=throttle-group id=g limits.iops-total=200
               blockdev-add driver=throttle node-name=f throttle-group=g file=d";
    let remove = "blockdev-del node-name=f\nobject-del id=g";
    nodes_come_and_go("vhost-user-blk", Device::Blk, add, remove);
}

/// Waits until so many queues of an export have one request under way.
fn until_under_way(client: &mut Client, queues: usize) {
    eventually(format_args!("{queues} queues have a request"), || {
        let stats = client.block_stats("e");
        let busy = stats["queues"].as_array().unwrap().iter();
        busy.filter(|queue| queue["depth"] == 1).count() == queues
    });
}

/// A write that takes an hour is with a filter, which also fails reads, when that is taken away: reads of the same disk by another queue
/// succeed soon, and the exchange waits for the write.
fn served_while_a_write_is_with_the_old_node(
    kind: &str,
    connect: fn(&Path) -> RequestDriver,
    write: fn(&mut RequestDriver),
    read: fn(&mut RequestDriver) -> u8,
) -> (Folder, Process, Client, RequestDriver) {
    let folder = Folder::new();
    let (program, mut client) = start_disk(&folder, kind, "");
    client.execute(&format!(
        "{ADD_FILTER} {SLOW_WRITES} inject-error.1.errno=5 inject-error.1.iotype=read"
    ));
    client.reopen(ONTO_FILTER);
    let mut guest = connect(&folder.join("e.sock"));
    write(&mut guest);
    until_under_way(&mut client, 1);
    assert_ne!(read(&mut guest), 0, "the filter fails it");
    client.send("blockdev-reopen", &reopen_arguments(ONTO_FILE));
    eventually("a read by the new node", || read(&mut guest) == 0);
    assert!(!client.is_answered());
    (folder, program, client, guest)
}

/// A virtio-blk disk whose write is in flight at the old node while another queue is served.
fn virtio_disk_with_a_write_with_the_old_node() -> (Folder, Process, Client, RequestDriver) {
    served_while_a_write_is_with_the_old_node(
        "vhost-user-blk",
        |socket| RequestDriver::connect(socket, 2),
        |guest| guest.ask(0, 0, OUT, 0, 1),
        |guest| guest.status_of(1, IN, 1, 0),
    )
}

#[test]
fn shutdown_works_while_a_node_exchange_waits_for_a_delayed_request() {
    let (_folder, program, _client, guest) = virtio_disk_with_a_write_with_the_old_node();
    program.stop();
    assert_eq!(guest.status(0, 0), 0, "its queue has stopped");
}

#[test]
fn front_end_reconnects_while_a_node_exchange_waits_for_a_delayed_request() {
    let (folder, program, mut client, guest) = virtio_disk_with_a_write_with_the_old_node();
    drop(guest);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    assert_eq!(guest.read(0, 0), vec![1; BLOCK]);
    client.answer();
    program.stop();
}

#[test]
fn scsi_disk_is_served_by_the_new_node_while_a_command_is_with_the_old_one() {
    const UNIT: (u8, u8) = (0, 0);
    served_while_a_write_is_with_the_old_node(
        "vhost-user-scsi",
        |socket| {
            let mut guest = RequestDriver::connect_scsi(socket, 2);
            assert_eq!(guest.command(2, UNIT, &[0; 6]), 2, "it was switched on");
            guest
        },
        |guest| {
            let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, SECTORS, 0];
            guest.begin(2, UNIT, &write, Data::Out(&[1; BLOCK]));
        },
        |guest| guest.command(3, UNIT, &[0x28, 0, 0, 0, 0, SECTORS, 0, 0, SECTORS, 0]),
    );
}

/// A node below the filter is opened anew. So no queue may take more before what it has is done.
#[test]
fn shutdown_works_while_a_reopened_disk_waits_for_a_delayed_request() {
    let folder = Folder::new();
    // On the iothread of the other queue.
    let neighbour = "--blockdev null-co,node-name=null,size=1M \
        --export vhost-user-blk,id=n,node-name=null,iothread=io1,addr.type=unix,addr.path=n.sock";
    let (program, mut client) = start_disk(&folder, "vhost-user-blk", neighbour);
    client.execute(&format!("{ADD_FILTER} {SLOW_WRITES}"));
    client.reopen(ONTO_FILTER);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    guest.ask(0, 0, OUT, 0, 1);
    until_under_way(&mut client, 1);
    let no_flush = "driver=file node-name=d filename=disk.img cache.no-flush=true";
    client.send("blockdev-reopen", &reopen_arguments(no_flush));
    let mut neighbour = RequestDriver::connect(&folder.join("n.sock"), 1);
    let mut other = Client::connect(&folder.join("qmp"));
    eventually("the other queue takes nothing", || {
        guest.ask(1, 0, IN, 1, 0);
        // With two more requests the iothread has looked at the other queue as well, or has published its answer.
        let mut iterate = || (0..2).for_each(|_| neighbour.request(0, IN, 0, 0));
        iterate();
        let stats = other.block_stats("e");
        iterate();
        if stats["queues"][1]["depth"] == 1 {
            guest.watch(1, 0);
        }
        !guest.is_answered(1, 0)
    });
    guest.enable(1, true);
    let capacity = guest.capacity();
    assert_eq!(capacity, BLOCKS * BLOCK as u64, "the front-end is served");
    assert!(!guest.is_answered(1, 0) && !client.is_answered());
    program.stop();
    assert_eq!(guest.status(0, 0), 0, "its queue has stopped");
}

/// Of two exports of a disk the first has a write that takes an hour with a filter that is taken away. So the second one's turn does not
/// come.
#[test]
fn requests_to_a_filter_being_removed_do_not_hang() {
    let folder = Folder::new();
    let second =
        "--export vhost-user-blk,id=second,node-name=disk,addr.type=unix,addr.path=second.sock";
    let (program, mut client) = start_disk(&folder, "vhost-user-blk", second);
    client.execute(&format!(
        "{ADD_FILTER} {SLOW_WRITES} inject-error.1.action=hang inject-error.1.iotype=read"
    ));
    let mut first = RequestDriver::connect(&folder.join("e.sock"), 2);
    let mut second = RequestDriver::connect(&folder.join("second.sock"), 1);
    first.request(0, OUT, 1, 7);
    client.reopen(ONTO_FILTER);
    first.ask(0, 0, OUT, 0, 1);
    first.ask(1, 0, IN, 1, 0);
    until_under_way(&mut client, 2);
    client.send("blockdev-reopen", &reopen_arguments(ONTO_FILE));
    // It is released.
    first.wait(1, 0);
    assert_eq!(first.data(1, 0), [7; BLOCK]);
    second.request(0, IN, 1, 0);
    assert!(!client.is_answered());
    // Nothing waits for the write.
    drop(program);
}

#[test]
fn node_graph_rejects_cycles_and_removal_of_nodes_in_use() {
    let folder = Folder::new();
    folder.image("other.img", BLOCKS * BLOCK as u64 / 2);
    let (program, mut client) = start_disk(&folder, "vhost-user-blk", "");
    client.execute(
        "blockdev-add driver=blkdebug node-name=g image=disk
         blockdev-add driver=file node-name=other filename=other.img",
    );
    for (file, expected) in [("g", "cycle"), ("nowhere", "nowhere"), ("other", "bytes")] {
        let text = client.reopen_error(&format!("driver=raw node-name=disk file={file}"));
        assert!(text.contains(expected), "{file}: {text}");
    }
    client.execute("blockdev-del node-name=g");
    client.execute(ADD_FILTER);
    client.reopen(ONTO_FILTER);
    let text = client.error_of("blockdev-del node-name=f");
    assert!(text.contains("disk"), "{text}");
    // What is below the filter is opened anew with all that is in front of it.
    client.reopen("driver=file node-name=d filename=disk.img cache.direct=false");
    for (node, is_direct) in [("d", false), ("f", false), ("disk", false), ("other", true)] {
        assert_eq!(client.node(node)["cache"]["direct"], is_direct, "{node}");
    }
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    program.stop();
}
