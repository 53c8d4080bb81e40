//! Mode pages.

use block::Op;
use engine::Errno;
use scsi::{AdapterStep, NexusNumber};

use crate::rig::{BLOCK, Rig, cdb10, options};

fn sense6(page: u8, values: u8) -> [u8; 6] {
    [0x1a, 0x08, values << 6 | page, 0, 255, 0]
}

/// MODE SELECT(6) with a page behind an empty header.
fn select(rig: &mut Rig, page: &[u8]) -> scsi::Status {
    let list = [&[0, 0, 0, 0], page].concat();
    let len = u8::try_from(list.len()).unwrap();
    let reply = rig.send(&[0x15, 0x10, 0, 0, len, 0], &list);
    reply.status
}

/// A request for a flush.
const FLUSH: (Op, bool, u64, u64) = (Op::Flush, false, 0, 0);

/// MODE SELECT of a caching page without WCE.
fn turn_cache_off(rig: &mut Rig) -> scsi::Status {
    let mut caching = rig.data(&sense6(0x08, 0))[4..].to_vec();
    caching[2] &= !0x04;
    select(rig, &caching)
}

#[test]
fn all_pages_are_returned_in_order() {
    let mut rig = Rig::plain();
    let all = rig.data(&[0x1a, 0, 0x3f, 0, 255, 0]);
    assert_eq!(usize::from(all[0]), all.len() - 1);
    assert_eq!(all[2..4], [0x10, 8], "DPOFUA, a block descriptor");
    assert_eq!(all[4..12], [0, 0, 0x10, 0, 0, 0, 2, 0]);
    let mut at = 12;
    let mut pages = Vec::new();
    while at < all.len() {
        pages.push(all[at]);
        at += 2 + usize::from(all[at + 1]);
    }
    assert_eq!((pages, at), (vec![0x01, 0x08, 0x0a, 0x1c], all.len()));
    let long = rig.data(&[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0, 1, 0, 0]);
    assert_eq!(long[..8], [0, 78, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(long[24..], all[12..]);
    assert_eq!(rig.data(&[0x1a, 0, 0x3f, 0, 4, 0]), all[..4]);
    rig.refused(&sense6(0x0a, 3), &[], 5, 0x3900);
    rig.refused(&sense6(0x02, 0), &[], 5, 0x2400);
    rig.refused(&[0x1a, 0, 0x0a, 1, 255, 0], &[], 5, 0x2400);
    let control = rig.data(&sense6(0x0a, 0));
    let with_subpages = rig.data(&[0x1a, 8, 0x0a, 0xff, 255, 0]);
    assert_eq!(with_subpages, control, "all subpages of a page are itself");
    rig.refused(&[0x1a, 0, 0x02, 0xff, 255, 0], &[], 5, 0x2400);
    rig.refused(&[0x1a, 0, 0x3f, 1, 255, 0], &[], 5, 0x2400);
}

#[test]
fn a_write_cache_that_is_off_makes_writes_stable() {
    let mut rig = Rig::plain();
    let caching = rig.data(&sense6(0x08, 0))[4..].to_vec();
    assert_eq!(caching[2], 0x04);
    rig.good(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]);
    let mut off = caching.clone();
    off[2] = 0;
    rig.asked.clear();
    assert_eq!(select(&mut rig, &off), scsi::Status::Good);
    assert_eq!(rig.asked, [FLUSH], "what was in the cache is stable");
    let other = rig.by(NexusNumber(1), &[0; 6]).sense_code();
    assert_eq!(other, (6, 0x2a01), "others hear of it");
    assert_eq!(rig.ask(&[0; 6]).sense_code(), (0, 0), "and not who did it");
    rig.asked.clear();
    rig.good(&cdb10(0x2a, 0, 0, 1), &[2; BLOCK]);
    rig.good(&[0x0a, 0, 0, 0, 1, 0], &[2; BLOCK]);
    rig.good(&cdb10(0x41, 0, 0, 4), &[2; BLOCK]);
    assert!(rig.asked.iter().all(|(_, fua, ..)| *fua));
    let default = rig.data(&sense6(0x08, 2));
    assert_eq!(default[6], 0x04);
    assert_eq!(rig.data(&sense6(0x08, 1))[6], 0x04, "it can be changed");
}

#[test]
fn software_write_protection_applies_to_all_initiators() {
    let mut rig = Rig::plain();
    let mut control = rig.data(&sense6(0x0a, 0))[4..].to_vec();
    control[4] |= 0x08;
    assert_eq!(select(&mut rig, &control), scsi::Status::Good);
    assert_eq!(rig.data(&sense6(0x0a, 0))[2], 0x90, "WP");
    rig.refused(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK], 7, 0x2702);
    assert_eq!(rig.data(&cdb10(0x28, 0, 0, 1)).len(), BLOCK);
    control[4] &= !0x08;
    assert_eq!(select(&mut rig, &control), scsi::Status::Good);
    rig.good(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]);
}

#[test]
fn d_sense_selects_the_format_of_sense_data() {
    let mut rig = Rig::plain();
    let beyond = cdb10(0x28, 0, u32::MAX, 1);
    assert_eq!(rig.ask(&beyond).sense[0], 0x70);
    let mut control = rig.data(&sense6(0x0a, 0))[4..].to_vec();
    control[2] |= 0x04;
    assert_eq!(select(&mut rig, &control), scsi::Status::Good);
    let reply = rig.ask(&beyond);
    assert_eq!((reply.sense[0], reply.sense_code()), (0x72, (5, 0x2100)));
}

#[test]
fn an_invalid_list_changes_nothing() {
    let mut rig = Rig::plain();
    let mut both = rig.data(&sense6(0x08, 0))[4..].to_vec();
    both[2] = 0;
    let control = rig.data(&sense6(0x0a, 0))[4..].to_vec();
    both.extend(&control);
    let last = both.len() - 1;
    both[last] ^= 1;
    let list = [&[0, 0, 0, 0], both.as_slice()].concat();
    let len = u8::try_from(list.len()).unwrap();
    let reply = rig.send(&[0x15, 0x10, 0, 0, len, 0], &list);
    assert_eq!(reply.sense_code(), (5, 0x2600));
    assert_eq!(reply.sense[15..18], [0x88, 0, len - 1], "the wrong byte");
    assert_eq!(rig.data(&sense6(0x08, 0))[6], 0x04, "the cache is on");

    let cut = &list[..10];
    rig.refused(&[0x15, 0x10, 0, 0, 10, 0], cut, 5, 0x1a00);
    rig.refused(&[0x15, 0x10, 0, 0, 3, 0], &[0; 3], 5, 0x1a00);
    rig.refused(&[0x15, 0x11, 0, 0, 4, 0], &[0; 4], 5, 0x2400);
    rig.refused(&[0x15, 0, 0, 0, 4, 0], &[0; 4], 5, 0x2400);
    rig.good(&[0x15, 0x10, 0, 0, 0, 0], &[]);
    rig.good(&[0x15, 0x10, 0, 0, 4, 0], &[0; 4]);
}

#[test]
fn mode_select_cannot_change_the_block_descriptor() {
    let mut rig = Rig::plain();
    let descriptor = |blocks: u32, block: u32| {
        let block = block.to_be_bytes();
        let mut list = vec![0, 0, 0, 8];
        list.extend(blocks.to_be_bytes());
        list.extend([0, block[1], block[2], block[3]]);
        list
    };
    let cdb = [0x15, 0x10, 0, 0, 12, 0];
    for blocks in [0, 4096, u32::MAX] {
        rig.good(&cdb, &descriptor(blocks, 512));
    }
    rig.refused(&cdb, &descriptor(4095, 512), 5, 0x2600);
    rig.refused(&cdb, &descriptor(4096, 4096), 5, 0x2600);
    let mut long = vec![0, 0, 0, 0, 1, 0, 0, 16];
    long.extend(4096u64.to_be_bytes());
    long.extend([0, 0, 0, 0, 0, 0, 2, 0]);
    rig.good(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, 24, 0], &long);
    long[15] = 1;
    rig.refused(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, 24, 0], &long, 5, 0x2600);
}

#[test]
fn a_write_through_disk_reports_no_write_cache() {
    let mut rig = Rig::new(scsi::UnitOptions {
        write_through: true,
        ..options()
    });
    assert_eq!(rig.data(&sense6(0x08, 0))[6], 0);
    rig.good(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]);
    assert_eq!(rig.asked, [FLUSH, (Op::Write, true, 0, 512)]);
}

/// An initiator takes what they have written as stable. (WRITE AND VERIFY has FUA in any case.)
#[test]
fn writes_in_flight_when_the_cache_is_turned_off_are_flushed_before_their_status() {
    let or_write = [0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let write_same = cdb10(0x41, 0, 0, 1);
    let compare_and_write = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    for (cdb, blocks) in [
        (&cdb10(0x2a, 0, 0, 1)[..], 1),
        (&[0x0a, 0, 0, 0, 1, 0], 1),
        (&write_same, 1),
        (&or_write, 1),
        (&compare_and_write, 2),
    ] {
        let mut rig = Rig::plain();
        let mut running = rig.run(1, rig.nexus, cdb, vec![0; blocks * BLOCK]);
        while !matches!(running.step, AdapterStep::Submit(request) if request.op != Op::Read) {
            rig.step(&mut running);
        }
        assert_eq!(turn_cache_off(&mut rig), scsi::Status::Good);
        rig.asked.clear();
        assert_eq!(rig.finish(running), scsi::Status::Good);
        assert_eq!(rig.asked.last(), Some(&FLUSH), "{cdb:x?}");
        let flushes = rig.asked.iter().filter(|asked| **asked == FLUSH);
        assert_eq!(flushes.count(), 1, "{cdb:x?}");
    }
}

#[test]
fn writes_in_flight_need_no_flush_with_fua_or_with_a_cache() {
    for (fua, off) in [(0x08, true), (0, false)] {
        let mut rig = Rig::plain();
        let write = cdb10(0x2a, fua, 0, 1);
        let running = rig.run(1, rig.nexus, &write, vec![0; BLOCK]);
        if off {
            assert_eq!(turn_cache_off(&mut rig), scsi::Status::Good);
        }
        rig.asked.clear();
        assert_eq!(rig.finish(running), scsi::Status::Good);
        assert_eq!(rig.asked, [(Op::Write, off, 0, 512)]);
    }
}

#[test]
fn cache_stays_on_if_the_flush_of_turning_it_off_fails() {
    let mut rig = Rig::plain();
    rig.error = Some(Errno::IO);
    assert_eq!(turn_cache_off(&mut rig), scsi::Status::CheckCondition);
    rig.error = None;
    assert_eq!(rig.ask(&[0; 6]).sense_code(), (6, 0x2a01));
    assert_eq!(rig.data(&sense6(0x08, 0))[6], 0x04);
    rig.asked.clear();
    rig.good(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]);
    assert_eq!(rig.asked, [(Op::Write, false, 0, 512)]);
}

/// A second command may turn it off while the flush of the first is in flight.
#[test]
fn cache_that_is_off_already_is_flushed_before_it_is_turned_off_again() {
    let mut rig = Rig::plain();
    let mut off = rig.data(&sense6(0x08, 0))[4..].to_vec();
    off[2] = 0;
    let list = [&[0, 0, 0, 0], off.as_slice()].concat();
    let cdb = [0x15, 0x10, 0, 0, u8::try_from(list.len()).unwrap(), 0];
    let first = rig.run(1, rig.nexus, &cdb, list);
    rig.asked.clear();
    assert_eq!(select(&mut rig, &off), scsi::Status::Good);
    assert_eq!(rig.asked, [FLUSH]);
    rig.error = Some(Errno::IO);
    assert_eq!(select(&mut rig, &off), scsi::Status::CheckCondition);
    rig.error = None;
    assert_eq!(rig.data(&sense6(0x08, 0))[6], 0, "it was off before");
    assert_eq!(rig.finish(first), scsi::Status::Good);
}

/// A reset turns off a cache that an initiator had turned on.
#[test]
fn cache_is_flushed_before_it_is_reported_off_after_a_reset() {
    let mut rig = Rig::new(scsi::UnitOptions {
        write_through: true,
        ..options()
    });
    let mut caching = rig.data(&sense6(0x08, 0))[4..].to_vec();
    caching[2] = 0x04;
    assert_eq!(select(&mut rig, &caching), scsi::Status::Good);
    rig.good(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]);
    assert_eq!(rig.asked.pop(), Some((Op::Write, false, 0, 512)));
    rig.unit.reset(scsi::BusOrUnitReset::Unit);
    assert_eq!(rig.ask(&[0; 6]).sense_code(), (6, 0x2900));
    rig.asked.clear();
    caching[2] = 0;
    assert_eq!(select(&mut rig, &caching), scsi::Status::Good);
    assert_eq!(rig.asked, [FLUSH]);
    rig.error = Some(Errno::IO);
    let failed = rig.ask(&sense6(0x3f, 0));
    assert_eq!(failed.status, scsi::Status::CheckCondition);
    rig.error = None;
    rig.asked.clear();
    assert_eq!(rig.data(&sense6(0x08, 0))[6], 0);
    assert_eq!(rig.asked, [FLUSH]);
}
