//! Persistent reservations that outlive the program, and files that cannot keep any.

use std::fs;

use rustix::process::Signal;

use crate::driver::{BUFFERS, transfer};
use crate::machine::{Driver, Slot};
use crate::process::{Folder, Process};
use crate::transfers::{command, execute, plug, query};

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

const LINE: &str = "--blockdev null-co,node-name=a,size=1M \
    --export vfio-user-lsi53c895a,id=e,node-name=a,writable=on,addr.type=unix,addr.path=e.sock,pr-file=kept";

const NOTHING: &str = "blockplane persistent reservations 1\nend\n";

fn start(folder: &Folder) -> (Process, Driver) {
    let program = folder.start(LINE, "e.sock");
    let driver = plug(folder, &[(0, 0)]);
    (program, driver)
}

fn kept(folder: &Folder) -> String {
    fs::read_to_string(folder.join("kept")).unwrap()
}

/// PERSISTENT RESERVE OUT, to be kept where it registers.
fn out(driver: &mut Driver, action: u8, kind: u8, key: u64, new_key: u64) -> u8 {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&new_key.to_be_bytes());
    list[20] = u8::from(action == REGISTER);
    driver.machine.poke(BUFFERS, &list);
    let mut order = command(0, 0, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0]);
    order.to_initiator = false;
    order.pieces = vec![(BUFFERS, 24)];
    execute(driver, order).status
}

/// PERSISTENT RESERVE IN: keys, or the reservation.
fn inside(driver: &mut Driver, action: u8) -> Vec<u8> {
    let cdb = [0x5e, action, 0, 0, 0, 0, 0, 0, 64, 0];
    let (status, answer) = query(driver, (0, 0), &cdb, 64);
    assert_eq!(status, GOOD);
    let len = u32::from_be_bytes(answer[4..8].try_into().unwrap());
    answer[8..8 + len as usize].to_vec()
}

fn reads(driver: &mut Driver) -> u8 {
    execute(driver, transfer(0x28, 0, Some(1), 0, 1, BUFFERS)).status
}

#[test]
fn reservations_survive_sigkill() {
    let folder = Folder::new();
    let (program, mut driver) = start(&folder);
    assert_eq!(kept(&folder), NOTHING);
    assert_eq!(out(&mut driver, REGISTER, 0, 0, 0x1234), GOOD);
    assert_eq!(out(&mut driver, RESERVE, EXCLUSIVE_ACCESS, 0x1234, 0), GOOD);
    program.signal(Signal::KILL);
    program.ended();

    let (program, mut driver) = start(&folder);
    assert_eq!(inside(&mut driver, 0), 0x1234u64.to_be_bytes());
    let held = inside(&mut driver, 1);
    assert_eq!(
        (&held[..8], held[13]),
        (&0x1234u64.to_be_bytes()[..], EXCLUSIVE_ACCESS)
    );
    assert_eq!(reads(&mut driver), GOOD, "it is the same initiator");
    assert_eq!(out(&mut driver, REGISTER, 0, 0x1234, 0), GOOD);
    assert_eq!(kept(&folder), NOTHING);
    program.stop();
}

#[test]
fn reservation_that_cannot_be_saved_is_refused() {
    let folder = Folder::new();
    let (program, mut driver) = start(&folder);
    assert_eq!(out(&mut driver, REGISTER, 0, 0, 1), GOOD);
    let before = kept(&folder);
    program.limit_file_size(Some(16));
    for (action, key, new_key, code) in [(REGISTER, 1, 2, 0x04), (RESERVE, 1, 0, 0x02)] {
        let status = out(&mut driver, action, EXCLUSIVE_ACCESS, key, new_key);
        assert_eq!(status, CHECK_CONDITION);
        let (_, sense) = query(&mut driver, (0, 0), &[0x03, 0, 0, 0, 18, 0], 18);
        assert_eq!((sense[2], sense[12], sense[13]), (5, 0x55, code));
    }
    assert_eq!(kept(&folder), before);
    let temporary = |name: &String| name.ends_with(".new");
    assert!(
        !folder.names().iter().any(temporary),
        "{:?}",
        folder.names()
    );
    assert_eq!(inside(&mut driver, 0), 1u64.to_be_bytes());
    assert_eq!(reads(&mut driver), GOOD);
    program.limit_file_size(None);
    assert_eq!(out(&mut driver, REGISTER, 0, 1, 2), GOOD);
    program.stop();
}

#[test]
fn unusable_reservations_file_prevents_the_start() {
    let folder = Folder::new();
    let refused = |why: &str| {
        let ended = folder.run(LINE);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(why), "{why}: {ended:?}");
    };
    for (text, why) in [
        ("", "the first line must be"),
        ("blockplane persistent reservations 1\nx\nend\n", "line 2"),
    ] {
        fs::write(folder.join("kept"), text).unwrap();
        refused(why);
        assert_eq!(kept(&folder), text, "it is left as it was");
    }
    fs::write(folder.join("kept"), vec![b'x'; 2 << 20]).unwrap();
    refused("2097152 bytes");
    fs::remove_file(folder.join("kept")).unwrap();
    fs::create_dir(folder.join("kept")).unwrap();
    refused("kept");
    fs::remove_dir(folder.join("kept")).unwrap();
    std::os::unix::fs::symlink("/dev/null", folder.join("kept")).unwrap();
    refused("not a regular file");
    fs::remove_file(folder.join("kept")).unwrap();

    let (program, _driver) = start(&folder);
    let again = LINE.replace("e.sock", "f.sock");
    let ended = folder.run(&again);
    assert!(ended.stderr.contains("in use by another disk"), "{ended:?}");
    program.stop();
    let nowhere = LINE.replace("=kept", "=nowhere/kept");
    let ended = folder.run(&nowhere);
    assert!(
        ended.stderr.contains("nowhere/kept: No such file"),
        "{ended:?}"
    );
}
