//! Many initiators of one unit: more than the 16 that have a bit of their own in the word that reads and writes look at, up to as
//! many as can register, and one more.

use scsi::{BusOrUnitReset, NexusNumber, ReservationTextError, Status, Unit};

use crate::persistent::{
    EXCLUSIVE_ACCESS, PREEMPT, PREEMPT_AND_ABORT, REGISTER, REGISTER_AND_IGNORE, REGISTER_AND_MOVE,
    RELEASE, RESERVE, WRITE_EXCLUSIVE, inside, keys_list, may, move_list, out, out_cdb, out_good,
};
use crate::rig::{Rig, geometry, options, ports};

const READY: [u8; 6] = [0; 6];

/// Registrations that a unit has room for, as docs/scsi.md says.
const MOST: u16 = 128;

/// So many share bits of a unit's word.
const BITS: u16 = 16;

const COUNTS: [u16; 3] = [BITS + 1, 64, MOST];

const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
const EXCLUSIVE_ACCESS_ALL: u8 = 8;

fn key(nexus: u16) -> u64 {
    0x1000 + u64::from(nexus)
}

/// The next unit attention of an initiator; (0, 0) for none.
fn next_attention(rig: &mut Rig, nexus: u16) -> (u8, u16) {
    rig.by(NexusNumber(nexus), &READY).sense_code()
}

/// Each initiator gets this attention, and then no other.
#[track_caller]
fn all_get(rig: &mut Rig, count: u16, expected: impl Fn(u16) -> u16) {
    for nexus in 0..count {
        let code = expected(nexus);
        let key = if code == 0 { 0 } else { 6 };
        let found = [(); 2].map(|()| next_attention(rig, nexus));
        assert_eq!(found, [(key, code), (0, 0)], "{nexus} of {count}");
    }
}

/// More initiators join those that a rig has.
fn join(rig: &mut Rig, count: u16) {
    for nexus in 3..count {
        rig.target
            .attach_initiator_and_start_units(NexusNumber(nexus), &ports(NexusNumber(nexus)));
    }
    all_get(rig, count, |nexus| if nexus < 3 { 0 } else { 0x2900 });
}

fn register(rig: &mut Rig, nexus: u16) {
    out_good(rig, nexus, REGISTER, 0, 0, key(nexus));
}

/// So many, each registered.
fn registered(mut rig: Rig, count: u16) -> Rig {
    join(&mut rig, count);
    for nexus in 0..count {
        register(&mut rig, nexus);
    }
    rig
}

/// May read, may write.
#[track_caller]
fn all_may(rig: &mut Rig, count: u16, expected: impl Fn(u16) -> (bool, bool)) {
    for nexus in 0..count {
        let found = may(rig, nexus);
        assert_eq!(found, expected(nexus), "initiator {nexus} of {count}");
    }
}

fn keys(rig: &mut Rig) -> Vec<u64> {
    let answer = inside(rig, 0);
    let keys: Vec<u64> = answer[8..]
        .chunks(8)
        .map(|key| u64::from_be_bytes(key.try_into().unwrap()))
        .collect();
    assert_eq!(answer[4..8], (8 * keys.len() as u32).to_be_bytes());
    keys
}

/// All registrations' ports and whether they hold the unit, from READ FULL STATUS.
fn full_status(rig: &mut Rig) -> Vec<(u64, u16, bool)> {
    let answer = inside(rig, 3);
    assert_eq!(answer[4..8], (answer.len() as u32 - 8).to_be_bytes());
    let each = answer[8..].chunks(48).map(|one| {
        let key = u64::from_be_bytes(one[..8].try_into().unwrap());
        let address = u16::from_be_bytes([one[26], one[27]]);
        (key, address, one[12] & 1 != 0)
    });
    each.collect()
}

#[test]
fn every_initiator_gets_each_attention_once() {
    for count in COUNTS {
        let mut rig = Rig::plain();
        join(&mut rig, count);
        assert!(rig.unit.resize(100 * 512));
        all_get(&mut rig, count, |_| 0x2a09);
        rig.unit.reset(BusOrUnitReset::Unit);
        all_get(&mut rig, count, |_| 0x2900);
        rig.unit.set_read_only(true);
        all_get(&mut rig, count, |_| 0x2a01);
        rig.unit.set_read_only(false);
        all_get(&mut rig, count, |_| 0x2a01);
        // Several attentions are reported in order, whichever initiators send commands in between.
        rig.unit.resize(50 * 512);
        rig.unit.set_read_only(true);
        for code in [0x2a09, 0x2a01] {
            for nexus in (0..count).rev() {
                assert_eq!(next_attention(&mut rig, nexus), (6, code), "{nexus}");
            }
        }
        all_get(&mut rig, count, |_| 0);
    }
}

#[test]
fn attentions_of_one_initiator_do_not_reach_others() {
    for count in COUNTS {
        let mut rig = Rig::plain();
        join(&mut rig, count);
        for one in [0, count - BITS - 1, count - 1] {
            rig.unit.on_nexus_lost(NexusNumber(one));
            all_get(&mut rig, count, |nexus| u16::from(nexus == one) * 0x2907);
            rig.unit.raise_commands_cleared_attention(NexusNumber(one));
            all_get(&mut rig, count, |nexus| u16::from(nexus == one) * 0x2f00);
        }
    }
}

/// A read looks at one bit that several share: it must not be answered for another, nor lose what it has to hear.
#[test]
fn a_read_reports_attentions_of_its_own_initiator_only() {
    let mut rig = Rig::plain();
    join(&mut rig, MOST);
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    for one in 0..MOST {
        rig.unit.raise_commands_cleared_attention(NexusNumber(one));
        for other in (one % BITS..MOST).step_by(BITS.into()) {
            if other != one {
                assert_eq!(rig.by(NexusNumber(other), &read).status, Status::Good);
            }
        }
        assert_eq!(rig.by(NexusNumber(one), &read).sense_code(), (6, 0x2f00));
        assert_eq!(rig.by(NexusNumber(one), &read).status, Status::Good);
    }
}

#[test]
fn all_registrations_are_listed() {
    for count in COUNTS {
        let mut rig = registered(Rig::plain(), count);
        let expected: Vec<u64> = (0..count).map(key).collect();
        assert_eq!(keys(&mut rig), expected);
        let holder = count - 1;
        out_good(&mut rig, holder, RESERVE, WRITE_EXCLUSIVE, key(holder), 0);
        let expected: Vec<_> = (0..count)
            .map(|nexus| (key(nexus), nexus, nexus == holder))
            .collect();
        assert_eq!(full_status(&mut rig), expected);
        assert_eq!(inside(&mut rig, 1)[8..16], key(holder).to_be_bytes());
    }
}

#[test]
fn a_reservation_excludes_initiators_that_share_a_bit() {
    for count in COUNTS {
        for holder in [0, count - 1 - BITS, BITS, count - 1] {
            let mut rig = registered(Rig::plain(), count);
            for (kind, reads) in [(WRITE_EXCLUSIVE, true), (EXCLUSIVE_ACCESS, false)] {
                out_good(&mut rig, holder, RESERVE, kind, key(holder), 0);
                all_may(&mut rig, count, |nexus| match nexus == holder {
                    true => (true, true),
                    false => (reads, false),
                });
                out_good(&mut rig, holder, RELEASE, kind, key(holder), 0);
                all_may(&mut rig, count, |_| (true, true));
            }
        }
    }
}

#[test]
fn only_registrants_have_access_even_if_others_share_their_bits() {
    for count in COUNTS {
        let mut rig = registered(Rig::plain(), count);
        let gone = |nexus: u16| nexus % 3 == 1;
        for nexus in (0..count).filter(|nexus| gone(*nexus)) {
            out_good(&mut rig, nexus, REGISTER, 0, key(nexus), 0);
        }
        out_good(&mut rig, 0, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS, key(0), 0);
        all_may(&mut rig, count, |nexus| (true, !gone(nexus)));
        out_good(&mut rig, 0, RELEASE, WRITE_EXCLUSIVE_REGISTRANTS, key(0), 0);
        all_get(&mut rig, count, |nexus| {
            u16::from(nexus != 0 && !gone(nexus)) * 0x2a04
        });
        out_good(&mut rig, 0, RESERVE, EXCLUSIVE_ACCESS_ALL, key(0), 0);
        all_may(&mut rig, count, |nexus| (!gone(nexus), !gone(nexus)));
    }
}

#[test]
fn preempting_removes_every_registration_of_a_key() {
    for count in COUNTS {
        for action in [PREEMPT, PREEMPT_AND_ABORT] {
            let mut rig = registered(Rig::plain(), count);
            let lost = |nexus: u16| nexus % 2 == 1;
            for nexus in (0..count).filter(|nexus| lost(*nexus)) {
                out_good(&mut rig, nexus, REGISTER, 0, key(nexus), 0xbad);
            }
            out_good(&mut rig, 1, RESERVE, WRITE_EXCLUSIVE, 0xbad, 0);
            out_good(&mut rig, 0, action, EXCLUSIVE_ACCESS, key(0), 0xbad);
            let expected: Vec<u64> = (0..count).filter(|nexus| !lost(*nexus)).map(key).collect();
            assert_eq!(keys(&mut rig), expected);
            let ended = (0..count).filter(|nexus| lost(*nexus)).map(NexusNumber);
            match action {
                PREEMPT => assert!(rig.settled.is_empty()),
                _ => assert_eq!(rig.settled, [ended.collect::<Vec<_>>()]),
            }
            all_get(&mut rig, count, |nexus| match nexus {
                0 => 0,
                nexus if lost(nexus) => 0x2a05,
                _ => 0x2a04,
            });
            all_may(&mut rig, count, |nexus| (nexus == 0, nexus == 0));
        }
    }
}

#[test]
fn a_registration_too_many_is_refused_and_changes_nothing() {
    let mut rig = registered(Rig::plain(), MOST);
    let late = MOST;
    rig.target
        .attach_initiator_and_start_units(NexusNumber(late), &ports(NexusNumber(late)));
    assert_eq!(next_attention(&mut rig, late), (6, 0x2900));
    let before = inside(&mut rig, 3);
    for action in [REGISTER, REGISTER_AND_IGNORE] {
        let reply = out(&mut rig, late, action, 0, 0, key(late));
        assert_eq!(reply.sense_code(), (5, 0x5504), "{action}");
    }
    assert_eq!(inside(&mut rig, 3), before, "with the same generation");

    // It is a stranger, though one who hears of everything.
    out_good(&mut rig, 5, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS, key(5), 0);
    all_may(&mut rig, MOST + 1, |nexus| (true, nexus != late));
    rig.unit.resize(100 * 512);
    all_get(&mut rig, MOST + 1, |_| 0x2a09);

    // Who is registered changes its key and moves its reservation to another that is, but to no other.
    out_good(&mut rig, 5, REGISTER, 0, key(5), 0x77);
    let cdb = out_cdb(REGISTER_AND_MOVE, 0, 48);
    rig.nexus = NexusNumber(5);
    rig.refused(&cdb, &move_list(0x77, 0x88, 0, late), 5, 0x5504);
    rig.good(&cdb, &move_list(0x77, 0x88, 0, 9));
    rig.nexus = NexusNumber(0);
    assert_eq!(inside(&mut rig, 1)[8..16], 0x88u64.to_be_bytes());

    // Who leaves makes room.
    out_good(&mut rig, 3, REGISTER, 0, key(3), 0);
    register(&mut rig, late);
    all_may(&mut rig, MOST + 1, |nexus| (true, nexus != 3));
    assert_eq!(keys(&mut rig).len(), usize::from(MOST));
}

#[test]
fn the_most_registrations_are_saved_and_more_are_not_restored() {
    for count in COUNTS {
        let mut rig = Rig::keeping();
        join(&mut rig, count);
        for nexus in 0..count {
            rig.nexus = NexusNumber(nexus);
            rig.good(&out_cdb(REGISTER, 0, 24), &keys_list(0, key(nexus), 1));
        }
        let holder = count - 1;
        let list = keys_list(key(holder), 0, 0);
        rig.good(&out_cdb(RESERVE, WRITE_EXCLUSIVE, 24), &list);
        let text = rig.kept.texts.lock().unwrap().last().unwrap().clone();

        let restored = Unit::new(options(), geometry()).unwrap();
        restored.restore_reservations(&text).unwrap();
        for nexus in (0..count).map(NexusNumber) {
            restored.attach_initiator_and_start(nexus, ports(nexus));
        }
        let kept = restored.save_state();
        assert_eq!(kept.persistent, text);

        let registrations = text.lines().filter(|line| line.starts_with("registration"));
        assert_eq!(registrations.count(), usize::from(count));
        if count == MOST {
            let line = text.lines().nth(1).unwrap();
            let other = line.replacen(" 1 01", " 2 01", 1);
            assert_ne!(other, line, "another target port");
            let more = text.replacen(line, &format!("{line}\n{other}"), 1);
            let error = restored.restore_reservations(&more);
            let line = usize::from(MOST) + 2;
            assert_eq!(error, Err(ReservationTextError::Line(line)));
            assert_eq!(restored.save_state(), kept, "nothing has changed");
        }
    }
}

/// Numbers need not be small, nor without gaps.
#[test]
fn initiators_may_have_any_number() {
    let mut rig = Rig::plain();
    let numbers = [0, 0x10, 0x7ff0, 0xfff0, 0xffff].map(NexusNumber);
    for nexus in &numbers[1..] {
        rig.target
            .attach_initiator_and_start_units(*nexus, &ports(*nexus));
        assert_eq!(rig.by(*nexus, &READY).sense_code(), (6, 0x2900));
    }
    for holder in numbers {
        let reserve = rig.by(holder, &[0x16, 0, 0, 0, 0, 0]);
        assert_eq!(reserve.status, Status::Good);
        for nexus in numbers {
            assert_eq!(may(&mut rig, nexus.0).1, nexus == holder, "{nexus:?}");
        }
        rig.target.detach_initiator(holder);
        rig.target
            .attach_initiator_and_start_units(holder, &ports(holder));
        assert_eq!(rig.by(holder, &READY).sense_code(), (6, 0x2900));
    }
}
