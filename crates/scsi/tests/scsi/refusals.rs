//! Unknown commands, and commands with reserved bits.

use scsi::{NexusNumber, Status, UnitOptions};

use crate::rig::{BLOCK, LUN, Rig, cdb10, cdb16, options, ports};

#[test]
fn unknown_commands_are_refused() {
    let mut rig = Rig::plain();
    for opcode in [0x01, 0x04, 0x37, 0x7f, 0x83, 0xb7, 0xc0, 0xff] {
        rig.refused(&[opcode; 16], &[], 5, 0x2000);
    }
    rig.refused(&[], &[], 5, 0x2400);
    rig.refused(&[0x28, 0, 0, 0, 0], &[], 5, 0x2400);
}

#[test]
fn sense_data_points_to_a_reserved_bit() {
    let mut rig = Rig::plain();
    let point = |rig: &mut Rig, cdb: &[u8]| {
        let reply = rig.ask(cdb);
        assert_eq!(reply.sense_code(), (5, 0x2400), "{cdb:x?}");
        (reply.sense[15], reply.sense[17])
    };
    for (name, cdb, place) in [
        ("RDPROTECT", cdb10(0x28, 0x20, 0, 1), (0xcd, 1)),
        ("WRPROTECT", cdb10(0x2a, 0x80, 0, 1), (0xcf, 1)),
        ("RELADR", cdb10(0x28, 0x01, 0, 1), (0xc8, 1)),
    ] {
        assert_eq!(point(&mut rig, &cdb), place, "{name}");
    }
    let mut group = cdb16(0x88, 0, 0, 1);
    group[14] = 0x25;
    assert_eq!(point(&mut rig, &group), (0xcd, 14), "beyond GROUP NUMBER");
    group[14] = 5;
    assert_eq!(rig.data(&group).len(), BLOCK, "there are no groups");
    let mut naca = cdb10(0x28, 0, 0, 1);
    naca[9] = 4;
    assert_eq!(point(&mut rig, &naca), (0xca, 9), "NACA");
    assert_eq!(point(&mut rig, &[0, 0, 0, 0, 0, 1]), (0xc8, 5), "LINK");
}

#[test]
fn a_read_only_disk_is_not_written() {
    let mut rig = Rig::new(UnitOptions {
        read_only: true,
        ..options()
    });
    let mut compare = cdb16(0x89, 0, 0, 0);
    compare[13] = 1;
    for cdb in [
        &[0x0a, 0, 0, 0, 1, 0][..],
        &cdb10(0x2a, 0, 0, 1),
        &cdb10(0x2e, 0, 0, 1),
        &cdb10(0x41, 0, 0, 1),
        &cdb10(0x42, 0, 0, 24),
        &cdb16(0x8a, 0, 0, 1),
        &cdb16(0x8b, 0, 0, 1),
        &cdb16(0x93, 9, 0, 1),
        &compare,
    ] {
        rig.refused(cdb, &[0; 1024], 7, 0x2700);
    }
    assert_eq!(rig.data(&cdb10(0x28, 0, 0, 1)).len(), BLOCK);
    assert_eq!(rig.data(&[0x1a, 0, 0x3f, 0, 255, 0])[2], 0x90);
    rig.unit.set_read_only(false);
    assert_eq!(rig.ask(&[0; 6]).sense_code(), (6, 0x2a01));
    rig.good(&cdb10(0x2a, 0, 0, 1), &[0; BLOCK]);
}

#[test]
fn a_stopped_unit_refuses_medium_access() {
    let mut rig = Rig::plain();
    rig.good(&[0x1b, 0, 0, 0, 0, 0], &[]);
    assert_eq!(rig.asked.len(), 1, "its cache is flushed before");
    for cdb in [
        &[0; 6][..],
        &cdb10(0x28, 0, 0, 1),
        &cdb10(0x35, 0, 0, 0),
        &cdb10(0x25, 0, 0, 0),
    ] {
        rig.refused(cdb, &[], 2, 0x0402);
    }
    let sense = rig.data(&[3, 0, 0, 0, 252, 0]);
    assert_eq!((sense[2], sense[12], sense[13]), (2, 4, 2));
    assert_eq!(rig.data(&[0x12, 0, 0, 0, 96, 0]).len(), 96);
    rig.good(&[0x1b, 0, 0, 0, 1, 0], &[]);
    rig.good(&[0; 6], &[]);
    rig.good(&[0x1b, 1, 0, 0, 4, 0], &[]);
    rig.refused(&[0; 6], &[], 2, 0x0402);
    rig.good(&[0x1b, 1, 0, 0, 1, 0], &[]);
    rig.good(&[0x1b, 0, 0, 0, 0, 0], &[]);
    rig.target
        .attach_initiator_and_start_units(NexusNumber(0), &ports(NexusNumber(0)));
    rig.refused(&[0; 6], &[], 6, 0x2900);
    rig.good(&[0; 6], &[]);
    rig.refused(&[0x1b, 0, 0, 0, 2, 0], &[], 5, 0x2400);
    rig.refused(&[0x1b, 0, 0, 0, 0x10, 0], &[], 5, 0x2400);
}

#[test]
fn prevent_removal_is_accepted() {
    let mut rig = Rig::plain();
    rig.good(&[0x1e, 0, 0, 0, 1, 0], &[]);
    rig.good(&[0x1e, 0, 0, 0, 0, 0], &[]);
    rig.refused(&[0x1e, 0, 0, 0, 2, 0], &[], 5, 0x2400);
}

#[test]
fn request_sense_returns_stored_sense_data_once() {
    let mut rig = Rig::plain();
    let sense = rig.data(&[3, 0, 0, 0, 252, 0]);
    assert_eq!((sense.len(), sense[0], sense[2]), (18, 0x70, 0));
    assert_eq!(rig.data(&[3, 1, 0, 0, 252, 0])[..2], [0x72, 0]);
    assert_eq!(rig.data(&[3, 0, 0, 0, 4, 0]).len(), 4);
    let reply = rig.ask(&[3, 0, 0, 0, 0, 0]);
    assert_eq!((reply.status, reply.transferred), (Status::Good, 0));

    // Without autosense: what the command before ended with.
    let beyond = cdb10(0x28, 0, u32::MAX, 1);
    let (_, task) = rig.exchange_in(rig.task(0), LUN, &beyond, &[], 0);
    rig.unencoded_sense = task.unencoded_sense();
    assert!(rig.unencoded_sense.is_some());
    let sense = rig.data(&[3, 0, 0, 0, 252, 0]);
    assert_eq!((sense[2], sense[12]), (5, 0x21));
    assert_eq!(rig.data(&[3, 0, 0, 0, 252, 0])[2], 0, "once");
}
