//! Runs of plain reads and writes, and commands that interrupt them.

use std::sync::Arc;

use block::Op;
use engine::{Completion, Errno};
use telemetry::queue::RequestKind;

use crate::harness::{
    Asked, BLOCK, DISKS, GOOD, READ, RESPONSE, Requests, Rig, WRITE, cdb10, pattern,
};

fn reads(rig: &mut Rig, count: u32) -> Vec<Asked> {
    let asked = (0..count).map(|lba| rig.ask(DISKS[0], &cdb10(READ, lba, 1), &[], BLOCK));
    asked.collect()
}

/// What was asked of the disks, done like this.
fn done(rig: &mut Rig, results: &[Result<(), Errno>]) -> Vec<Completion> {
    let submitted = rig.queues[0].disks.submitted.drain(..);
    let completions = submitted
        .zip(results)
        .map(|((_, request), result)| Completion {
            token: request.token,
            result: *result,
        });
    completions.collect()
}

fn figures(rig: &Rig, kind: RequestKind) -> (u64, u64, u64) {
    let queue = &rig.queues[0];
    let of = |stats: &telemetry::queue::QueueStats| {
        let kind = stats.of_kind(kind);
        (kind.latency.total(), kind.bytes.get(), kind.failed.get())
    };
    let mut disks = (0, 0, 0);
    for disk in &queue.counted {
        let (count, bytes, failed) = of(&disk.stats);
        disks = (disks.0 + count, disks.1 + bytes, disks.2 + failed);
    }
    assert_eq!(
        of(&queue.stats),
        disks,
        "each counts for its queue and its disk"
    );
    disks
}

#[test]
fn completions_of_one_slice_are_all_answered_and_counted() {
    let mut rig = Rig::new();
    let asked = reads(&mut rig, 5);
    let elsewhere = rig.ask(DISKS[1], &cdb10(READ, 0, 1), &[], BLOCK);
    let write = rig.ask(DISKS[0], &cdb10(WRITE, 9, 2), &pattern(1, 2), 0);
    rig.admit(0, 10).unwrap();
    let in_flight = |rig: &Rig| {
        rig.queues[0]
            .counted
            .iter()
            .map(|disk| disk.stats.in_flight().get())
            .collect::<Vec<_>>()
    };
    assert_eq!(in_flight(&rig), [6, 1, 0]);
    let completions = done(&mut rig, &[Ok(()); 7]);
    rig.queues[0].now = 500;
    rig.queues[0].complete_these(&completions);
    rig.settle();
    for asked in asked.iter().chain([&write, &elsewhere]) {
        assert_eq!(rig.answer(asked), GOOD);
    }
    assert_eq!(figures(&rig, RequestKind::Read), (6, 6 * BLOCK as u64, 0));
    assert_eq!(figures(&rig, RequestKind::Write), (1, 2 * BLOCK as u64, 0));
    assert_eq!(rig.queues[0].stats.last_success_ticks().get(), 500);
    for (disk, reads) in rig.queues[0].counted.iter().zip([5, 1, 0]) {
        assert_eq!(disk.stats.of_kind(RequestKind::Read).latency.total(), reads);
    }
    assert_eq!(in_flight(&rig), [0; 3]);
    assert_eq!(rig.queues[0].queue.in_flight_count(), 0);
}

#[test]
fn a_failed_read_reports_its_error_and_others_of_the_slice_succeed() {
    let mut rig = Rig::new();
    let asked = reads(&mut rig, 5);
    rig.admit(0, 10).unwrap();
    let results = [Ok(()), Ok(()), Err(Errno::IO), Ok(()), Ok(())];
    let completions = done(&mut rig, &results);
    rig.queues[0].complete_these(&completions);
    rig.settle();
    for (asked, result) in asked.iter().zip(results) {
        let answer = rig.answer(asked);
        match result {
            Ok(()) => assert_eq!(answer, GOOD),
            Err(_) => {
                assert_eq!((answer.status, answer.residual), (2, BLOCK as u32));
                assert_eq!(answer.sense, Some((0xb, 6)));
            }
        }
    }
    assert_eq!(figures(&rig, RequestKind::Read), (4, 4 * BLOCK as u64, 1));
    assert_eq!(rig.queues[0].counted[0].stats.in_flight().get(), 0);
}

#[test]
fn an_ordered_command_starts_when_the_last_plain_one_is_done() {
    let mut rig = Rig::new();
    let mut asked = reads(&mut rig, 2);
    asked.push(rig.ask(DISKS[0], &cdb10(WRITE, 9, 1), &pattern(1, 1), 0));
    let header = rig.header(DISKS[0], 1, &cdb10(READ, 7, 1));
    let ordered = rig.ask_by(0, &header, &[], BLOCK);
    rig.admit(0, 10).unwrap();
    let completions = done(&mut rig, &[Ok(()); 3]);
    rig.queues[0].complete_these(&completions[..2]);
    assert!(rig.queues[0].disks.submitted.is_empty(), "one is under way");
    rig.queues[0].complete_these(&completions[2..]);
    assert_eq!(rig.queues[0].disks.submitted.len(), 1);
    rig.settle();
    for asked in asked.iter().chain([&ordered]) {
        assert_eq!(rig.answer(asked), GOOD);
    }
    let lengths: Vec<u32> = rig.used(0).iter().map(|(_, written)| *written).collect();
    let read = (RESPONSE + BLOCK) as u32;
    assert_eq!(lengths, [read, read, RESPONSE as u32, read]);
    assert_eq!(figures(&rig, RequestKind::Read), (3, 3 * BLOCK as u64, 0));
    assert_eq!(figures(&rig, RequestKind::Write), (1, BLOCK as u64, 0));
}

#[test]
fn a_command_that_interrupts_a_run_does_not_exceed_the_room_of_the_disk() {
    let mut rig = Rig::new();
    rig.queues[0].disks.room = 4;
    let mut asked = reads(&mut rig, 2);
    // Has requests of its own: VERIFY, of the medium.
    asked.push(rig.ask(DISKS[0], &cdb10(0x2f, 0, 1), &[], 0));
    asked.extend(reads(&mut rig, 4));
    rig.admit(0, 10).unwrap();
    assert_eq!(rig.queues[0].disks.submitted.len(), 4);
    rig.settle();
    for asked in &asked {
        assert_eq!(rig.answer(asked), GOOD);
    }
}

#[test]
fn a_removed_unit_is_noticed_by_the_next_batch() {
    let mut rig = Rig::new();
    let before = reads(&mut rig, 1);
    rig.admit(0, 10).unwrap();
    rig.device.remove_unit_and_report(DISKS[0]).unwrap();
    let after = reads(&mut rig, 1);
    rig.admit(0, 10).unwrap();
    // What was under way has no unit any more to ask how errors look.
    let completions = done(&mut rig, &[Err(Errno::IO)]);
    rig.queues[0].complete_these(&completions);
    rig.settle();
    let failed = rig.answer(&before[0]);
    assert_eq!((failed.status, failed.sense), (2, Some((0xb, 6))));
    assert_ne!(rig.answer(&after[0]), GOOD);
    assert_eq!(rig.queues[0].queue.in_flight_count(), 0);
}

/// What a unit holds, such as a locked file of reservations, is free when the unit was removed and its last command is done.
#[test]
fn transfers_of_tasks_do_not_hold_their_unit_when_they_are_done() {
    let cdb12 = |opcode, flags| [opcode, flags, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    for (cdb, data, answer) in [
        (&cdb10(READ, 0, 1)[..], vec![], BLOCK),
        (&cdb10(WRITE, 0, 1), pattern(1, 1), 0),
        (&[0x08, 0, 0, 0, 1, 0], vec![], BLOCK),
        (&cdb12(0xa8, 0), vec![], BLOCK),
        (&cdb12(0xaa, 0x08), pattern(1, 1), 0),
    ] {
        let mut rig = Rig::new();
        rig.ask(DISKS[0], cdb, &data, answer);
        let header = rig.header(DISKS[0], 1, &cdb10(READ, 7, 1));
        rig.ask_by(0, &header, &[], BLOCK);
        rig.admit(0, 10).unwrap();
        rig.settle();
        let unit = rig.device.remove_unit_and_report(DISKS[0]).unwrap();
        rig.queues[0].queue.set_disks_if_idle(&[]);
        assert_eq!(Arc::strong_count(&unit), 1, "{cdb:x?}");
    }
}

#[test]
fn an_address_of_zeroes_is_a_bad_target_before_any_other_was_used() {
    let mut rig = Rig::new();
    let counted = std::mem::take(&mut rig.queues[0].counted);
    rig.queues[0].queue.set_disks_if_idle(&counted);
    rig.queues[0].counted = counted;
    let mut header = rig.header(DISKS[0], 0, &cdb10(READ, 0, 1));
    header[..8].fill(0);
    let asked = rig.ask_by(0, &header, &[], BLOCK);
    rig.settle();
    let answer = rig.answer(&asked);
    assert_eq!(
        (answer.response, answer.residual),
        (3, BLOCK as u32),
        "BAD TARGET"
    );
    assert_eq!(figures(&rig, RequestKind::Read), (0, 0, 0));
}

#[test]
fn a_failed_or_aborted_command_has_only_its_response_written() {
    const ABORT_TASK: u32 = 0;
    let mut rig = Rig::new();
    // One slot has them all, one after the other.
    for (abort, result) in [
        (true, Ok(())),
        (false, Err(Errno::IO)),
        (true, Err(Errno::IO)),
    ] {
        for writes in [false, true] {
            let asked = match writes {
                false => rig.ask(DISKS[1], &cdb10(READ, 0, 2), &[], 2 * BLOCK),
                true => rig.ask(DISKS[1], &cdb10(WRITE, 0, 2), &pattern(1, 2), 0),
            };
            rig.admit(0, 10).unwrap();
            let tag = rig.tag();
            let ended = abort.then(|| rig.manage(ABORT_TASK, DISKS[1], tag));
            rig.queues[0].read_mail();
            assert!(!rig.answered(&asked), "its disk has it");
            let completions = done(&mut rig, &[result]);
            let slot = (completions[0].token & u64::from(u32::MAX)) as u32;
            let queue = &rig.queues[0].queue;
            assert_eq!(
                (queue.disk_index_of_command(slot), queue.is_read(slot)),
                (Some(1), !writes)
            );
            rig.queues[0].complete_these(&completions);
            let answer = rig.answer(&asked);
            assert_eq!(answer.residual, 2 * BLOCK as u32);
            match abort {
                true => assert_eq!((answer.response, answer.status), (2, 0), "ABORTED"),
                false => assert_eq!((answer.response, answer.status), (0, 2)),
            }
            assert_eq!(rig.used(0), [(asked.head, RESPONSE as u32)]);
            rig.settle();
            if let Some(ended) = ended {
                assert_eq!(rig.byte(ended), 0, "the function is complete");
            }
        }
    }
    assert_eq!(figures(&rig, RequestKind::Read), (0, 0, 2));
    assert_eq!(figures(&rig, RequestKind::Write), (0, 0, 2));
    assert_eq!(rig.queues[0].counted[1].stats.in_flight().get(), 0);
}

#[test]
fn each_command_of_an_older_generation_is_released_once() {
    let mut rig = Rig::new();
    let mut before = reads(&mut rig, 3);
    before.push(rig.ask(DISKS[0], &cdb10(0x35, 0, 0), &[], 0));
    rig.admit(0, 10).unwrap();
    let generation = rig.queues[0].queue.begin_generation();
    let after = reads(&mut rig, 2);
    rig.admit(0, 10).unwrap();
    let completions = done(&mut rig, &[Ok(()); 6]);
    rig.queues[0].complete_these(&completions);
    for _ in &before {
        let taken = rig.queues[0].queue.pop_finished_of_older_generation();
        assert!(taken.is_some_and(|taken| taken < generation));
    }
    assert_eq!(rig.queues[0].queue.pop_finished_of_older_generation(), None);
    for asked in before.iter().chain(&after) {
        assert_eq!(rig.answer(asked), GOOD);
    }
    assert_eq!(figures(&rig, RequestKind::Read).0, 5);
}

#[test]
fn sense_data_of_a_failed_read_has_the_configured_format() {
    let mut rig = Rig::new();
    // D_SENSE, of the control mode page.
    let (_, mut list) = rig.command(DISKS[0], &[0x1a, 8, 0x0a, 0, 16, 0], &[], 16);
    list[..4].fill(0);
    list[6] |= 4;
    let select = [0x15, 0x10, 0, 0, 16, 0];
    assert_eq!(rig.command(DISKS[0], &select, &list, 0).0, GOOD);
    let asked = reads(&mut rig, 1);
    rig.admit(0, 10).unwrap();
    let completions = done(&mut rig, &[Err(Errno::IO)]);
    rig.queues[0].complete_these(&completions);
    assert_eq!(rig.memory.read(asked[0].response + 12, 1), [0x72]);
}

#[test]
fn an_ordered_command_does_not_wait_for_unpublished_ones() {
    let mut rig = Rig::new();
    reads(&mut rig, 2);
    rig.admit(0, 10).unwrap();
    let completions = done(&mut rig, &[Ok(()); 2]);
    let Requests {
        queue, ring, disks, ..
    } = &mut rig.queues[0];
    queue.complete_block_requests(ring, &completions, 0, disks, |_, _, _| {});
    let header = rig.header(DISKS[0], 1, &cdb10(READ, 7, 1));
    let ordered = rig.ask_by(0, &header, &[], BLOCK);
    rig.admit(0, 10).unwrap();
    assert_eq!(rig.queues[0].disks.submitted.len(), 1, "it goes at once");
    rig.settle();
    assert_eq!(rig.answer(&ordered), GOOD);
    assert_eq!(figures(&rig, RequestKind::Read).0, 3);
}

/// The write cache is turned off through one queue while writes of another are in flight.
#[test]
fn write_in_flight_when_the_cache_is_turned_off_is_flushed_before_it_is_answered() {
    let mut rig = Rig::with_queues(2);
    let header = rig.header(DISKS[0], 0, &cdb10(WRITE, 0, 1));
    let write = rig.ask_by(1, &header, &pattern(1, 1), 0);
    let header = rig.header(DISKS[0], 0, &cdb10(READ, 8, 1));
    let read = rig.ask_by(1, &header, &[], BLOCK);
    rig.admit(1, 10).unwrap();
    let in_flight = std::mem::take(&mut rig.queues[1].disks.submitted);
    assert_eq!(in_flight.len(), 2);

    let (_, caching) = rig.command(DISKS[0], &[0x1a, 8, 8, 0, 24, 0], &[], 24);
    let mut list = [&[0; 4], &caching[4..]].concat();
    list[4 + 2] &= !0x04;
    let select = rig.ask(DISKS[0], &[0x15, 0x10, 0, 0, 24, 0], &list, 0);
    rig.admit(0, 10).unwrap();
    rig.queues[0].complete_all();
    assert_eq!(rig.answer(&select), GOOD);

    let completions: Vec<_> = in_flight
        .iter()
        .map(|(_, request)| Completion {
            token: request.token,
            result: Ok(()),
        })
        .collect();
    rig.queues[1].complete_these(&completions);
    assert!(!rig.answered(&write));
    assert_eq!(rig.answer(&read), GOOD);
    let flush = &rig.queues[1].disks.submitted;
    assert_eq!(flush.len(), 1);
    assert_eq!(flush[0].1.op, Op::Flush);
    rig.settle();
    assert_eq!(rig.answer(&write), GOOD);
    let writes = rig.queues[1].stats.of_kind(RequestKind::Write);
    assert_eq!(writes.latency.total(), 1);
}
