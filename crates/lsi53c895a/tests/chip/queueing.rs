//! Whole commands through the driver: many at a time, each one request, with the guest's own memory.

use lsi53c895a::chip::MAX_TASKS;

use crate::driver::{BUFFERS, transfer};
use crate::machine::*;

fn driver() -> Driver {
    Driver::new(Machine::new())
}

fn blocks_of(driver: &mut Driver) -> Vec<(u32, u8, u32)> {
    let done = driver.completions().into_iter();
    done.map(|done| (done.block, done.status, done.residual))
        .collect()
}

#[test]
fn tasks_that_end_together_reselect_one_after_the_other_in_that_order() {
    let mut driver = driver();
    for i in 0..8u8 {
        let block = u32::from(i);
        driver.submit(&transfer(
            0x28,
            block % 3,
            Some(i),
            block,
            1,
            BUFFERS + 512 * block,
        ));
    }
    let running = driver.machine.world.running.clone();
    for id in running.iter().rev() {
        driver.machine.finish_quietly(*id, GOOD);
    }
    driver.machine.go();
    driver.expect_well();
    let order: Vec<u32> = driver.completions().iter().map(|done| done.block).collect();
    assert_eq!(order, [7, 6, 5, 4, 3, 2, 1, 0]);
    let machine = &driver.machine;
    assert_eq!(machine.peek(BUFFERS, 4096), machine.world.disk[..4096]);
}

#[test]
fn sixty_four_kib_in_pieces_are_one_request_with_the_guests_memory() {
    let mut driver = driver();
    let mut order = transfer(0x28, 0, Some(1), 16, 128, 0);
    order.pieces = (0..16).map(|i| (BUFFERS + 0x2000 * i, 4096)).collect();
    driver.submit(&order);
    let id = driver.machine.world.running[0];
    let task = driver.machine.world.task(id);
    assert_eq!((task.data_bytes(), task.segments.len()), (65536, 16));
    let base = &raw const driver.machine.world.memory[BUFFERS as usize];
    assert_eq!(task.segments[0].0.cast_const(), base, "no copy");
    driver.machine.finish(id);
    assert_eq!(blocks_of(&mut driver), [(0, GOOD, 0)]);
    let second = driver.machine.peek(BUFFERS + 0x2000, 4096);
    assert_eq!(second, driver.machine.world.disk[16 * 512 + 4096..][..4096]);

    // Neighbours in memory become one piece.
    order.pieces = (0..16).map(|i| (BUFFERS + 0x1000 * i, 4096)).collect();
    driver.submit(&order);
    let id = driver.machine.world.running[0];
    assert_eq!(driver.machine.world.task(id).segments.len(), 1);
}

#[test]
fn immediate_data_needs_no_disconnection_and_short_data_leaves_a_residual() {
    let mut driver = driver();
    let mut order = transfer(0x28, 2, None, 0, 0, 0);
    order.cdb = vec![0x12, 0, 0, 0, 255, 0];
    let places = [BUFFERS, BUFFERS + 0x100, BUFFERS + 0x200];
    order.pieces = places.into_iter().zip([20, 100, 135]).collect();
    driver.submit(&order);
    driver.expect_well();
    assert_eq!(blocks_of(&mut driver), [(0, GOOD, 255 - 36)]);
    assert_eq!(driver.machine.peek(BUFFERS, 20), b"abcdefghijklmnopqrst");
    assert_eq!(
        driver.machine.peek(BUFFERS + 0x100, 17),
        b"uvwxyzabcdefghij\0"
    );

    // The target ends its data just where a piece of the driver's ends.
    order.pieces = vec![(BUFFERS, 36), (BUFFERS + 0x100, 219)];
    driver.submit(&order);
    driver.expect_well();
    assert_eq!(blocks_of(&mut driver), [(1, GOOD, 219)]);
}

#[test]
fn a_disk_that_moves_less_than_the_driver_wants_leaves_a_residual_after_reselection_too() {
    for opcode in [0x28, 0x2a] {
        let mut driver = driver();
        let mut order = transfer(opcode, 1, Some(4), 7, 2, 0);
        order.pieces = vec![(BUFFERS, 512), (BUFFERS + 0x1000, 4096)];
        driver.submit(&order);
        driver.expect_well();
        assert_eq!(driver.machine.world.runs, [1024]);
        let id = driver.machine.world.running[0];
        driver.machine.finish(id);
        driver.expect_well();
        assert_eq!(blocks_of(&mut driver), [(0, GOOD, 4096 - 512)]);
    }
}

#[test]
fn commands_without_data_disconnect_too() {
    let mut driver = driver();
    let mut order = transfer(0x28, 0, Some(2), 0, 0, 0);
    order.cdb = vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    order.pieces.clear();
    driver.submit(&order);
    driver.submit(&transfer(0x28, 0, Some(3), 0, 1, BUFFERS));
    assert_eq!(driver.machine.world.running.len(), 2);
    let sync = driver.machine.world.running[0];
    driver.machine.finish(sync);
    assert_eq!(blocks_of(&mut driver), [(0, GOOD, 0)]);
}

#[test]
fn without_the_right_to_disconnect_the_bus_is_held() {
    let mut driver = driver();
    let mut order = transfer(0x2a, 0, None, 0, 1, BUFFERS);
    order.may_disconnect = false;
    driver.submit(&order);
    driver.submit(&transfer(0x2a, 1, Some(1), 0, 1, BUFFERS));
    let running = driver.machine.world.running.len();
    assert_eq!(running, 1, "the second waits for the bus");
    assert_ne!(driver.machine.read8(ISTAT0) & 0x08, 0, "connected");
    let first = driver.machine.world.running[0];
    driver.machine.finish(first);
    assert_eq!(blocks_of(&mut driver), [(0, GOOD, 0)]);
    assert_eq!(driver.machine.world.running.len(), 1);
}

#[test]
fn fifteen_targets_and_their_units_are_distinct() {
    let mut driver = driver();
    let mut expected = Vec::new();
    for target in (0..16).filter(|id| *id != 7) {
        for lun in [0, 5] {
            let mut order = transfer(0x28, target, None, 0, 1, BUFFERS);
            order.lun = lun;
            driver.submit(&order);
            expected.push((u8::try_from(target).unwrap(), lun));
        }
    }
    driver.expect_well();
    let world = &driver.machine.world;
    let nexuses = world.running.iter().map(|id| world.task(*id).nexus);
    let found: Vec<_> = nexuses.map(|nexus| (nexus.target, nexus.lun)).collect();
    assert_eq!(found, expected);
    for id in world.running.clone() {
        driver.machine.finish(id);
    }
    driver.expect_well();
    assert_eq!(driver.completions().len(), 30);
}

#[test]
fn a_task_without_a_free_slot_ends_with_task_set_full() {
    let mut driver = driver();
    for i in 0..MAX_TASKS {
        let mut order = transfer(0x28, u32::try_from(i % 4).unwrap(), None, 0, 1, BUFFERS);
        order.more_messages = vec![0x20, u8::try_from(i / 4).unwrap()];
        driver.submit(&order);
    }
    assert_eq!(driver.machine.world.running.len(), MAX_TASKS);
    driver.submit(&transfer(0x28, 5, Some(1), 0, 1, BUFFERS));
    driver.expect_well();
    const TASK_SET_FULL: u8 = 0x28;
    assert_eq!(blocks_of(&mut driver), [(256, TASK_SET_FULL, 512)]);
}
