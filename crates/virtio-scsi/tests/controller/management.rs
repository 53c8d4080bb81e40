//! Task management functions, whichever queue has the commands.

use virtio_scsi::AdmitError;

use crate::harness::{Asked, BLOCK, DISKS, GOOD, READ, Rig, UNANSWERED, WRITE, at, cdb10, pattern};

const ABORT_TASK: u32 = 0;
const ABORT_TASK_SET: u32 = 1;
const CLEAR_ACA: u32 = 2;
const CLEAR_TASK_SET: u32 = 3;
const I_T_NEXUS_RESET: u32 = 4;
const LUN_RESET: u32 = 5;
const QUERY_TASK: u32 = 6;
const QUERY_TASK_SET: u32 = 7;

const COMPLETE: u8 = 0;
const ABORTED: u8 = 2;
const BAD_TARGET: u8 = 3;
const RESET: u8 = 4;
const FAILURE: u8 = 9;
const SUCCEEDED: u8 = 10;
const REJECTED: u8 = 11;
const INCORRECT_LUN: u8 = 12;

/// A read that its disk has; with its tag.
fn start(rig: &mut Rig, queue: usize, disk: usize) -> (Asked, u64) {
    let header = rig.header(DISKS[disk], 0, &cdb10(READ, 0, 1));
    let asked = rig.ask_by(queue, &header, &[], BLOCK);
    rig.admit(queue, 10).unwrap();
    (asked, rig.tag())
}

/// Brings all mail of queues for commands.
fn bring_mail(rig: &mut Rig) {
    for queue in &mut rig.queues {
        queue.read_mail();
    }
}

#[test]
fn a_function_completes_when_the_kernel_has_finished_its_commands() {
    let mut rig = Rig::with_queues(2);
    let (other, _) = start(&mut rig, 0, 0);
    let (meant, tag) = start(&mut rig, 1, 0);
    let answer = rig.manage(ABORT_TASK, DISKS[0], tag);
    bring_mail(&mut rig);
    for queue in 0..2 {
        // The rings are empty: nothing is meant that lies there.
        rig.admit(queue, 10).unwrap();
    }
    assert_eq!(rig.control_mail.0.lock().unwrap().len(), 0, "not yet");
    assert!(!rig.answered(&meant));
    rig.settle();
    assert_eq!(rig.byte(answer), COMPLETE);
    assert_eq!(rig.answer(&meant).response, ABORTED);
    assert_eq!(rig.answer(&other), GOOD);
    assert!(rig.control.take_has_unpublished());
}

#[test]
fn aborted_commands_in_the_ring_never_begin() {
    for function in [ABORT_TASK, ABORT_TASK_SET, CLEAR_TASK_SET] {
        let mut rig = Rig::new();
        let other = rig.ask(DISKS[1], &cdb10(READ, 0, 1), &[], BLOCK);
        let write = rig.header(DISKS[0], 0, &cdb10(WRITE, 0, 1));
        let tag = rig.tag();
        let meant = rig.ask_by(0, &write, &pattern(7, 1), 0);
        let answer = rig.manage(function, DISKS[0], tag);
        bring_mail(&mut rig);
        assert_eq!(rig.byte(answer), UNANSWERED);
        assert!(rig.queues[0].queue.has_ring_cancellations());
        rig.settle();
        assert_eq!(rig.byte(answer), COMPLETE);
        assert_eq!(rig.answer(&meant).response, ABORTED);
        assert_eq!(rig.answer(&other), GOOD);
        assert_eq!(rig.queues[0].disks.bytes[0][0], 0, "nothing was written");
        // What comes later is not meant.
        let later = rig.ask_by(0, &write, &pattern(7, 1), 0);
        rig.settle();
        assert_eq!(rig.answer(&later), GOOD);
    }
}

#[test]
fn a_reset_ends_commands_of_its_units_on_all_queues_and_raises_a_unit_attention() {
    for (function, address, reset, attention) in [
        (LUN_RESET, DISKS[1], &[1][..], 0x2900),
        // All units of the target.
        (I_T_NEXUS_RESET, at(0, 77), &[0, 1][..], 0x2907),
    ] {
        let mut rig = Rig::with_queues(3);
        let mut meant = Vec::new();
        for (queue, disk) in (0..3).flat_map(|queue| reset.iter().map(move |disk| (queue, *disk))) {
            meant.push(start(&mut rig, queue, disk).0);
        }
        let other = start(&mut rig, 0, 2).0;
        let answer = rig.manage(function, address, 0);
        bring_mail(&mut rig);
        rig.settle();
        assert_eq!(rig.byte(answer), COMPLETE);
        for asked in &meant {
            assert_eq!(rig.answer(asked).response, RESET);
        }
        assert_eq!(rig.answer(&other), GOOD);
        for queue in 0..3 {
            rig.used(queue);
        }
        for disk in reset {
            let (answer, _) = rig.command(DISKS[*disk], &[0; 6], &[], 0);
            assert_eq!(answer.sense, Some((6, attention)));
        }
        assert_eq!(rig.command(DISKS[2], &[0; 6], &[], 0).0, GOOD);
    }
}

#[test]
fn waiting_commands_are_aborted_at_once() {
    let mut rig = Rig::new();
    let (first, _) = start(&mut rig, 0, 0);
    let ordered = rig.header(DISKS[0], 1, &cdb10(WRITE, 0, 1));
    let tag = rig.tag();
    let ordered = rig.ask_by(0, &ordered, &pattern(1, 1), 0);
    let last = rig.ask(DISKS[0], &cdb10(READ, 1, 1), &[], BLOCK);
    rig.admit(0, 10).unwrap();
    assert_eq!(rig.queues[0].disks.submitted.len(), 1);
    let answer = rig.manage(ABORT_TASK, DISKS[0], tag);
    bring_mail(&mut rig);
    assert_eq!(rig.answer(&ordered).response, ABORTED);
    assert!(rig.queues[0].queue.take_pushed_outside_completions());
    assert_eq!(
        rig.queues[0].disks.submitted.len(),
        2,
        "the command that waited for it starts"
    );
    rig.settle();
    assert_eq!(rig.byte(answer), COMPLETE);
    for asked in [first, last] {
        assert_eq!(rig.answer(&asked), GOOD);
    }
}

#[test]
fn commands_that_wait_for_each_other_are_all_aborted() {
    let mut rig = Rig::new();
    let mut asked = vec![start(&mut rig, 0, 0).0];
    for attribute in [1, 0, 1, 1, 0, 0] {
        let header = rig.header(DISKS[0], attribute, &cdb10(READ, 0, 1));
        asked.push(rig.ask_by(0, &header, &[], BLOCK));
    }
    rig.queues[0].disks.room = 0;
    asked.push(rig.ask(DISKS[1], &cdb10(READ, 0, 1), &[], BLOCK));
    rig.admit(0, 100).unwrap();
    let answer = rig.manage(I_T_NEXUS_RESET, DISKS[0], 0);
    bring_mail(&mut rig);
    assert_eq!(
        rig.queues[0].queue.in_flight_count(),
        1,
        "what the kernel has"
    );
    assert!(!rig.queues[0].queue.has_deferred());
    rig.settle();
    assert_eq!(rig.byte(answer), COMPLETE);
    for asked in &asked {
        assert_eq!(rig.answer(asked).response, RESET);
    }
    rig.used(0);
    for disk in [DISKS[0], DISKS[1]] {
        let (answer, _) = rig.command(disk, &[0; 6], &[], 0);
        assert_eq!(answer.sense, Some((6, 0x2907)));
        assert_eq!(rig.command(disk, &cdb10(READ, 0, 1), &[], BLOCK).0, GOOD);
    }
}

#[test]
fn a_compare_and_write_that_waits_for_another_can_be_ended() {
    let mut rig = Rig::with_queues(2);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    let both = [vec![0; BLOCK], pattern(1, 1)].concat();
    let asked = [0, 1].map(|queue| {
        let header = rig.header(DISKS[0], 0, &cdb);
        let asked = rig.ask_by(queue, &header, &both, 0);
        rig.admit(queue, 1).unwrap();
        asked
    });
    rig.manage(ABORT_TASK, DISKS[0], rig.tag());
    bring_mail(&mut rig);
    assert_eq!(rig.answer(&asked[1]).response, ABORTED);
    rig.settle();
    assert_eq!(rig.answer(&asked[0]), GOOD);
}

#[test]
fn queries_find_and_end_nothing() {
    let mut rig = Rig::new();
    let (asked, tag) = start(&mut rig, 0, 0);
    for (function, disk, tag, expected) in [
        (QUERY_TASK, 0, tag, SUCCEEDED),
        (QUERY_TASK, 0, tag + 1, COMPLETE),
        (QUERY_TASK, 1, tag, COMPLETE),
        (QUERY_TASK_SET, 0, 0, SUCCEEDED),
        (QUERY_TASK_SET, 1, 0, COMPLETE),
    ] {
        let answer = rig.manage(function, DISKS[disk], tag);
        bring_mail(&mut rig);
        for message in rig.control_mail.take() {
            if let virtio_scsi::QueueMessage::TmfEnded(outcome) = message {
                rig.control
                    .apply_resets_and_answer_tmf(&mut rig.control_ring, &outcome);
            }
        }
        assert_eq!(rig.byte(answer), expected, "{function} {tag}");
    }
    rig.settle();
    assert_eq!(rig.answer(&asked), GOOD);
}

#[test]
fn unsupported_functions_are_rejected() {
    let mut rig = Rig::new();
    for (function, address, expected) in [
        (CLEAR_ACA, DISKS[0], REJECTED),
        (99, DISKS[0], REJECTED),
        (LUN_RESET, at(0, 5), INCORRECT_LUN),
        (LUN_RESET, at(9, 0), BAD_TARGET),
        (I_T_NEXUS_RESET, at(9, 0), BAD_TARGET),
    ] {
        let answer = rig.manage(function, address, 0);
        assert_eq!(rig.byte(answer), expected, "{function} {address}");
    }
    // Asynchronous events: there are none.
    for kind in [1_u32, 2] {
        let ask = |rig: &mut Rig, address: virtio_scsi::Address| {
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend(address.encode());
            bytes.extend([0xff; 4]);
            rig.control(&bytes, 5).unwrap()
        };
        let answer = ask(&mut rig, DISKS[0]);
        assert_eq!(rig.memory.read(answer, 6), [0, 0, 0, 0, 0, UNANSWERED]);
        let answer = ask(&mut rig, at(9, 0));
        assert_eq!(rig.byte(answer + 4), BAD_TARGET);
    }
}

#[test]
fn a_stopping_control_queue_fails_pending_functions() {
    let mut rig = Rig::new();
    let (asked, tag) = start(&mut rig, 0, 0);
    let answer = rig.manage(ABORT_TASK, DISKS[0], tag);
    bring_mail(&mut rig);
    rig.control.fail_pending_tmfs(&mut rig.control_ring);
    assert_eq!(rig.byte(answer), FAILURE);
    rig.settle();
    assert_eq!(rig.byte(answer), FAILURE);
    assert_eq!(rig.answer(&asked).response, ABORTED);
}

#[test]
fn a_malformed_request_breaks_the_control_queue() {
    let tmf = [[0; 16], [0; 16]].concat();
    for (bytes, room) in [
        (&tmf[..3], 1),
        (&tmf[..23], 1),
        (&tmf[..24], 0),
        (&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4),
        (&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 5),
        (&[3, 0, 0, 0], 1),
    ] {
        let broken = Rig::new().control(bytes, room);
        assert!(matches!(broken, Err(AdmitError::Request(_))), "{bytes:?}");
    }
}
