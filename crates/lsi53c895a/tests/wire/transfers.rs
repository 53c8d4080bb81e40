//! Tests of reads and writes through the adapter, one and many at a time.

use crate::driver::{BUFFERS, Order, transfer};
use crate::machine::*;

/// The driver, and disks that have said that they were switched on.
pub fn ready(machine: Machine, targets: &[u32]) -> Driver {
    let mut driver = Driver::new(machine);
    for target in targets {
        let order = command(*target, &[0x00, 0, 0, 0, 0, 0]);
        driver.submit(&order);
        let done = driver.completions();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].status, 2, "unit attention");
    }
    driver
}

/// A command without data.
pub fn command(target: u32, cdb: &[u8]) -> Order {
    Order {
        cdb: cdb.to_vec(),
        pieces: Vec::new(),
        ..transfer(0x28, target, None, 0, 0, 0)
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + i / 512 + seed * 31) as u8)
        .collect()
}

#[test]
fn an_interrupt_signals_completions_and_is_cleared_by_reading() {
    let mut driver = ready(Machine::new(), &[0]);
    driver.machine.interrupts();
    driver.machine.holds = true;
    driver.submit(&transfer(0x28, 0, Some(1), 0, 1, BUFFERS));
    assert_eq!(driver.machine.interrupts(), 0);
    driver.machine.finish(0);
    assert_eq!(driver.machine.interrupts(), 1);
    assert!(driver.machine.irq_level());
    assert_eq!(driver.completions().len(), 1);
    assert!(!driver.machine.irq_level());
    driver.machine.interrupts();
    assert_eq!(driver.machine.interrupts(), 0);
}

#[test]
fn units_and_targets_are_disks_of_their_own() {
    let places = [(0, 0), (0, 1), (3, 0)];
    let mut driver = ready(Machine::with(&places), &[0, 3]);
    let mut attention = command(0, &[0; 6]);
    attention.lun = 1;
    driver.submit(&attention);
    assert_eq!(driver.completions()[0].status, 2);
    for (place, (target, lun)) in places.into_iter().enumerate() {
        driver.machine.poke(BUFFERS, &pattern(place, 512));
        let mut order = transfer(0x2a, target.into(), Some(1), 7, 1, BUFFERS);
        order.lun = lun;
        driver.submit(&order);
        assert_eq!(driver.completions()[0].status, 0);
    }
    for place in 0..places.len() {
        let disk = &driver.machine.disks.bytes[place];
        assert_eq!(disk[7 * 512..8 * 512], pattern(place, 512));
    }
    // INQUIRY of a unit that there is not, and of one that there is, as Linux asks a target of which it has seen no LUN 0.
    for (target, lun, field, kind) in [(3, 5, 0, 0x7f), (0, 1, 1 << 5, 0)] {
        let mut order = command(target, &[0x12, field, 0, 0, 36, 0]);
        order.pieces = vec![(BUFFERS, 36)];
        order.lun = lun;
        order.to_initiator = true;
        driver.submit(&order);
        assert_eq!(driver.completions()[0].status, 0);
        assert_eq!(driver.machine.peek(BUFFERS, 1), [kind]);
    }
}

#[test]
fn requests_without_room_wait_and_others_overtake_them() {
    let mut driver = ready(Machine::with(&[(0, 0), (1, 0)]), &[0, 1]);
    driver.machine.holds = true;
    driver.machine.disks.room = 2;
    for tag in 0..4 {
        driver.submit(&transfer(0x28, 0, Some(tag), tag.into(), 1, BUFFERS));
    }
    driver.submit(&transfer(0x28, 1, Some(0), 0, 1, BUFFERS));
    let disks: Vec<usize> = driver.machine.disks.waiting.iter().map(|w| w.0).collect();
    assert_eq!(disks, [0, 0, 1]);
    assert!(driver.machine.adapter().wants_submit());
    while !driver.machine.disks.waiting.is_empty() {
        driver.machine.finish(0);
    }
    assert_eq!(driver.completions().len(), 5);
    assert!(!driver.machine.adapter().wants_submit());
}

#[test]
fn many_commands_at_once_do_not_pause_the_chip() {
    let mut driver = ready(Machine::new(), &[0]);
    driver.machine.holds = true;
    for tag in 0..32 {
        driver.submit(&transfer(0x28, 0, Some(tag), tag.into(), 1, BUFFERS));
    }
    while !driver.machine.disks.waiting.is_empty() {
        driver.machine.complete(0);
    }
    // A turn has fewer instructions than they need.
    let now_ns = driver.machine.rig.now_ns;
    assert!(
        driver.machine.rig.server.do_pending_work(now_ns),
        "there is more at once"
    );
    assert_eq!(driver.machine.adapter().deadline_ns(), None);
    while driver.machine.rig.server.do_pending_work(now_ns) {}
    assert_eq!(driver.completions().len(), 32);
}

#[test]
fn an_endless_program_is_paused() {
    use crate::assemble::{Program, When};
    let mut machine = Machine::new();
    let mut program = Program::at(0x1000);
    program.label("again").jump(When::Always, "again");
    machine.poke(0x1000, &program.bytes());
    machine.write32(DSP, 0x1000);
    machine.rig.turn();
    let deadline_ns = machine.adapter().deadline_ns().unwrap();
    assert!(deadline_ns > machine.rig.now_ns, "it rests");
    assert_eq!(machine.read8(ISTAT1), 0x02, "and runs");
    // A reset ends it at once, however long it was to rest.
    let reset = vfio_user::wire::command::DEVICE_RESET;
    machine.rig.call(reset, &[], &[]).unwrap();
    assert_eq!(machine.read8(ISTAT1), 0);
    assert_eq!(machine.adapter().deadline_ns(), None);
}
