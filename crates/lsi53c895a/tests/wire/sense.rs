//! Tests of REQUEST SENSE, on a bus that brings no sense data with the status.

use engine::Errno;

use crate::driver::{BUFFERS, Order, transfer};
use crate::machine::*;
use crate::transfers::{command, ready};

fn order(tag: Option<u8>) -> Order {
    Order {
        tag,
        to_initiator: true,
        pieces: vec![(BUFFERS + 0x8000, 18)],
        ..command(0, &[0x03, 0, 0, 0, 18, 0])
    }
}

/// Sense key, additional sense code and qualifier.
fn sense(driver: &Driver) -> (u8, u16) {
    let sense = driver.machine.peek(BUFFERS + 0x8000, 18);
    (sense[2] & 0x0f, u16::from_be_bytes([sense[12], sense[13]]))
}

fn request_sense(driver: &mut Driver) -> (u8, u16) {
    driver.submit(&order(None));
    let done = driver.completions();
    assert_eq!((done.len(), done[0].status), (1, 0));
    sense(driver)
}

#[test]
fn the_first_command_reports_a_reset() {
    let mut driver = ready(Machine::new(), &[0]);
    assert_eq!(request_sense(&mut driver).0, 6);
    assert_eq!(request_sense(&mut driver), (0, 0), "said once");
}

#[test]
fn two_failures_at_once_are_reported_one_after_the_other() {
    let mut driver = ready(Machine::new(), &[0]);
    request_sense(&mut driver);
    driver.machine.holds = true;
    driver.submit(&transfer(0x28, 0, Some(1), 0, 1, BUFFERS));
    driver.submit(&transfer(0x2a, 0, Some(2), 1, 1, BUFFERS));
    driver.machine.disks.error = Some(Errno::NODATA);
    driver.machine.complete(0);
    driver.machine.disks.error = Some(Errno::NOSPC);
    driver.machine.complete(0);
    driver.machine.holds = false;
    driver.machine.go();
    let done = driver.completions();
    assert_eq!(done.len(), 1, "the second waits");
    assert_eq!((done[0].block, done[0].status), (2, 2));
    let asks = |driver: &mut Driver| {
        driver.submit(&order(Some(50)));
        let mut done = driver.completions();
        done.sort_by_key(|done| done.block);
        let statuses: Vec<u8> = done.iter().map(|done| done.status).collect();
        (sense(driver), statuses)
    };
    assert_eq!(asks(&mut driver), ((3, 0x1100), vec![2, 0]));
    assert_eq!(asks(&mut driver), ((7, 0x2707), vec![0]));
    assert_eq!(request_sense(&mut driver), (0, 0));
    driver.expect_well();
}

#[test]
fn tagged_commands_do_not_clear_sense_data() {
    let mut driver = ready(Machine::new(), &[0]);
    request_sense(&mut driver);
    driver.machine.holds = true;
    driver.submit(&transfer(0x28, 0, Some(1), 0, 1, BUFFERS));
    driver.machine.disks.error = Some(Errno::NODATA);
    driver.machine.complete(0);
    // The driver has not heard of it, and submits more.
    driver.machine.disks.error = None;
    driver.machine.holds = false;
    driver.submit(&transfer(0x28, 0, Some(2), 0, 1, BUFFERS));
    let statuses: Vec<u8> = driver
        .completions()
        .iter()
        .map(|done| done.status)
        .collect();
    assert_eq!(statuses.iter().filter(|status| **status == 2).count(), 1);
    assert_eq!(request_sense(&mut driver), (3, 0x1100));
    // Any other command without a tag does.
    driver.machine.disks.error = Some(Errno::NODATA);
    driver.submit(&transfer(0x28, 0, Some(3), 0, 1, BUFFERS));
    assert_eq!(driver.completions()[0].status, 2);
    driver.machine.disks.error = None;
    driver.submit(&transfer(0x28, 0, None, 0, 1, BUFFERS));
    assert_eq!(driver.completions()[0].status, 0);
    assert_eq!(request_sense(&mut driver), (0, 0));
}

#[test]
fn a_tag_that_is_used_twice_ends_both_tasks() {
    let mut driver = ready(Machine::new(), &[0]);
    request_sense(&mut driver);
    driver.machine.holds = true;
    driver.submit(&transfer(0x28, 0, Some(1), 0, 1, BUFFERS));
    driver.submit(&transfer(0x28, 0, Some(1), 1, 1, BUFFERS));
    assert_eq!(driver.machine.disks.waiting.len(), 1);
    driver.machine.holds = false;
    driver.machine.finish(0);
    let done = driver.completions();
    assert_eq!((done.len(), done[0].status), (1, 2));
    assert_eq!(request_sense(&mut driver), (0xb, 0x4e00));
}
