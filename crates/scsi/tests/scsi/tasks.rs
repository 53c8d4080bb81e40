//! Tasks that wait for each other, and tasks that are cancelled.

use scsi::{AdapterStep, DataPhase, NexusNumber, Status, Task};

use crate::rig::{BLOCK, LUN, Rig, cdb10, cdb16, pattern};

/// A COMPARE AND WRITE that is handed its memory and not driven.
fn begin(rig: &mut Rig, task: &mut Task, memory: &mut [u8]) -> AdapterStep {
    let mut cdb = cdb16(0x89, 0, 0, 0);
    cdb[13] = 1;
    let phase = task.receive(&mut rig.view, LUN, NexusNumber(0), &cdb);
    assert_eq!(phase, DataPhase::DataOut(1024));
    let mut list = rig.segments(memory);
    // SAFETY: the memory is the test's; the list is leaked.
    let step = unsafe { task.run(list.as_mut_ptr(), list.len() as u32, memory.len() as u64) };
    std::mem::forget(list);
    step
}

fn finish(rig: &mut Rig, task: &mut Task, mut step: AdapterStep) -> Status {
    while let Some(next) = rig.do_step(task, step) {
        step = next;
    }
    assert!(matches!(step, AdapterStep::Finished));
    task.status()
}

#[test]
fn the_second_compare_and_write_waits_and_sees_the_first() {
    let mut rig = Rig::plain();
    let (mut one, mut two) = (rig.task(1), rig.task(2));
    let mut to_a = [vec![0; BLOCK], pattern(1, 1)].concat();
    let mut to_b = [vec![0; BLOCK], pattern(2, 1)].concat();
    let first = begin(&mut rig, &mut one, &mut to_a);
    let second = begin(&mut rig, &mut two, &mut to_b);
    assert!(matches!(second, AdapterStep::Wait));
    assert!(two.on_resumed().is_none(), "it is not its turn");
    assert_eq!(finish(&mut rig, &mut one, first), Status::Good);
    assert_eq!(*rig.woken.0.lock().unwrap(), [2]);
    let second = two.on_resumed().unwrap();
    assert_eq!(finish(&mut rig, &mut two, second), Status::CheckCondition);
    assert_eq!(two.sense()[2], 0xe);
    assert_eq!(rig.disk[..BLOCK], pattern(1, 1));
}

#[test]
fn a_cancelled_waiting_task_leaves_the_queue() {
    let mut rig = Rig::plain();
    let (mut one, mut two, mut three) = (rig.task(1), rig.task(2), rig.task(3));
    let mut memory = vec![0; 3 * 1024];
    let mut parts = memory.chunks_mut(1024);
    let mut part = || parts.next().unwrap();
    let first = begin(&mut rig, &mut one, part());
    assert!(matches!(
        begin(&mut rig, &mut two, part()),
        AdapterStep::Wait
    ));
    assert!(matches!(
        begin(&mut rig, &mut three, part()),
        AdapterStep::Wait
    ));
    assert!(!two.cancel(), "nothing of it is under way");
    assert_eq!(two.status(), Status::TaskAborted);
    assert_eq!(finish(&mut rig, &mut one, first), Status::Good);
    assert_eq!(*rig.woken.0.lock().unwrap(), [3]);
    assert!(two.on_resumed().is_none());
    let third = three.on_resumed().unwrap();
    assert_eq!(finish(&mut rig, &mut three, third), Status::Good);
}

#[test]
fn a_cancelled_running_task_lets_the_next_run_after_its_request() {
    let mut rig = Rig::plain();
    let (mut one, mut two) = (rig.task(1), rig.task(2));
    let mut memory = vec![0; 2 * 1024];
    let (a, b) = memory.split_at_mut(1024);
    let AdapterStep::Submit(request) = begin(&mut rig, &mut one, a) else {
        panic!("it reads first");
    };
    assert!(matches!(begin(&mut rig, &mut two, b), AdapterStep::Wait));
    assert!(one.cancel(), "its request is under way");
    assert!(rig.woken.0.lock().unwrap().is_empty());
    let result = rig.node(request);
    assert!(matches!(
        one.on_step_completed(result),
        AdapterStep::Finished
    ));
    assert_eq!(one.status(), Status::TaskAborted);
    assert_eq!(*rig.woken.0.lock().unwrap(), [2]);
    let second = two.on_resumed().unwrap();
    assert_eq!(finish(&mut rig, &mut two, second), Status::Good);
}

#[test]
fn a_dropped_task_blocks_no_other() {
    let mut rig = Rig::plain();
    let (mut one, mut two) = (rig.task(1), rig.task(2));
    let mut memory = vec![0; 2 * 1024];
    let (a, b) = memory.split_at_mut(1024);
    assert!(matches!(
        begin(&mut rig, &mut one, a),
        AdapterStep::Submit(_)
    ));
    assert!(matches!(begin(&mut rig, &mut two, b), AdapterStep::Wait));
    drop(one);
    assert_eq!(*rig.woken.0.lock().unwrap(), [2]);
    let second = two.on_resumed().unwrap();
    assert_eq!(finish(&mut rig, &mut two, second), Status::Good);
}

#[test]
fn a_task_can_be_reused() {
    let mut rig = Rig::plain();
    let mut task = rig.task(0);
    let mut memory = pattern(5, 2);
    let (phase, _) = rig.start(&mut task, &cdb10(0x2a, 0, 9, 2), &mut memory);
    assert_eq!(phase, DataPhase::DataOut(1024));
    assert_eq!(
        (task.status(), task.transferred_bytes()),
        (Status::Good, 1024)
    );
    rig.start(&mut task, &cdb10(0x28, 0, u32::MAX, 1), &mut memory);
    assert_eq!(task.status(), Status::CheckCondition);
    assert_eq!(task.transferred_bytes(), 0);
    let mut back = vec![0; 1024];
    let (phase, _) = rig.start(&mut task, &cdb10(0x28, 0, 9, 2), &mut back);
    assert_eq!(phase, DataPhase::DataIn(1024));
    assert_eq!(
        (task.status(), task.transferred_bytes()),
        (Status::Good, 1024)
    );
    assert!(task.sense().is_empty());
    assert_eq!(back, memory);
    assert_eq!(task.lun(), LUN);
}

#[test]
fn a_cancelled_read_ends_with_its_request() {
    let mut rig = Rig::plain();
    let mut task = rig.task(0);
    let mut memory = vec![0; 512];
    task.receive(&mut rig.view, LUN, NexusNumber(0), &cdb10(0x28, 0, 0, 1));
    let mut list = rig.segments(&mut memory);
    // SAFETY: memory and list stay.
    let step = unsafe { task.run(list.as_mut_ptr(), 1, 512) };
    let AdapterStep::Submit(request) = step else {
        panic!("{step:?}");
    };
    assert!(task.cancel());
    let result = rig.node(request);
    assert!(matches!(
        task.on_step_completed(result),
        AdapterStep::Finished
    ));
    assert_eq!(
        (task.status(), task.transferred_bytes()),
        (Status::TaskAborted, 0)
    );
}
