//! Persistent reservations that survive a restart.

use std::sync::Arc;

use engine::Errno;
use scsi::{
    AdapterStep, NO_RESERVATIONS, NexusNumber, NexusPorts, ReservationTextError, Status,
    TransportId, Unit,
};

use crate::persistent::{
    CLEAR, PREEMPT, PREEMPT_AND_ABORT, REGISTER, REGISTER_AND_MOVE, RELEASE, RESERVE,
    WRITE_EXCLUSIVE, inside, keys_list, may, move_list, out, out_cdb,
};
use crate::rig::{Rig, geometry, options, ports};

impl Rig {
    fn texts(&self) -> Vec<String> {
        self.kept.texts.lock().unwrap().clone()
    }

    fn store_fails(&self, error: Option<Errno>) {
        *self.kept.error.lock().unwrap() = error;
    }
}

/// A rig whose first initiator has registered the key 0x10, to be kept.
fn registered() -> Rig {
    let mut rig = Rig::keeping();
    rig.good(&out_cdb(REGISTER, 0, 24), &keys_list(0, 0x10, 1));
    rig
}

/// The same disk after a restart, with these initiators.
fn again(text: &str, initiators: &[(NexusNumber, NexusPorts)]) -> Rig {
    let unit = Arc::new(Unit::new(options(), geometry()).unwrap());
    unit.restore_reservations(text).unwrap();
    let mut rig = Rig::plain();
    rig.target.remove_unit_and_raise_attentions(3);
    rig.target
        .add_unit_and_raise_attentions(3, unit.clone())
        .unwrap();
    rig.unit = unit;
    for (nexus, ports) in initiators {
        rig.target.attach_initiator_and_start_units(*nexus, ports);
    }
    let others = initiators.iter().map(|(nexus, _)| *nexus);
    for nexus in [0, 1, 2].map(NexusNumber).into_iter().chain(others) {
        while rig.by(nexus, &[0; 6]).status != Status::Good {}
    }
    rig
}

#[test]
fn saved_reservations_are_restored_after_a_restart() {
    let mut rig = Rig::keeping();
    let name = TransportId::Iscsi {
        name: "iqn.2024-01.org.example:a".to_owned(),
    };
    let ports = NexusPorts {
        initiator: name,
        target: 1,
    };
    rig.target
        .attach_initiator_and_start_units(NexusNumber(4), &ports);
    rig.nexus = NexusNumber(4);
    rig.ask(&[0; 6]);
    rig.good(&out_cdb(REGISTER, 0, 24), &keys_list(0, 0xabc, 1));
    for _ in 0..2 {
        rig.good(
            &out_cdb(RESERVE, WRITE_EXCLUSIVE, 24),
            &keys_list(0xabc, 0, 0),
        );
    }
    let texts = rig.texts();
    assert_eq!(texts.len(), 2, "and only when something has changed");
    assert_eq!(inside(&mut rig, 2)[2..4], [1, 0x81]);

    let mut rig = again(&texts[1], &[(NexusNumber(9), ports)]);
    assert_eq!(
        inside(&mut rig, 2)[3],
        0x81,
        "they survive the next one, too"
    );
    assert_eq!(may(&mut rig, 0), (true, false));
    assert_eq!(may(&mut rig, 9), (true, true));
    let generation = inside(&mut rig, 0)[..4].to_vec();
    assert_eq!(generation, [0; 4], "the generation begins anew");
    let nonsense = rig.unit.restore_reservations("nonsense");
    assert_eq!(nonsense, Err(ReservationTextError::Header));
}

#[test]
fn reservations_without_aptpl_are_removed_from_the_store() {
    let mut rig = registered();
    rig.good(&out_cdb(REGISTER, 0, 24), &keys_list(0x10, 0x11, 0));
    assert_eq!(rig.texts().last().unwrap(), NO_RESERVATIONS);
    assert_eq!(inside(&mut rig, 2)[3], 0x80);
    rig.good(
        &out_cdb(RESERVE, WRITE_EXCLUSIVE, 24),
        &keys_list(0x11, 0, 0),
    );
    assert_eq!(rig.texts().len(), 2, "and is not saved any more");
    assert_eq!(may(&mut again(NO_RESERVATIONS, &[]), 1), (true, true));
}

#[test]
fn a_change_that_cannot_be_saved_is_not_applied() {
    let mut rig = registered();
    out(&mut rig, 1, REGISTER, 0, 0, 0x11);
    rig.good(&out_cdb(REGISTER, 0, 24), &keys_list(0x10, 0x10, 1));
    let cdb = out_cdb(RESERVE, WRITE_EXCLUSIVE, 24);
    for (error, sense) in [
        (Errno::NOSPC, (5, 0x5502)),
        (Errno::DQUOT, (5, 0x5502)),
        (Errno::IO, (4, 0x4400)),
    ] {
        rig.store_fails(Some(error));
        assert_eq!(rig.send(&cdb, &keys_list(0x10, 0, 0)).sense_code(), sense);
        assert_eq!(may(&mut rig, 1), (true, true), "{error}");
        assert_eq!(rig.texts().len(), 3);
    }
    rig.store_fails(None);
    rig.good(&cdb, &keys_list(0x10, 0, 0));
    assert_eq!(may(&mut rig, 1), (true, false));
    let keys = inside(&mut rig, 0);
    rig.store_fails(Some(Errno::NOSPC));
    for (action, list, code) in [
        (REGISTER, keys_list(0x10, 0x77, 1), (5, 0x5504)),
        (REGISTER_AND_MOVE, move_list(0x10, 0x30, 1, 1), (5, 0x5504)),
        (PREEMPT, keys_list(0x10, 0x11, 0), (5, 0x5502)),
        (PREEMPT_AND_ABORT, keys_list(0x10, 0x11, 0), (5, 0x5502)),
        (RELEASE, keys_list(0x10, 0, 0), (4, 0x4400)),
        (CLEAR, keys_list(0x10, 0, 0), (4, 0x4400)),
    ] {
        let reply = rig.send(&out_cdb(action, WRITE_EXCLUSIVE, list.len()), &list);
        assert_eq!(reply.sense_code(), code, "{action}");
    }
    assert_eq!(inside(&mut rig, 0), keys);
    assert_eq!(may(&mut rig, 1), (true, false), "and heard of nothing");
    assert!(rig.settled.is_empty(), "no tasks end");
}

#[test]
fn one_change_is_saved_at_a_time() {
    let mut rig = registered();
    let cdb = out_cdb(REGISTER, 0, 24);
    let mut first = rig.run(1, NexusNumber(0), &cdb, keys_list(0x10, 0x20, 1));
    assert!(matches!(first.step, AdapterStep::Call));
    let mut second = rig.run(2, NexusNumber(1), &cdb, keys_list(0, 0x21, 1));
    assert!(second.waits());
    let key = inside(&mut rig, 0)[8..].to_vec();
    assert_eq!(key, 0x10u64.to_be_bytes(), "as it was until it is saved");
    rig.step(&mut first);
    assert!(matches!(first.step, AdapterStep::Finished));
    assert_eq!(rig.take_woken(), [2]);
    second.resume_next();
    assert!(matches!(second.step, AdapterStep::Call));
    assert_eq!(rig.finish(second), Status::Good);
    let texts = rig.texts();
    let lines: Vec<_> = texts.iter().map(|text| text.lines().count()).collect();
    assert_eq!(lines, [3, 3, 4]);
    assert_eq!(inside(&mut rig, 0).len(), 8 + 16);
}

#[test]
fn a_saved_change_is_applied_although_its_command_was_cancelled() {
    for (result, keys) in [(Ok(()), 0x20u64), (Err(Errno::IO), 0x10)] {
        let mut rig = registered();
        let (cdb, list) = (out_cdb(REGISTER, 0, 24), keys_list(0x10, 0x20, 1));
        let mut running = rig.run(1, NexusNumber(0), &cdb, list);
        assert!(matches!(running.step, AdapterStep::Call));
        assert!(running.task.cancel());
        let step = running.task.on_step_completed(result);
        assert!(matches!(step, AdapterStep::Finished));
        assert_eq!(running.task.status(), Status::TaskAborted);
        assert_eq!(inside(&mut rig, 0)[8..], keys.to_be_bytes());
        rig.good(&out_cdb(CLEAR, 0, 24), &keys_list(keys, 0, 0));
    }
}

/// With RESERVE, reservations that are not stored, modes and unit attentions, all of their own initiator.
#[test]
fn saved_state_is_restored_in_another_process() {
    let mut rig = Rig::plain();
    rig.good(&out_cdb(REGISTER, 0, 24), &keys_list(0, 0x10, 0));
    rig.good(&[0x1b, 0, 0, 0, 0, 0], &[]);
    rig.by(NexusNumber(1), &[0x16, 0, 0, 0, 0, 0]);
    rig.unit.resize(100 * 512);
    rig.by(NexusNumber(2), &[0; 6]);
    let state = rig.unit.save_state();

    let unit = Unit::new(options(), geometry()).unwrap();
    for nexus in [0, 1, 2].map(NexusNumber) {
        unit.attach_initiator_and_start(nexus, ports(nexus));
    }
    unit.restore_state(&state).unwrap();
    assert_eq!(unit.save_state(), state);
    assert_eq!(state.blocks, 100);
    assert!(state.stopped);
    let heard = state.attentions.iter().map(|(_, codes)| codes.clone());
    let heard: Vec<_> = heard.collect();
    assert_eq!(heard, [vec![0x2a09], vec![0x2a09], vec![]]);

    let nothing = scsi::UnitState {
        persistent: "something".to_owned(),
        ..state.clone()
    };
    let restored = unit.restore_state(&nothing);
    assert_eq!(restored, Err(ReservationTextError::Header));
    assert_eq!(unit.save_state(), state, "nothing has changed");
}
