//! Incremental backups that are pulled over NBD while a guest uses the disk.
//!
//! Only a job that keeps the old data of what is overwritten could give clients the disk at one moment while the guest writes on. So the
//! guest makes a pause from the switch of the bitmaps until the copy is complete.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use nbd::wire::command;
use serde_json::{Value, json};
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::{Device, Op};
use test_support::verifying::guest::Guest;
use test_support::verifying::random::Random;
use test_support::vhost_user::wire::Wire;

use crate::SERVER;
use crate::client::Client;
use crate::clients::run;
use crate::process::Folder;
use crate::raw_client::{RawClient, request};
use crate::upgraded_daemon::Daemon;

const BLOCKS: u64 = 4096;
const BYTES: u64 = BLOCKS * BLOCK as u64;
const QUEUES: usize = 2;
/// Writes between two backups.
const WRITES: u64 = 400;

/// A guest that writes and verifies without end, except for pauses.
struct Writer {
    pauses: Sender<Pause>,
    /// Returns how many writes were answered.
    thread: JoinHandle<u64>,
}

/// A pause: `begun` is notified when nothing is in flight, and `ended` is dropped at the end.
struct Pause {
    begun: Sender<()>,
    ended: Receiver<()>,
}

impl Writer {
    fn begin(folder: &Folder) -> Self {
        let (pauses, asked) = channel::<Pause>();
        let socket = folder.join("e.sock");
        let thread = std::thread::spawn(move || {
            let wire = Wire::connect(&socket);
            let mut random = Random(11);
            let mut guest = Guest::new(Device::Blk, false, QUEUES, BLOCKS);
            guest.introduce(&wire, || ()).unwrap();
            let mut at_pause = 0;
            loop {
                guest.ask_some(&mut random);
                guest.drains_to(random.below(12), &wire);
                if guest.writes < at_pause + WRITES {
                    continue;
                }
                match asked.try_recv() {
                    Ok(pause) => {
                        guest.drains_to(0, &wire);
                        pause.begun.send(()).unwrap();
                        let _ = pause.ended.recv();
                        at_pause = guest.writes;
                    }
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => break,
                }
            }
            // The disk has what was answered last.
            for block in 0..guest.blocks.count() {
                guest.ask(guest.request_queues().start, Op::Read, block);
                guest.drains_to(0, &wire);
            }
            guest.writes
        });
        Writer { pauses, thread }
    }

    /// Begins a pause, which lasts until the result is dropped.
    fn pause(&self) -> Sender<()> {
        let (begun, has_begun) = channel();
        let (end, ended) = channel();
        self.pauses.send(Pause { begun, ended }).unwrap();
        has_begun.recv().unwrap();
        end
    }
}

fn bitmap(number: u32) -> Value {
    json!({"node": "d", "name": number.to_string(), "granularity": 4 * BLOCK})
}

/// Switches to the bitmap of this number at one moment.
fn switch_to(client: &mut Client, number: u32) {
    let mut actions = vec![json!({"type": "block-dirty-bitmap-add", "data": bitmap(number)})];
    if number > 0 {
        let old = json!({"node": "d", "name": (number - 1).to_string()});
        actions.push(json!({"type": "block-dirty-bitmap-disable", "data": old}));
    }
    client.done("transaction", json!({"actions": actions}));
}

/// The dirty ranges of a bitmap, as nbdinfo shows them.
fn dirty_ranges(folder: &Folder, name: &str) -> Option<Vec<(u64, u32)>> {
    let map = format!("--map=qemu:dirty-bitmap:{name}");
    let map = run(
        folder,
        "nbdinfo",
        &[&map, "--json", "nbd+unix:///backup?socket=nbd"],
    )?;
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let dirty = map.iter().filter(|piece| piece["type"] == 1);
    let ranges = dirty.map(|piece| {
        let length = piece["length"].as_u64().unwrap();
        (
            piece["offset"].as_u64().unwrap(),
            u32::try_from(length).unwrap(),
        )
    });
    Some(ranges.collect())
}

/// Copies ranges of the export into a backup.
fn copy(folder: &Folder, ranges: &[(u64, u32)], to: &File) {
    let mut reader = RawClient::enter(folder, "backup");
    for &(offset, len) in ranges {
        reader.send(&request(command::READ, 0, 1, (offset, len)));
        let (_, error, data) = reader.reply(len as usize);
        assert_eq!(error, 0);
        to.write_all_at(&data, offset).unwrap();
    }
}

fn assert_same(backup: &[u8], disk: &[u8], turn: u32) {
    assert_eq!(backup.len(), disk.len());
    let differs = |block: &usize| {
        let range = block * BLOCK..(block + 1) * BLOCK;
        backup[range.clone()] != disk[range]
    };
    let differing: Vec<usize> = (0..backup.len() / BLOCK).filter(differs).collect();
    assert!(differing.is_empty(), "backup {turn}: blocks {differing:?}");
}

#[test]
fn a_full_and_five_incremental_backups_are_the_disk_at_the_moments_when_its_guest_paused() {
    let folder = Folder::new();
    folder.image("disk", BYTES);
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 --blockdev file,node-name=d,filename=disk,cache.direct=off {SERVER} \
         --export vhost-user-blk,id=e,node-name=d,writable=on,num-queues={QUEUES},iothread.0=io0,iothread.1=io1,\
addr.type=unix,addr.path=e.sock"
    );
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    let writer = Writer::begin(&daemon.folder);
    for turn in 0..6 {
        let mut client = daemon.client();
        let folder = &daemon.folder;
        let pause = writer.pause();
        switch_to(&mut client, turn);
        let old = turn.checked_sub(1).map(|old| old.to_string());
        let export = json!({"type": "nbd", "id": "b", "node-name": "d", "name": "backup",
            "bitmaps": old.as_ref().map_or(json!([]), |old| json!([old]))});
        client.done("block-export-add", export);
        let name = format!("backup{turn}");
        if let Some(old) = &old {
            let previous = format!("backup{}", turn - 1);
            std::fs::copy(folder.join(&previous), folder.join(&name)).unwrap();
            let Some(dirty) = dirty_ranges(folder, old) else {
                return;
            };
            let bytes: u64 = dirty.iter().map(|(_, len)| u64::from(*len)).sum();
            assert!((1..BYTES).contains(&bytes), "{bytes} bytes are dirty");
            let to = File::options()
                .write(true)
                .open(folder.join(&name))
                .unwrap();
            copy(folder, &dirty, &to);
        } else {
            let uri = "nbd+unix:///backup?socket=nbd";
            if run(folder, "nbdcopy", &["--connections=2", uri, &name]).is_none() {
                return;
            }
        }
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        assert_same(&read(&name), &read("disk"), turn);
        client.done("block-export-del", json!({"id": "b", "mode": "hard"}));
        client.event("BLOCK_EXPORT_DELETED", "b");
        if let Some(old) = old {
            client.done(
                "block-dirty-bitmap-remove",
                json!({"node": "d", "name": old}),
            );
        }
        drop(pause);
        if turn == 2 {
            // The bitmap that records goes to the new process.
            daemon.upgrade();
        }
    }
    let Writer { pauses, thread } = writer;
    drop(pauses);
    assert!(thread.join().unwrap() > 6 * WRITES);
    daemon.stop();
}
