//! RESERVE and RELEASE.

use scsi::{NexusNumber, Status};

use crate::rig::{LUN, Rig, cdb10};

const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];

#[test]
fn reserve_excludes_other_initiators() {
    let mut rig = Rig::plain();
    rig.good(&RESERVE, &[]);
    rig.good(&RESERVE, &[]);
    for cdb in [
        &[0; 6][..],
        &RESERVE,
        &cdb10(0x56, 0, 0, 0),
        &cdb10(0x28, 0, 0, 1),
        &cdb10(0x2a, 0, 0, 1),
        &[0x1a, 0, 0x3f, 0, 255, 0],
        &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0],
        &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0],
    ] {
        let reply = rig.by(NexusNumber(1), cdb);
        assert_eq!(reply.status, Status::ReservationConflict, "{cdb:x?}");
        assert!(reply.sense.is_empty());
    }
    for cdb in [
        &[0x12, 0, 0, 0, 96, 0][..],
        &[3, 0, 0, 0, 252, 0],
        &cdb10(0x25, 0, 0, 0),
        &[0x1e, 0, 0, 0, 0, 0],
        &RELEASE,
    ] {
        assert_eq!(rig.by(NexusNumber(1), cdb).status, Status::Good, "{cdb:x?}");
    }
    assert_eq!(rig.data(&cdb10(0x28, 0, 0, 1)).len(), 512);
    let reply = rig.by(NexusNumber(1), &cdb10(0x28, 0, 0, 1));
    assert_eq!(
        reply.status,
        Status::ReservationConflict,
        "who has not reserved it releases nothing"
    );
    rig.good(&RELEASE, &[]);
    assert_eq!(rig.by(NexusNumber(1), &RESERVE).status, Status::Good);
    rig.target.detach_initiator(NexusNumber(1));
    rig.good(&[0; 6], &[]);
}

#[test]
fn removing_a_unit_releases_it() {
    let mut rig = Rig::plain();
    rig.good(&RESERVE, &[]);
    let unit = rig.target.remove_unit_and_raise_attentions(LUN).unwrap();
    rig.target.detach_initiator(NexusNumber(0));
    rig.target.add_unit_and_raise_attentions(LUN, unit).unwrap();
    assert_eq!(rig.by(NexusNumber(1), &[0; 6]).sense_code(), (6, 0x2900));
    assert_eq!(rig.by(NexusNumber(1), &RESERVE).status, Status::Good);
}
