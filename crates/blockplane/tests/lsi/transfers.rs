//! Data transfers of guests over the LSI adapter.

use std::fs;

use test_support::deadline::Deadline;

use crate::driver::{BUFFERS, Done, Order, transfer};
use crate::machine::{Driver, Machine, Slot};
use crate::process::Folder;

pub const MIB: u64 = 1 << 20;

/// Two disks, of target 0 and of LUN 2 of target 3.
pub const LINE: &str = "--blockdev file,node-name=a,filename=a.img,cache.direct=off \
    --blockdev file,node-name=b,filename=b.img,cache.direct=off \
    --object iothread,id=io \
    --export vfio-user-lsi53c895a,id=e,writable=on,iothread=io,addr.type=unix,addr.path=e.sock,\
luns.0.node-name=a,luns.1.node-name=b,luns.1.target=3,luns.1.lun=2,luns.1.serial=second";

pub fn images(folder: &Folder) {
    for name in ["a.img", "b.img"] {
        folder.image(name, 4 * MIB);
    }
}

/// A driver, whose disks at these places have said that they were switched on.
pub fn plug(folder: &Folder, places: &[(u32, u8)]) -> Driver {
    let mut driver = Driver::new(Machine::plug(&folder.join("e.sock")));
    for (target, lun) in places {
        let done = execute(&mut driver, command(*target, *lun, &[0; 6]));
        assert_eq!(done.status, 2, "unit attention");
    }
    driver
}

/// A command without data.
pub fn command(target: u32, lun: u8, cdb: &[u8]) -> Order {
    Order {
        lun,
        cdb: cdb.to_vec(),
        pieces: Vec::new(),
        ..transfer(0x28, target, None, 0, 0, 0)
    }
}

/// A command that has something to say.
pub fn query(driver: &mut Driver, lun: (u32, u8), cdb: &[u8], len: u32) -> (u8, Vec<u8>) {
    let mut order = command(lun.0, lun.1, cdb);
    order.to_initiator = true;
    order.pieces = vec![(BUFFERS, len)];
    let done = execute(driver, order);
    (done.status, driver.machine.peek(BUFFERS, len as usize))
}

/// Waits until so many are done.
#[track_caller]
pub fn wait(driver: &mut Driver, count: usize) -> Vec<Done> {
    let (mut done, deadline) = (Vec::new(), Deadline::default());
    while done.len() < count {
        // Interrupts without a completion do not extend it.
        driver.machine.interrupted(deadline);
        done.extend(driver.completions());
        driver.machine.unmask();
    }
    done
}

#[track_caller]
pub fn execute(driver: &mut Driver, order: Order) -> Done {
    driver.submit(&order);
    wait(driver, 1).remove(0)
}

#[test]
fn concurrent_lsi_writes_reach_the_image() {
    let folder = Folder::new();
    images(&folder);
    let program = folder.start(LINE, "e.sock");
    let mut driver = plug(&folder, &[(0, 0), (3, 2)]);
    let data = |tag: u8| -> Vec<u8> { (0..65536u32).map(|i| (i / 512 * 3) as u8 ^ tag).collect() };
    let at = |tag: u8| BUFFERS + u32::from(tag) * 65536;
    for (target, lun, image) in [(0, 0, "a.img"), (3, 2, "b.img")] {
        for opcode in [0x2a, 0x28] {
            for tag in 0..16 {
                let bytes = match opcode {
                    0x2a => data(tag ^ lun),
                    _ => vec![0; 65536],
                };
                driver.machine.poke(at(tag), &bytes);
                let lba = u32::from(tag) * 256;
                let mut order = transfer(opcode, target, Some(tag), lba, 128, at(tag));
                order.lun = lun;
                driver.submit(&order);
            }
            let done = wait(&mut driver, 16);
            let well = |done: &Done| (done.status, done.residual) == (0, 0);
            assert!(done.iter().all(well));
        }
        for tag in 0..16 {
            let found = driver.machine.peek(at(tag), 65536);
            assert!(found == data(tag ^ lun), "tag {tag}");
        }
        let mut flush = [0; 10];
        flush[0] = 0x35;
        let flush = execute(&mut driver, command(target, lun, &flush));
        assert_eq!(flush.status, 0);
        let image = fs::read(folder.join(image)).unwrap();
        for tag in 0..16u8 {
            let place = usize::from(tag) * 256 * 512;
            assert!(image[place..][..65536] == data(tag ^ lun), "tag {tag}");
            assert!(image[place + 65536..][..65536] == [0; 65536], "between");
        }
    }
    driver.expect_well();
    let (status, page) = query(&mut driver, (3, 2), &[0x12, 1, 0x80, 0, 32, 0], 32);
    assert_eq!((status, &page[4..10]), (0, &b"second"[..]));
    program.stop().assert_success();
    assert!(driver.machine.is_hung_up());
    assert!(!folder.has("e.sock"));
}

#[test]
fn read_only_lsi_disk_reports_write_protection() {
    let folder = Folder::new();
    images(&folder);
    let line = "--blockdev file,node-name=a,filename=a.img,cache.direct=off \
        --export vfio-user-lsi53c895a,id=e,node-name=a,addr.type=unix,addr.path=e.sock";
    let program = folder.start(line, "e.sock");
    let mut driver = plug(&folder, &[(0, 0)]);
    let done = execute(&mut driver, transfer(0x2a, 0, Some(0), 0, 1, BUFFERS));
    assert_eq!(done.status, 2);
    let (_, sense) = query(&mut driver, (0, 0), &[0x03, 0, 0, 0, 18, 0], 18);
    assert_eq!((sense[2], sense[12]), (7, 0x27), "write protected");
    program.stop().assert_success();
}
