//! Tasks that are cancelled, dropped and used again.

use scsi::{NexusNumber, Status};

use crate::rig::{BLOCK, LUN, Rig, Running, cdb10, cdb16, pattern};

/// A COMPARE AND WRITE that finds zeroes and writes zeroes: it waits for those before it.
fn compare_and_write(rig: &mut Rig, token: u64) -> Running {
    let mut cdb = cdb16(0x89, 0, 0, 0);
    cdb[13] = 1;
    rig.run(token, NexusNumber(0), &cdb, vec![0; 2 * BLOCK])
}

#[test]
fn a_cancelled_waiting_task_leaves_the_queue() {
    let mut rig = Rig::plain();
    let [one, mut two, mut three] = [1, 2, 3].map(|token| compare_and_write(&mut rig, token));
    assert!(two.waits() && three.waits());
    assert!(two.task.on_resumed().is_none(), "it is not its turn");
    assert!(!two.task.cancel(), "nothing of it is under way");
    assert_eq!(two.task.status(), Status::TaskAborted);
    assert_eq!(rig.finish(one), Status::Good);
    assert_eq!(rig.take_woken(), [3]);
    assert!(two.task.on_resumed().is_none());
    three.resume_next();
    assert_eq!(rig.finish(three), Status::Good);
}

#[test]
fn a_cancelled_running_task_lets_the_next_run_after_its_request() {
    let mut rig = Rig::plain();
    let [mut one, mut two] = [1, 2].map(|token| compare_and_write(&mut rig, token));
    assert!(two.waits());
    assert!(one.task.cancel(), "its request is under way");
    assert!(rig.take_woken().is_empty());
    rig.step(&mut one);
    assert_eq!(rig.take_woken(), [2]);
    assert_eq!(rig.finish(one), Status::TaskAborted);
    two.resume_next();
    assert_eq!(rig.finish(two), Status::Good);
}

#[test]
fn a_dropped_task_blocks_no_other() {
    let mut rig = Rig::plain();
    let [one, mut two] = [1, 2].map(|token| compare_and_write(&mut rig, token));
    drop(one);
    assert_eq!(rig.take_woken(), [2]);
    two.resume_next();
    assert_eq!(rig.finish(two), Status::Good);
}

#[test]
fn a_task_can_be_reused() {
    let mut rig = Rig::plain();
    let task = rig.task(0);
    let data = pattern(5, 2);
    let (written, task) = rig.exchange_in(task, LUN, &cdb10(0x2a, 0, 9, 2), &data, 0);
    assert_eq!((written.status, written.transferred), (Status::Good, 1024));
    let (beyond, task) = rig.exchange_in(task, LUN, &cdb10(0x28, 0, u32::MAX, 1), &[], 512);
    assert_eq!(beyond.status, Status::CheckCondition);
    assert_eq!(beyond.transferred, 0);
    let (read, task) = rig.exchange_in(task, LUN, &cdb10(0x28, 0, 9, 2), &[], 1024);
    assert_eq!((read.status, read.data), (Status::Good, data));
    assert!(read.sense.is_empty());
    assert_eq!(task.lun(), LUN);
}

#[test]
fn a_cancelled_read_ends_with_its_request() {
    let mut rig = Rig::plain();
    let read = cdb10(0x28, 0, 0, 1);
    let mut running = rig.run(0, NexusNumber(0), &read, vec![0; BLOCK]);
    assert!(running.task.cancel());
    rig.step(&mut running);
    assert_eq!(running.task.transferred_bytes(), 0);
    assert_eq!(rig.finish(running), Status::TaskAborted);
}
