//! Order and fairness between queues on different iothreads.

use std::fs;

use crate::process::{Folder, Process};
use crate::request_driver::{BLOCK, FLUSH, GET_ID, IN, OUT, RequestDriver, SLOTS};

const QUEUES: u32 = 4;
const BLOCKS: u64 = 64;

/// A disk of [`BLOCKS`] blocks on two iothreads, and its guest; `blockdev` are the driver of its node and further keys.
fn start(folder: &Folder, blockdev: &str) -> (Process, RequestDriver) {
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let line = format!(
        "--object iothread,id=a --object iothread,id=b --blockdev {blockdev},node-name=d \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,\
         num-queues={QUEUES},iothread.0=a,iothread.1=b"
    );
    let server = folder.start(&line, "s");
    (server, connect(folder))
}

const FILE: &str = "file,filename=disk.img";

fn connect(folder: &Folder) -> RequestDriver {
    RequestDriver::connect(&folder.join("s"), QUEUES)
}

fn byte(round: u64, queue: u32, slot: usize) -> u8 {
    u8::try_from((round * 41 + u64::from(queue) * 11 + slot as u64 * 3) % 250 + 1).unwrap()
}

/// The block that a queue uses: neighbours are on different iothreads.
fn block(queue: u32, slot: usize) -> u64 {
    slot as u64 * u64::from(QUEUES) + u64::from(queue)
}

/// All queues, for each of so many slots.
fn queues_and_slots(slots: usize) -> impl Iterator<Item = (u32, usize)> {
    (0..slots).flat_map(|slot| (0..QUEUES).map(move |queue| (queue, slot)))
}

/// Begins a write on all queues at once.
fn begin_writes(guest: &mut RequestDriver, round: u64, slots: usize) {
    for (queue, slot) in queues_and_slots(slots) {
        let byte = byte(round, queue, slot);
        guest.ask(queue, slot, OUT, block(queue, slot), byte);
    }
}

/// What is written on one queue and answered, is read on another.
fn write_here_read_there(blockdev: &str) {
    let folder = Folder::new();
    let (server, mut guest) = start(&folder, blockdev);
    for round in 0..50 {
        begin_writes(&mut guest, round, SLOTS);
        for (queue, slot) in queues_and_slots(SLOTS) {
            guest.wait(queue, slot);
        }
        for distance in 1..QUEUES {
            let there = |queue| (queue + distance) % QUEUES;
            for (queue, slot) in queues_and_slots(SLOTS) {
                guest.ask(there(queue), slot, IN, block(queue, slot), 0);
            }
            for (queue, slot) in queues_and_slots(SLOTS) {
                guest.wait(there(queue), slot);
                let wanted = [byte(round, queue, slot); BLOCK];
                let found = guest.data(there(queue), slot);
                assert!(found == wanted, "{round} {queue} {slot}");
            }
        }
        // Any queue's flush is good for all.
        guest.request(u32::try_from(round).unwrap() % QUEUES, FLUSH, 0, 0);
    }
    drop(guest);
    server.stop();
    let image = fs::read(folder.join("disk.img")).unwrap();
    for (queue, slot) in queues_and_slots(SLOTS) {
        let from = usize::try_from(block(queue, slot)).unwrap() * BLOCK;
        let wanted = [byte(49, queue, slot); BLOCK];
        assert!(image[from..from + BLOCK] == wanted, "{queue} {slot}");
    }
}

#[test]
fn writes_of_one_queue_are_visible_to_all() {
    write_here_read_there(FILE);
}

#[test]
fn writes_of_one_queue_are_visible_to_all_through_the_page_cache() {
    write_here_read_there(&format!("{FILE},cache.direct=off"));
}

#[test]
fn queue_restarts_while_others_are_busy() {
    const USED_SLOTS: usize = 3;
    let folder = Folder::new();
    let (server, mut guest) = start(&folder, FILE);
    for round in 0..100 {
        let stopped = u32::try_from(round % 4).unwrap();
        begin_writes(&mut guest, round, USED_SLOTS);
        let base = guest.stop(stopped);
        // What was not taken before the stop is taken after the start.
        guest.start(stopped, base);
        for (queue, slot) in queues_and_slots(USED_SLOTS) {
            let there = (queue + 1) % QUEUES;
            guest.wait(queue, slot);
            guest.ask(there, USED_SLOTS, IN, block(queue, slot), 0);
            guest.wait(there, USED_SLOTS);
            let wanted = [byte(round, queue, slot); BLOCK];
            assert!(guest.data(there, USED_SLOTS) == wanted, "{round}");
        }
    }
    drop(guest);
    server.stop();
}

#[test]
fn disconnect_under_load_leaves_nothing_behind() {
    let folder = Folder::new();
    let (server, guest) = start(&folder, FILE);
    drop(guest);
    // One front-end is served at a time: with one connected, none before it has left something.
    let descriptors = || {
        let guest = connect(&folder);
        let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
        (guest, open.count())
    };
    let (_, before) = descriptors();
    for round in 0..20 {
        begin_writes(&mut connect(&folder), round, SLOTS);
    }
    let (mut guest, after) = descriptors();
    assert_eq!(after, before);
    for queue in 0..QUEUES {
        guest.request(queue, OUT, u64::from(queue), 9);
        guest.request((queue + 1) % QUEUES, IN, u64::from(queue), 0);
        assert!(guest.data((queue + 1) % QUEUES, 0) == [9; BLOCK]);
    }
    drop(guest);
    server.stop();
}

/// A front-end can make a signal block (docs/security.md). Its iothread is interrupted, and the other one does not wait at all.
#[test]
fn blocked_signal_stops_neither_its_iothread_nor_the_other() {
    let folder = Folder::new();
    let (server, mut guest) = start(&folder, FILE);
    guest.request(0, OUT, 0, 1);
    guest.block_signal(0);
    guest.ask(0, 0, IN, 0, 0);
    // It is answered in the ring, and then its iothread waits to say so.
    guest.watch(0, 0);
    // Queue 2 is on the same iothread.
    guest.ask(2, 0, IN, 0, 0);
    for round in 0..200 {
        for queue in [1, 3] {
            guest.request(queue, OUT, block(queue, 1), byte(round, queue, 0));
            guest.request(queue, FLUSH, 0, 0);
        }
    }
    guest.wait(2, 0);
    assert!(guest.data(2, 0) == [1; BLOCK]);
    guest.request(0, IN, 0, 0);
    drop(guest);
    server.stop();
}

/// Who turns the write cache off is answered when everything is stable that was taken before, and that is
/// only known of what has completed.
#[test]
fn write_cache_turns_off_after_earlier_writes_complete() {
    const WRITE_CACHE: u32 = 32;
    let folder = Folder::new();
    let (server, mut guest) = start(&folder, "null-co,latency-ns=300000000");
    for (round, write_cache) in [0, 1, 0].into_iter().enumerate() {
        for queue in 0..QUEUES {
            guest.ask(queue, 0, OUT, block(queue, round), 1);
            // It is under way when the one behind it, which needs no disk, is answered.
            guest.ask(queue, 1, GET_ID, 0, 0);
            guest.wait(queue, 1);
        }
        guest.set_config(WRITE_CACHE, write_cache);
        for queue in 0..QUEUES {
            if write_cache == 0 {
                // It is done; its answer is there with the next one at the latest.
                guest.ask(queue, 1, GET_ID, 0, 0);
                guest.wait(queue, 1);
                assert!(guest.is_answered(queue, 0), "queue {queue}");
            }
            guest.wait(queue, 0);
        }
    }
    drop(guest);
    server.stop();
}
