//! Persistent reservations.

use scsi::{NexusNumber, Status};

use crate::rig::{Reply, Rig, cdb10, ports};

pub const REGISTER: u8 = 0;
pub const RESERVE: u8 = 1;
pub const RELEASE: u8 = 2;
pub const CLEAR: u8 = 3;
pub const PREEMPT: u8 = 4;
pub const PREEMPT_AND_ABORT: u8 = 5;
pub const REGISTER_AND_IGNORE: u8 = 6;
pub const REGISTER_AND_MOVE: u8 = 7;

pub const WRITE_EXCLUSIVE: u8 = 1;
pub const EXCLUSIVE_ACCESS: u8 = 3;

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

pub fn out_cdb(action: u8, kind: u8, len: usize) -> [u8; 10] {
    let len = u8::try_from(len).unwrap();
    [0x5f, action, kind, 0, 0, 0, 0, 0, len, 0]
}

pub fn keys_list(key: u64, new_key: u64, flags: u8) -> Vec<u8> {
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&new_key.to_be_bytes());
    list[20] = flags;
    list
}

/// PERSISTENT RESERVE OUT by one of the initiators.
pub fn out(rig: &mut Rig, nexus: u16, action: u8, kind: u8, key: u64, new_key: u64) -> Reply {
    rig.nexus = NexusNumber(nexus);
    let reply = rig.send(&out_cdb(action, kind, 24), &keys_list(key, new_key, 0));
    rig.nexus = NexusNumber(0);
    reply
}

/// One that must be carried out.
#[track_caller]
pub fn out_good(rig: &mut Rig, nexus: u16, action: u8, kind: u8, key: u64, new_key: u64) {
    let reply = out(rig, nexus, action, kind, key, new_key);
    assert_eq!(reply.status, Status::Good);
}

pub fn inside(rig: &mut Rig, action: u8) -> Vec<u8> {
    rig.data(&[0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0])
}

pub fn may(rig: &mut Rig, nexus: u16) -> (bool, bool) {
    [READ, WRITE]
        .map(|cdb| {
            rig.nexus = NexusNumber(nexus);
            let reply = rig.send(&cdb, &[0; 512]);
            rig.nexus = NexusNumber(0);
            match reply.status {
                Status::Good => true,
                Status::ReservationConflict => false,
                other => panic!("{other:?} {:x?}", reply.sense),
            }
        })
        .into()
}

/// Three registered by keys 0x10, 0x11 and 0x12.
fn registered() -> Rig {
    let mut rig = Rig::plain();
    for nexus in 0..3 {
        out_good(&mut rig, nexus, REGISTER, 0, 0, 0x10 + u64::from(nexus));
    }
    rig
}

#[test]
fn read_keys_lists_registrations() {
    let mut rig = registered();
    let keys = inside(&mut rig, 0);
    assert_eq!(keys[..8], [0, 0, 0, 3, 0, 0, 0, 24]);
    assert_eq!(keys[8..16], 0x10u64.to_be_bytes());
    assert_eq!(rig.data(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0]), keys[..8]);
    assert_eq!(inside(&mut rig, 1), [0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(inside(&mut rig, 2), [0, 8, 0, 0x80, 0xea, 1, 0, 0]);
    let reply = out(&mut rig, 0, REGISTER, 0, 0x99, 0x20);
    assert_eq!(reply.status, Status::ReservationConflict, "a wrong key");
    out_good(&mut rig, 0, REGISTER_AND_IGNORE, 0, 0x99, 0x20);
    assert_eq!(inside(&mut rig, 0)[8..16], 0x20u64.to_be_bytes());
    out_good(&mut rig, 0, REGISTER, 0, 0x20, 0);
    assert_eq!(inside(&mut rig, 0)[..8], [0, 0, 0, 5, 0, 0, 0, 16]);
    out_good(&mut rig, 0, REGISTER, 0, 0, 0);
    assert_eq!(inside(&mut rig, 0)[3], 5, "nothing was done");
    rig.refused(&[0x5e, 4, 0, 0, 0, 0, 0, 0, 8, 0], &[], 5, 0x2400);
    rig.refused(&out_cdb(8, 0, 24), &[0; 24], 5, 0x2400);
}

#[test]
fn full_status_names_initiators() {
    let mut rig = registered();
    out(&mut rig, 1, RESERVE, EXCLUSIVE_ACCESS, 0x11, 0);
    let status = inside(&mut rig, 3);
    assert_eq!(status[4..8], 144u32.to_be_bytes());
    let second = &status[8 + 48..8 + 96];
    assert_eq!(second[..8], 0x11u64.to_be_bytes());
    assert_eq!(second[12..14], [1, EXCLUSIVE_ACCESS]);
    assert_eq!(second[18..24], [0, 1, 0, 0, 0, 24]);
    assert_eq!(second[24..28], [1, 0, 0, 1], "address 1 on a parallel bus");
    assert_eq!(status[8 + 12], 0, "the first holds nothing");
    let reservation = inside(&mut rig, 1);
    assert_eq!(reservation[8..16], 0x11u64.to_be_bytes());
    assert_eq!(reservation[21], EXCLUSIVE_ACCESS);
}

#[test]
fn reservations_exclude_reads_and_writes() {
    // Kind; then holder, registrant and stranger: may read, may write.
    let table = [
        (1, [(true, true), (true, false), (true, false)]),
        (3, [(true, true), (false, false), (false, false)]),
        (5, [(true, true), (true, true), (true, false)]),
        (6, [(true, true), (true, true), (false, false)]),
        (7, [(true, true), (true, true), (true, false)]),
        (8, [(true, true), (true, true), (false, false)]),
    ];
    for (kind, expected) in table {
        let mut rig = registered();
        out(&mut rig, 2, REGISTER, 0, 0x12, 0);
        out_good(&mut rig, 0, RESERVE, kind, 0x10, 0);
        for (nexus, expected) in (0..).zip(expected) {
            assert_eq!(may(&mut rig, nexus), expected, "kind {kind}, {nexus}");
        }
        for cdb in [&[0; 6][..], &[0x12, 0, 0, 0, 96, 0], &cdb10(0x25, 0, 0, 0)] {
            assert_eq!(rig.by(NexusNumber(2), cdb).status, Status::Good);
        }
        let start = rig.by(NexusNumber(2), &[0x1b, 0, 0, 0, 1, 0]);
        assert_eq!(start.status, Status::Good);
        let stop = rig.by(NexusNumber(2), &[0x1b, 0, 0, 0, 0, 0]);
        assert_eq!(stop.status, Status::ReservationConflict);
        out_good(&mut rig, 0, RELEASE, kind, 0x10, 0);
        if kind >= 5 {
            assert_eq!(rig.by(NexusNumber(1), &[0; 6]).sense_code(), (6, 0x2a04));
        }
        assert_eq!(may(&mut rig, 2), (true, true));
        assert_eq!(may(&mut rig, 1), (true, true));
    }
}

#[test]
fn invalid_requests_change_nothing() {
    let mut rig = registered();
    let keys = inside(&mut rig, 0);
    let conflict = (Status::ReservationConflict, (0, 0));
    let refusal = |code| (Status::CheckCondition, (5, code));
    for (action, kind, key, other, expected) in [
        // No such kind, no such scope.
        (RESERVE, 2, 0x10, 0, refusal(0x2400)),
        (RESERVE, 0x11, 0x10, 0, refusal(0x2400)),
        (RESERVE, 1, 0x77, 0, conflict),
        (PREEMPT, 1, 0x10, 0, refusal(0x2600)),
        (PREEMPT, 1, 0x10, 0x77, conflict),
    ] {
        let reply = out(&mut rig, 0, action, kind, key, other);
        assert_eq!((reply.status, reply.sense_code()), expected, "{action}");
    }
    for (flags, byte) in [(8, 0x8b), (4, 0x8a)] {
        let reply = rig.send(&out_cdb(REGISTER, 0, 24), &keys_list(0x10, 1, flags));
        assert_eq!(reply.sense_code(), (5, 0x2600));
        assert_eq!(reply.sense[15..18], [byte, 0, 20]);
    }
    rig.refused(&out_cdb(REGISTER, 0, 28), &[0; 28], 5, 0x1a00);
    rig.refused(&out_cdb(REGISTER, 0, 0), &[], 5, 0x1a00);
    for cdb in [[0x16, 0, 0, 0, 0, 0], [0x17, 0, 0, 0, 0, 0]] {
        assert_eq!(rig.ask(&cdb).status, Status::ReservationConflict);
    }
    assert_eq!(inside(&mut rig, 0), keys);
}

#[test]
fn holder_cannot_reserve_or_release_another_type() {
    let mut rig = registered();
    out_good(&mut rig, 0, RESERVE, WRITE_EXCLUSIVE, 0x10, 0);
    let reply = out(&mut rig, 0, RESERVE, EXCLUSIVE_ACCESS, 0x10, 0);
    assert_eq!(reply.status, Status::ReservationConflict);
    let reply = out(&mut rig, 0, RELEASE, EXCLUSIVE_ACCESS, 0x10, 0);
    assert_eq!(reply.sense_code(), (5, 0x2604));
    out_good(&mut rig, 1, RELEASE, WRITE_EXCLUSIVE, 0x11, 0);
    assert_eq!(may(&mut rig, 1), (true, false));
}

#[test]
fn clearing_raises_attentions_for_all_others() {
    let mut rig = registered();
    out(&mut rig, 1, RESERVE, EXCLUSIVE_ACCESS, 0x11, 0);
    out_good(&mut rig, 0, CLEAR, 0, 0x10, 0);
    assert_eq!(inside(&mut rig, 0), [0, 0, 0, 4, 0, 0, 0, 0]);
    for nexus in [1, 2] {
        let attention = rig.by(NexusNumber(nexus), &[0; 6]).sense_code();
        assert_eq!(attention, (6, 0x2a03));
        assert_eq!(may(&mut rig, nexus), (true, true));
    }
}

/// REGISTER AND MOVE's list.
pub fn move_list(key: u64, new_key: u64, flags: u8, to: u16) -> Vec<u8> {
    let mut list = keys_list(key, new_key, 0);
    list[17] = flags;
    list[19] = 1;
    list[23] = 24;
    let mut id = vec![0; 24];
    (id[0], id[3], id[7]) = (1, u8::try_from(to).unwrap(), 1);
    list.extend(id);
    list
}

#[test]
fn register_and_move_moves_the_reservation() {
    let mut rig = registered();
    out(&mut rig, 2, REGISTER, 0, 0x12, 0);
    let cdb = out_cdb(REGISTER_AND_MOVE, 0, 48);
    // Without a reservation there is nothing to move.
    rig.refused(&cdb, &move_list(0x10, 0x30, 2, 2), 5, 0x2400);
    let reply = rig.send(&cdb, &move_list(0x11, 0x30, 2, 2));
    assert_eq!(reply.status, Status::ReservationConflict);
    out(&mut rig, 0, RESERVE, EXCLUSIVE_ACCESS, 0x10, 0);
    rig.refused(&cdb, &move_list(0x10, 0, 2, 2), 5, 0x2600);
    rig.refused(&cdb, &move_list(0x10, 0x30, 2, 0), 5, 0x2600);
    let mut cut = move_list(0x10, 0x30, 2, 2);
    cut[23] = 20;
    rig.refused(&cdb, &cut, 5, 0x1a00);
    rig.good(&cdb, &move_list(0x10, 0x30, 2, 2));
    assert_eq!(may(&mut rig, 2), (true, true));
    assert_eq!(may(&mut rig, 0), (false, false));
    let reservation = inside(&mut rig, 1);
    assert_eq!(reservation[8..16], 0x30u64.to_be_bytes());
    let keys = inside(&mut rig, 0);
    assert_eq!(keys.len(), 8 + 16, "who gave it away unregistered");
}

#[test]
fn persistent_reservations_survive_a_reset() {
    let mut rig = registered();
    out(&mut rig, 0, RESERVE, WRITE_EXCLUSIVE, 0x10, 0);
    rig.unit.reset(scsi::BusOrUnitReset::Unit);
    rig.unit.on_nexus_lost(NexusNumber(0));
    for nexus in 0..3 {
        while rig.by(NexusNumber(nexus), &[0; 6]).status != Status::Good {}
    }
    assert_eq!(may(&mut rig, 1), (true, false));
    // It is the port that is registered, not the connection.
    rig.target.detach_initiator(NexusNumber(0));
    rig.target
        .attach_initiator_and_start_units(NexusNumber(5), &ports(NexusNumber(0)));
    rig.by(NexusNumber(5), &[0; 6]);
    assert_eq!(may(&mut rig, 5), (true, true));
    assert_eq!(may(&mut rig, 0), (true, false));
}

#[test]
fn aptpl_is_refused_without_a_store() {
    let mut rig = Rig::plain();
    let reply = rig.send(&out_cdb(REGISTER, 0, 24), &keys_list(0, 1, 1));
    assert_eq!(reply.sense_code(), (5, 0x2600));
    assert_eq!(reply.sense[15..18], [0x88, 0, 20]);
    assert_eq!(inside(&mut rig, 2)[2], 0);
    rig.good(&out_cdb(REGISTER, 0, 24), &keys_list(0, 1, 0));
}
