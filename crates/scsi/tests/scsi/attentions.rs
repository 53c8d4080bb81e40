//! Tests of unit attentions.

use scsi::{BusOrUnitReset, NexusNumber, Status, Unit};

use crate::rig::{BLOCKS, Rig, cdb10, geometry, options};

const READY: [u8; 6] = [0; 6];

/// The next unit attention of each of three initiators.
fn next_attentions(rig: &mut Rig) -> [u16; 3] {
    [0, 1, 2].map(|nexus| rig.by(NexusNumber(nexus), &READY).sense_code().1)
}

#[test]
fn a_change_of_capacity_is_reported_once_to_each_initiator() {
    let mut rig = Rig::plain();
    assert!(rig.unit.resize(100 * 512));
    assert!(!rig.unit.resize(100 * 512 + 511), "not another block");
    assert_eq!(next_attentions(&mut rig), [0x2a09; 3]);
    assert_eq!(next_attentions(&mut rig), [0; 3]);
    rig.refused(&cdb10(0x28, 0, 100, 1), &[], 5, 0x2100);
    rig.refused(&cdb10(0x28, 0, BLOCKS as u32 - 1, 1), &[], 5, 0x2100);
}

#[test]
fn a_read_reports_a_pending_attention_instead_of_reading() {
    let mut rig = Rig::plain();
    rig.unit.resize(100 * 512);
    rig.refused(&cdb10(0x28, 0, 0, 1), &[], 6, 0x2a09);
    assert_eq!(rig.asked, []);
    assert_eq!(rig.data(&cdb10(0x28, 0, 0, 1)).len(), 512);
}

#[test]
fn inquiry_leaves_an_attention_pending_and_request_sense_clears_it() {
    let mut rig = Rig::plain();
    rig.unit.resize(100 * 512);
    assert_eq!(rig.data(&[0x12, 0, 0, 0, 96, 0]).len(), 96);
    rig.data(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    let sense = rig.data(&[3, 0, 0, 0, 252, 0]);
    assert_eq!((sense[2], sense[12], sense[13]), (6, 0x2a, 9));
    assert_eq!(rig.data(&[3, 0, 0, 0, 252, 0])[2], 0);
    rig.good(&READY, &[]);
}

#[test]
fn a_reset_is_reported_to_all_and_resets_modes() {
    for (reset, code) in [
        (BusOrUnitReset::Bus, 0x2902),
        (BusOrUnitReset::Unit, 0x2900),
    ] {
        let mut rig = Rig::plain();
        rig.good(&[0x16, 0, 0, 0, 0, 0], &[]);
        let control = rig.data(&[0x1a, 8, 0x0a, 0, 255, 0]);
        let mut list = [&[0; 4], &control[4..]].concat();
        list[6] |= 4;
        rig.good(&[0x15, 0x10, 0, 0, 16, 0], &list);
        rig.good(&[0x1b, 0, 0, 0, 0, 0], &[]);
        rig.unit.reset(reset);
        assert_eq!(next_attentions(&mut rig), [code; 3]);
        assert_eq!(rig.by(NexusNumber(1), &READY).sense_code(), (0, 0));
        assert_eq!(rig.data(&[0x1a, 8, 0x0a, 0, 255, 0]), control);
    }
}

#[test]
fn nexus_loss_is_reported_to_its_initiator() {
    let mut rig = Rig::plain();
    rig.good(&[0x16, 0, 0, 0, 0, 0], &[]);
    rig.unit.on_nexus_lost(NexusNumber(0));
    assert_eq!(next_attentions(&mut rig), [0x2907, 0, 0]);
    let reply = rig.by(NexusNumber(1), &READY);
    assert_eq!(reply.status, Status::Good, "the reservation is gone");
}

#[test]
fn added_and_removed_units_are_reported() {
    let mut rig = Rig::plain();
    let another = || Unit::new(options(), geometry()).unwrap().into();
    let target = rig.target.clone();
    let add = || target.add_unit_and_raise_attentions(7, another());
    add().unwrap();
    assert_eq!(add(), Err(scsi::AddUnitError::InUse(7)));
    assert_eq!(next_attentions(&mut rig), [0x3f0e; 3]);
    let ready = rig.exchange(7, &READY, &[], 0);
    assert_eq!(ready.sense_code(), (6, 0x2900), "it is new");
    assert_eq!(rig.exchange(7, &READY, &[], 0).sense_code(), (0, 0));
    assert!(rig.target.remove_unit_and_raise_attentions(7).is_some());
    assert!(rig.target.remove_unit_and_raise_attentions(7).is_none());
    let luns = rig.data(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(luns.len(), 16);
    let next = next_attentions(&mut rig);
    assert_eq!(next, [0, 0x3f0e, 0x3f0e], "the first has seen it");
    assert_eq!(rig.exchange(7, &READY, &[], 0).sense_code(), (5, 0x2500));
}
