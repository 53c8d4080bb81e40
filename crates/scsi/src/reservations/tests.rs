//! Tests of reservations: what they allow, and what preempting does.

use super::*;
use crate::nexus::TransportId;

fn ports(address: u16) -> NexusPorts {
    NexusPorts {
        initiator: TransportId::Parallel { address },
        target: 1,
    }
}

/// Three who are registered by keys 1 to 3, the first of whom holds the unit.
fn held(kind: ReservationKind) -> Reservations {
    let mut all = Reservations::default();
    for address in 1..4 {
        assert_eq!(
            all.register_or_unregister(&ports(address), address.into()),
            []
        );
    }
    all.reserve(&ports(1), kind).unwrap();
    all
}

#[test]
fn who_unregisters_releases() {
    for kind in [
        ReservationKind::WriteExclusive,
        ReservationKind::WriteExclusiveRegistrants,
    ] {
        let mut all = held(kind);
        assert_eq!(all.register_or_unregister(&ports(2), 0), []);
        assert!(all.reservation.is_some());
        let news = all.register_or_unregister(&ports(1), 0);
        assert_eq!(all.reservation, None);
        let expected: AttentionList = match kind {
            ReservationKind::WriteExclusive => Vec::new(),
            _ => vec![(ports(3), code::RESERVATIONS_RELEASED)],
        };
        assert_eq!(news, expected);
    }
    let mut all = held(ReservationKind::ExclusiveAccessAll);
    all.register_or_unregister(&ports(1), 0);
    all.register_or_unregister(&ports(2), 0);
    assert!(all.is_holder(&ports(3)), "the last one holds it still");
    all.register_or_unregister(&ports(3), 0);
    assert_eq!(all.reservation, None);
}

#[test]
fn no_attention_is_raised_for_an_initiator_that_keeps_its_access() {
    let mut all = held(ReservationKind::WriteExclusive);
    let same = Some(ReservationKind::WriteExclusive);
    let (news, _) = all.preempt(&ports(2), 1, same).unwrap();
    assert_eq!(news, [(ports(1), code::REGISTRATIONS_PREEMPTED)]);
}

#[test]
fn preempting_others_leaves_the_reservation() {
    let mut all = held(ReservationKind::WriteExclusive);
    let (news, lost) = all.preempt(&ports(2), 3, None).unwrap();
    assert_eq!(lost, [ports(3)]);
    assert_eq!(news, [(ports(3), code::REGISTRATIONS_PREEMPTED)]);
    assert!(all.is_holder(&ports(1)));
    assert_eq!(all.preempt(&ports(2), 1, None), Err(PreemptError::NoKind));
}

#[test]
fn all_registrants_are_preempted_by_key_zero() {
    let mut all = held(ReservationKind::WriteExclusiveAll);
    let (_, lost) = all
        .preempt(&ports(2), 0, Some(ReservationKind::WriteExclusiveAll))
        .unwrap();
    assert_eq!(lost, [ports(1), ports(3)]);
    assert!(all.is_holder(&ports(2)) && !all.is_holder(&ports(1)));
    let mut all = held(ReservationKind::WriteExclusiveAll);
    all.preempt(&ports(2), 1, None).unwrap();
    assert!(all.is_holder(&ports(3)), "the reservation stays");
}

#[test]
fn who_preempts_the_own_key_keeps_it_only_as_holder() {
    let mut all = held(ReservationKind::WriteExclusive);
    let (_, lost) = all
        .preempt(&ports(1), 1, Some(ReservationKind::WriteExclusive))
        .unwrap();
    assert_eq!(lost, []);
    assert!(all.is_holder(&ports(1)));
    all.preempt(&ports(2), 2, None).unwrap();
    assert_eq!(all.registered_key(&ports(2)), None);
}
