//! Tests of the order of tasks by their queue tags.

use crate::driver::{BUFFERS, transfer};
use crate::machine::*;
use crate::transfers::ready;

const SIMPLE: u8 = 0x20;
const HEAD: u8 = 0x21;
const ORDERED: u8 = 0x22;

/// Submits reads with these tags; each has its block.
fn submit(driver: &mut Driver, messages: &[u8]) {
    driver.machine.holds = true;
    for (tag, message) in (0u8..).zip(messages) {
        driver.tag_message = *message;
        driver.submit(&transfer(0x28, 0, Some(tag), tag.into(), 1, BUFFERS));
    }
}

fn at_the_disk(driver: &Driver) -> Vec<u64> {
    let waiting = driver.machine.disks.waiting.iter();
    waiting
        .map(|(_, _, request)| request.offset / 512)
        .collect()
}

#[test]
fn ordered_tasks_wait_for_earlier_and_delay_later_ones() {
    let mut driver = ready(Machine::new(), &[0]);
    submit(&mut driver, &[SIMPLE, SIMPLE, ORDERED, SIMPLE, HEAD]);
    assert_eq!(at_the_disk(&driver), [0, 1, 4]);
    for (finish, then) in [(1, vec![0, 4]), (0, vec![4]), (0, vec![2]), (0, vec![3])] {
        driver.machine.finish(finish);
        assert_eq!(at_the_disk(&driver), then);
    }
    driver.machine.finish(0);
    let blocks: Vec<u32> = driver.completions().iter().map(|done| done.block).collect();
    assert_eq!(blocks, [2, 1, 5, 3, 4], "in the order of completion");
    driver.expect_well();
}

#[test]
fn an_aborted_task_delays_no_other() {
    let mut driver = ready(Machine::new(), &[0]);
    submit(&mut driver, &[SIMPLE, ORDERED, SIMPLE]);
    assert_eq!(at_the_disk(&driver), [0]);
    // ABORT TAG of the ordered one, which waits.
    driver.machine.poke(0x3d00, &[0xc0, 0x20, 3, 0x0d]);
    let program = driver.abort_program(0, 0x3d00, 4);
    driver.interrupt_with(&program);
    assert_eq!(driver.machine.read32(DSPS), 0x22);
    driver.restart();
    assert_eq!(at_the_disk(&driver), [0, 2]);
    driver.machine.finish(0);
    driver.machine.finish(0);
    let blocks: Vec<u32> = driver.completions().iter().map(|done| done.block).collect();
    assert_eq!(blocks, [1, 3]);
}

#[test]
fn an_abort_waits_for_the_request_in_flight() {
    let mut driver = ready(Machine::new(), &[0]);
    submit(&mut driver, &[SIMPLE, SIMPLE]);
    driver.machine.poke(0x3d00, &[0xc0, 0x20, 1, 0x0d]);
    let program = driver.abort_program(0, 0x3d00, 4);
    driver.interrupt_with(&program);
    assert_eq!(driver.machine.read8(ISTAT1), 0x02, "the bus stands still");
    driver.machine.finish(0);
    assert_eq!(driver.machine.read32(DSPS), 0x22);
    driver.restart();
    driver.machine.finish(0);
    let blocks: Vec<u32> = driver.completions().iter().map(|done| done.block).collect();
    assert_eq!(blocks, [2]);
}

#[test]
fn an_idle_disk_starts_while_scripts_set_up_other_commands() {
    let mut driver = ready(Machine::new(), &[0]);
    driver.machine.holds = true;
    // One that keeps the bus: the others wait in the guest's queue.
    let mut first = transfer(0x28, 0, Some(20), 20, 1, BUFFERS);
    first.may_disconnect = false;
    driver.submit(&first);
    submit(&mut driver, &[SIMPLE; 16]);
    assert_eq!(at_the_disk(&driver), [20]);
    driver.machine.complete(0);
    let Machine { rig, disks, .. } = &mut driver.machine;
    let more = rig.server.do_pending_work(rig.now_ns);
    rig.server.device_and_host().0.submit_queued_requests(disks);
    let begun = at_the_disk(&driver).len();
    assert!(more && (4..8).contains(&begun), "{begun}, and more: {more}");
    driver.machine.go();
    assert_eq!(at_the_disk(&driver), Vec::from_iter(0..16));
    assert_eq!(driver.machine.interrupts(), 1);
}
