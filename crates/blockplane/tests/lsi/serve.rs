//! `blockplane serve --device lsi53c895a`: its disks as a driver finds them.

use crate::driver::{BUFFERS, transfer};
use crate::machine::{Driver, Machine, Slot};
use crate::process::Folder;
use crate::transfers::{MIB, execute, plug, query};

/// The serial number, by page 80 of INQUIRY.
fn serial(driver: &mut Driver, target: u32) -> String {
    let (status, page) = query(driver, (target, 0), &[0x12, 1, 0x80, 0, 64, 0], 64);
    assert_eq!(status, 0);
    let len = usize::from(page[3]);
    String::from_utf8(page[4..4 + len].to_vec()).unwrap()
}

#[test]
fn serve_gives_each_lsi_target_a_stable_serial_number() {
    let folder = Folder::new();
    for (name, byte) in [("a.img", 0xaa), ("b.img", 0xbb)] {
        std::fs::write(folder.join(name), vec![byte; MIB as usize]).unwrap();
    }
    let line = |disks: &str, socket: &str| {
        format!("serve --device lsi53c895a {disks} --cache-direct off --socket {socket}")
    };
    let program = folder.start(&line("a.img b.img", "e.sock"), "e.sock");
    let mut driver = plug(&folder, &[(0, 0), (1, 0)]);
    for (target, byte) in [(0, 0xaa), (1, 0xbb)] {
        driver.machine.poke(BUFFERS, &[0; 512]);
        let done = execute(&mut driver, transfer(0x28, target, None, 0, 1, BUFFERS));
        assert_eq!(done.status, 0);
        assert_eq!(driver.machine.peek(BUFFERS, 512), [byte; 512]);
    }
    let (a, b) = (serial(&mut driver, 0), serial(&mut driver, 1));
    assert_ne!(a, b, "a guest takes two of the same name for one");
    drop(driver);
    program.stop();

    // The other way round, and one with a number of the user's.
    let program = folder.start(
        &line("b.img ./a.img --serial MINE --serial YOURS", "f.sock"),
        "f.sock",
    );
    let mut driver = Driver::new(Machine::plug(&folder.join("f.sock")));
    assert_eq!(serial(&mut driver, 0), "MINE");
    drop(driver);
    program.stop();
    let program = folder.start(&line("b.img ./a.img", "g.sock"), "g.sock");
    let mut driver = Driver::new(Machine::plug(&folder.join("g.sock")));
    assert_eq!([serial(&mut driver, 0), serial(&mut driver, 1)], [b, a]);
    program.stop();
}
