//! SCSI controllers across upgrades: verified load, and all that initiators would miss.

use std::fs::{self, File};

use rustix::fs::{FlockOperation, flock};
use serde_json::json;
use test_support::deadline::eventually;
use test_support::lock_contender::LockContender;
use test_support::upgraded_daemon::Daemon;
use test_support::verifying::guest::VerifyingGuest;
use test_support::verifying::load::VerifyingLoad;

use crate::blocks::BLOCK;
use crate::device::Device;
use crate::process::Folder;
use crate::request_driver::RequestDriver;
use crate::request_driver::commands::{Answer, Data};
use crate::wire::Wire;

const UPGRADES: usize = 10;
const BLOCKS: u64 = 64;

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// Without START.
const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const START: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;
const ABORT_TASK_SET: u32 = 1;
const FUNCTION_FAILED: u8 = 9;

/// The first queue for commands.
const QUEUE: u32 = 2;
const FIRST: (u8, u8) = (0, 0);
const SECOND: (u8, u8) = (2, 5);

/// A controller with one unit, and a driver that checks all that it reads while `change` happens.
fn under_load(packed: bool, queues: usize, change: impl FnOnce(&mut Daemon) + Send) {
    let on = if packed { "on" } else { "off" };
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 \
         --blockdev file,node-name=d,filename=disk.img \
         --export vhost-user-scsi,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,\
         iothread.0=io0,iothread.1=io1,num-queues={queues},packed={on}"
    );
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    let wire = Wire::connect(&daemon.folder.join("s"));
    let guest = VerifyingGuest::new(Device::Scsi, packed, queues, BLOCKS);
    let mut load = VerifyingLoad::with_guest(wire, guest);
    load.run_while(|| change(&mut daemon));
    load.read_all();
    daemon.stop();
}

#[test]
fn upgrade_under_load_of_scsi_queues_loses_nothing() {
    for (packed, queues) in [(false, 1), (true, 4)] {
        under_load(packed, queues, |daemon| {
            for _ in 0..UPGRADES {
                daemon.upgrade();
            }
        });
    }
}

/// As for disks: with one descriptor more each time it comes a step further.
#[test]
fn failure_of_the_new_program_at_any_step_leaves_the_controller_running() {
    under_load(false, 2, |daemon| {
        let failures = daemon.fail_at_each_step(1, || ()).len();
        assert!(failures >= 10, "{failures} upgrades failed");
    });
}

/// Two units, of which one keeps its reservations in a file, and room for a third.
fn controller() -> Daemon {
    let folder = Folder::new();
    for name in ["a.img", "b.img", "c.img"] {
        folder.image(name, 1 << 20);
    }
    let line = "--object iothread,id=io0 \
        --blockdev file,node-name=a,filename=a.img,cache.direct=off \
        --blockdev file,node-name=b,filename=b.img,cache.direct=off \
        --blockdev file,node-name=c,filename=c.img,cache.direct=off \
        --export vhost-user-scsi,id=v,writable=on,num-queues=2,addr.type=unix,addr.path=s,iothread=io0,\
        luns.0.node-name=a,luns.1.node-name=b,luns.1.target=2,luns.1.lun=5,luns.1.pr-file=kept";
    Daemon::start_in(folder, line, &[])
}

/// PERSISTENT RESERVE OUT.
#[track_caller]
fn out(guest: &mut RequestDriver, unit: (u8, u8), action: u8, key: u64, new_key: u64, kept: bool) {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&new_key.to_be_bytes());
    list[20] = u8::from(kept && action == REGISTER);
    let kind = u8::from(action == RESERVE) * EXCLUSIVE_ACCESS;
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let answer = guest.carry_out(QUEUE, unit, &cdb, Data::Out(&list));
    assert_eq!(answer.status, GOOD, "{answer:?}");
}

/// PERSISTENT RESERVE IN: PRGENERATION, and keys or the reservation.
fn inside(guest: &mut RequestDriver, unit: (u8, u8), action: u8) -> Vec<u8> {
    let cdb = [0x5e, action, 0, 0, 0, 0, 0, 0, 64, 0];
    let answer = guest.carry_out(QUEUE, unit, &cdb, Data::In(64));
    assert_eq!(answer.status, GOOD, "{answer:?}");
    answer.data
}

/// All that a unit says of itself and of its reservations, and its mode pages.
fn said(guest: &mut RequestDriver, unit: (u8, u8)) -> Vec<Vec<u8>> {
    let asked: [&[u8]; 6] = [
        &[0x12, 0, 0, 0, 255, 0],
        &[0x12, 1, 0x80, 0, 255, 0],
        &[0x12, 1, 0x83, 0, 255, 0],
        &[0x12, 1, 0xb0, 0, 255, 0],
        &[0x12, 1, 0xb1, 0, 255, 0],
        &[0x1a, 8, 0x3f, 0, 255, 0],
    ];
    let mut said = Vec::new();
    for cdb in asked {
        // Who has no serial number has no page for it.
        let answer = guest.carry_out(QUEUE, unit, cdb, Data::In(255));
        said.push([answer.data, answer.sense].concat());
    }
    said.extend([0, 1].map(|action| inside(guest, unit, action)));
    said
}

/// Sense key and code of the next thing that a unit has to say before it does anything.
fn attention(guest: &mut RequestDriver, unit: (u8, u8)) -> Option<(u8, u16)> {
    let answer = guest.carry_out(QUEUE, unit, &TEST_UNIT_READY, Data::None);
    let Answer { status, sense, .. } = answer;
    assert_eq!(status == GOOD, sense.is_empty());
    match sense.first()? {
        0x72 => Some((sense[1], u16::from_be_bytes([sense[2], sense[3]]))),
        _ => Some((sense[2], u16::from_be_bytes([sense[12], sense[13]]))),
    }
}

#[test]
fn upgrade_keeps_the_state_of_scsi_units() {
    let mut daemon = controller();
    let mut guest = RequestDriver::connect_hearing(&daemon.folder.join("s"), 2);
    let mut client = daemon.client();
    let third = json!({
        "id": "v", "node-name": "c", "target": 3, "serial": "abc", "vendor": "ACME", "product": "ROCKET",
        "ver": "7", "rotation-rate": 7200, "wwn": 0x5000_0000_0000_1234u64, "logical-block-size": 4096,
        "writable": false,
    });
    client.done("scsi-lun-add", third);
    const THIRD: (u8, u8) = (3, 0);
    for unit in [FIRST, SECOND, THIRD] {
        until_ready(&mut guest, unit);
    }
    assert_eq!(guest.event(), (1, 3, 0, 1), "the unit that came");
    for (unit, kept) in [(FIRST, false), (SECOND, true)] {
        out(&mut guest, unit, REGISTER, 0, 0x1234, kept);
        out(&mut guest, unit, RESERVE, 0x1234, 0, kept);
    }
    // MODE SELECT(6): descriptor-format sense data and software write protection, in the control page; no write cache.
    let control = [10, 10, 6, 0x10, 8, 0, 0, 0, 0xff, 0xff, 0, 0];
    let mut caching = [0; 20];
    caching[..2].copy_from_slice(&[8, 18]);
    for (unit, page) in [(FIRST, &control[..]), (SECOND, &caching)] {
        let list = [&[0; 4], page].concat();
        let len = u8::try_from(list.len()).unwrap();
        let select = [0x15, 0x10, 0, 0, len, 0];
        let answer = guest.carry_out(QUEUE, unit, &select, Data::Out(&list));
        assert_eq!(answer.status, GOOD, "{answer:?}");
    }
    let before = [FIRST, SECOND, THIRD].map(|unit| said(&mut guest, unit));
    assert_eq!(guest.command(QUEUE, SECOND, &STOP), GOOD);
    // These unit attentions are pending when the daemon is upgraded.
    client.execute(
        "block_resize node-name=a size=2097152
        scsi-lun-add id=v node-name=c target=2 lun=6 writable=false",
    );
    drop(client);

    daemon.upgrade();
    daemon.replace_program("exit 7");
    daemon.fails_to_upgrade();
    daemon.restore_program();
    daemon.upgrade();

    assert_eq!(guest.event(), (3, 0, 0, 0x092a), "the size");
    assert_eq!(guest.event(), (1, 2, 6, 1), "the unit");
    for (unit, expected) in [
        (FIRST, Some((6, 0x2a09))),
        (FIRST, None),
        (SECOND, Some((6, 0x3f0e))),
        // Stopped.
        (SECOND, Some((2, 0x0402))),
        (THIRD, None),
        // Switched on.
        ((2, 6), Some((6, 0x2900))),
    ] {
        assert_eq!(attention(&mut guest, unit), expected, "{unit:?}");
    }
    assert_eq!(guest.command(QUEUE, SECOND, &START), GOOD);
    assert_eq!(attention(&mut guest, SECOND), None);
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    let answer = guest.carry_out(QUEUE, FIRST, &write, Data::Out(&[0; 4096]));
    assert_eq!(
        (answer.status, answer.sense[0]),
        (CHECK_CONDITION, 0x72),
        "write protection and descriptor-format sense data"
    );
    for (unit, before) in [FIRST, SECOND, THIRD].into_iter().zip(before) {
        for (after, before) in said(&mut guest, unit).iter().zip(before) {
            assert_eq!(*after, before);
        }
    }
    let keys = inside(&mut guest, FIRST, 0);
    assert_eq!(keys[..4], [0, 0, 0, 1], "PRGENERATION");
    assert_eq!(keys[8..16], 0x1234u64.to_be_bytes());
    assert_eq!(inside(&mut guest, SECOND, 1)[21], EXCLUSIVE_ACCESS);
    let read_capacity = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let capacity = guest.carry_out(QUEUE, FIRST, &read_capacity, Data::In(8));
    assert_eq!(capacity.data[..4], (2 * 2048 - 1u32).to_be_bytes());
    drop(guest);
    daemon.stop();
}

/// Takes all that a unit has to report before it is ready.
fn until_ready(guest: &mut RequestDriver, unit: (u8, u8)) {
    eventually(format_args!("unit {unit:?} is ready"), || {
        guest.command(QUEUE, unit, &TEST_UNIT_READY) == GOOD
    });
}

/// A guest that has heard all that there was to hear of a unit.
fn ready(daemon: &Daemon, unit: (u8, u8)) -> RequestDriver {
    let mut guest = RequestDriver::connect_scsi(&daemon.folder.join("s"), 1);
    until_ready(&mut guest, unit);
    guest
}

#[test]
fn upgrade_keeps_the_reservations_file_locked_and_writable() {
    let mut daemon = controller();
    let mut guest = ready(&daemon, SECOND);
    let path = daemon.folder.join("kept");
    let locked = || {
        let file = File::open(&path).unwrap();
        assert!(flock(&file, FlockOperation::NonBlockingLockExclusive).is_err());
    };
    let contender = LockContender::for_file(&path);
    let mut key = 0;
    for _ in 0..3 {
        out(&mut guest, SECOND, REGISTER, key, key + 1, true);
        key += 1;
        let expected = format!("registration {key:#018x} ");
        assert!(fs::read_to_string(&path).unwrap().contains(&expected));
        locked();
        daemon.upgrade();
        locked();
        contender.has_tried_again();
    }
    drop((contender, guest));
    daemon.stop();
}

/// A function is not answered with a failure because the daemon is upgraded, nor before what it is about is over.
#[test]
fn upgrade_answers_a_pending_task_management_function() {
    let line = "--object iothread,id=io0 --object iothread,id=io1 \
        --blockdev null-co,node-name=n,size=1M,latency-ns=1500000000 \
        --export vhost-user-scsi,id=v,node-name=n,writable=on,addr.type=unix,addr.path=s,iothread.0=io0,iothread.1=io1";
    let mut daemon = Daemon::start_in(Folder::new(), line, &[]);
    let mut guest = ready(&daemon, FIRST);
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    guest.begin(QUEUE, FIRST, &read, Data::In(4096));
    guest.manage(ABORT_TASK_SET, FIRST);
    daemon.upgrade();
    guest.watch(0, 0);
    assert_ne!(guest.status(0, 0), FUNCTION_FAILED);
    assert_eq!(guest.status(0, 0), 0, "the function is complete");
    guest.watch(QUEUE, 0);
    drop(guest);
    daemon.stop();
}

/// A queue that the iothread does not read does not prevent an upgrade.
#[test]
fn upgrade_fails_a_function_on_a_queue_that_is_not_read() {
    let mut daemon = controller();
    let mut guest = ready(&daemon, FIRST);
    guest.enable(QUEUE, false);
    guest.begin(QUEUE, FIRST, &TEST_UNIT_READY, Data::None);
    guest.manage(ABORT_TASK_SET, FIRST);
    daemon.upgrade();
    guest.watch(0, 0);
    assert_eq!(guest.status(0, 0), FUNCTION_FAILED);
    // It may be in the ring still: it was not aborted.
    guest.enable(QUEUE, true);
    guest.watch(QUEUE, 0);
    guest.manage(ABORT_TASK_SET, FIRST);
    guest.watch(0, 0);
    assert_eq!(guest.status(0, 0), 0);
    drop(guest);
    daemon.stop();
}

#[test]
fn upgrade_hands_over_reservations_of_a_controller_without_front_end() {
    let mut daemon = controller();
    let mut guest = ready(&daemon, FIRST);
    out(&mut guest, FIRST, REGISTER, 0, 0x99, false);
    let mut client = daemon.client();
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "v");
    drop(client);
    daemon.upgrade();
    let mut guest = RequestDriver::connect_scsi(&daemon.folder.join("s"), 1);
    assert_eq!(inside(&mut guest, FIRST, 0)[8..16], 0x99u64.to_be_bytes());
    drop(guest);
    daemon.stop();
}
