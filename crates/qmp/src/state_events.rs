//! Limits the events that a party outside the program can cause without end, such as a client that connects and leaves.
//!
//! Each of them tells the present value of a state. The latest event of a state is held back rather than dropped, so that clients learn
//! every final value. It is sent when the limit allows it. The events of one owner are sent in the order in which they came, so that those
//! of an earlier connection do not come after the present one's: an event waits while an earlier one of its owner is held back. That is
//! at most an interval, since nothing that is held back moves the limit of its state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Events of a state that are sent at once after a time without any.
const BURST: u32 = 10;

/// Interval of further ones, as that of QEMU's limited events.
const INTERVAL: Duration = Duration::from_secs(1);

/// A state that events tell the present value of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateKey {
    /// What has the state and ends with it: an export's id.
    pub owner: String,
    /// The name of the state among the owner's.
    pub state: String,
}

/// The states whose events are limited at present.
#[derive(Default)]
pub(crate) struct StateEvents {
    states: BTreeMap<StateKey, LimitedState>,
    /// Number of the latest event that was held back.
    last_number: u64,
}

/// An event that is held back.
struct HeldEvent {
    /// Events are held back in the order of their numbers.
    number: u64,
    event: Value,
}

/// A state of which events were sent lately.
struct LimitedState {
    /// Moves on by one interval for each event sent; an event may be sent while this is less than a burst of intervals ahead of now (a
    /// token bucket).
    full_rate_until: Instant,
    /// The latest event, if it may not be sent yet.
    held: Option<HeldEvent>,
}

impl LimitedState {
    /// When another event may be sent: the first ones of a burst at once.
    fn next_send_time(&self) -> Instant {
        self.full_rate_until - INTERVAL * (BURST - 1)
    }

    /// Counts an event that is sent.
    fn count_sent(&mut self, now: Instant) {
        self.full_rate_until = self.full_rate_until.max(now) + INTERVAL;
    }
}

impl StateEvents {
    /// Returns an event of a state to be sent now; otherwise holds it back, in the place of the one of that state held before.
    pub fn pass_or_hold(&mut self, state: StateKey, event: Value, now: Instant) -> Option<Value> {
        let owner_has_held = self.is_held_for(&state.owner);
        let state = self.states.entry(state).or_insert(LimitedState {
            full_rate_until: now,
            held: None,
        });
        if owner_has_held || state.next_send_time() > now {
            self.last_number += 1;
            let number = self.last_number;
            state.held = Some(HeldEvent { number, event });
            return None;
        }
        state.count_sent(now);
        Some(event)
    }

    /// Whether events of an owner are held back.
    fn is_held_for(&self, owner: &str) -> bool {
        let first = StateKey {
            owner: owner.to_owned(),
            state: String::new(),
        };
        let mut states = self
            .states
            .range(first..)
            .take_while(|(key, _)| key.owner == owner);
        states.any(|(_, state)| state.held.is_some())
    }

    /// Takes the events of all states of an owner that are held back, at its end, in their order.
    pub fn end_states_of(&mut self, owner: &str) -> Vec<Value> {
        let mut held = Vec::new();
        self.states.retain(|key, state| {
            let ends = key.owner == owner;
            if ends {
                held.extend(state.held.take());
            }
            !ends
        });
        held.sort_by_key(|held| held.number);
        held.into_iter().map(|held| held.event).collect()
    }

    /// Takes the held events that may be sent now, those of an owner in their order, and forgets states that are not limited any more.
    pub fn take_due(&mut self, now: Instant) -> Vec<Value> {
        let mut held: Vec<_> = self
            .states
            .iter_mut()
            .filter_map(|(key, state)| Some((state.held.as_ref()?.number, &key.owner, state)))
            .collect();
        held.sort_by_key(|(number, ..)| *number);
        let (mut due, mut waiting_owners) = (Vec::new(), BTreeSet::new());
        for (_, owner, state) in held {
            if waiting_owners.contains(owner) || state.next_send_time() > now {
                waiting_owners.insert(owner);
                continue;
            }
            due.extend(state.held.take().map(|held| held.event));
            state.count_sent(now);
        }
        self.states
            .retain(|_, state| state.held.is_some() || state.full_rate_until > now);
        due
    }

    /// When the next held event may be sent.
    pub fn next_due(&self) -> Option<Instant> {
        let mut first_of_owners = BTreeMap::new();
        for (key, state) in &self.states {
            if let Some(held) = &state.held {
                let first = first_of_owners
                    .entry(&key.owner)
                    .or_insert((held.number, state));
                if held.number < first.0 {
                    *first = (held.number, state);
                }
            }
        }
        let first_of_owners = first_of_owners.into_values();
        first_of_owners
            .map(|(_, state)| state.next_send_time())
            .min()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(owner: &str, state: &str) -> StateKey {
        StateKey {
            owner: owner.into(),
            state: state.into(),
        }
    }

    /// Passes or holds back events with these numbers; returns those that are sent.
    fn sent(
        events: &mut StateEvents,
        numbers: impl Iterator<Item = u32>,
        now: Instant,
    ) -> Vec<Value> {
        numbers
            .filter_map(|number| events.pass_or_hold(key("e", "connection"), number.into(), now))
            .collect()
    }

    #[test]
    fn latest_event_is_sent_once_an_interval_after_a_burst() {
        let (mut events, start) = (StateEvents::default(), Instant::now());
        assert_eq!(
            sent(&mut events, 0..100, start),
            (0..BURST).collect::<Vec<_>>()
        );
        assert_eq!(events.next_due(), Some(start + INTERVAL));
        assert_eq!(events.take_due(start + INTERVAL / 2), Vec::<Value>::new());
        assert_eq!(events.take_due(start + INTERVAL), [99]);
        assert_eq!(events.next_due(), None);
        let soon = start + INTERVAL * 3 / 2;
        assert_eq!(sent(&mut events, 100..103, soon), Vec::<Value>::new());
        assert_eq!(events.take_due(start + 2 * INTERVAL), [102]);
        // Time without events allows a burst again, not more.
        let late = start + 1000 * INTERVAL;
        let burst = (200..200 + BURST).collect::<Vec<_>>();
        assert_eq!(sent(&mut events, 200..300, late), burst);
    }

    #[test]
    fn states_are_limited_each_on_its_own() {
        let (mut events, now) = (StateEvents::default(), Instant::now());
        sent(&mut events, 0..BURST, now);
        let queue = key("e", "queue 0");
        assert_eq!(events.pass_or_hold(queue, 1.into(), now), Some(1.into()));
        sent(&mut events, 0..100, now);
        let other = key("f", "connection");
        assert_eq!(events.pass_or_hold(other, 1.into(), now), Some(1.into()));
    }

    #[test]
    fn events_of_one_owner_are_sent_in_the_order_in_which_they_came() {
        let (mut events, start) = (StateEvents::default(), Instant::now());
        let mut pass =
            |state: &str, event: &str, now| events.pass_or_hold(key("e", state), event.into(), now);
        for _ in 0..BURST {
            assert!(pass("queue 0", "broken", start).is_some());
        }
        // Held back since there were too many; those after it wait for it, although there was none of their state lately.
        assert_eq!(pass("queue 0", "broken by the first", start), None);
        assert_eq!(pass("connection", "first disconnected", start), None);
        assert_eq!(pass("connection", "second connected", start), None);
        let soon = start + INTERVAL / 2;
        assert_eq!(events.take_due(soon), Vec::<Value>::new());
        assert_eq!(events.next_due(), Some(start + INTERVAL));
        assert_eq!(
            events.take_due(start + INTERVAL),
            ["broken by the first", "second connected"]
        );
        assert_eq!(events.next_due(), None);
        // One that takes the place of another comes after those that came before it.
        let end = start + INTERVAL;
        for (state, event) in [("queue 0", "old"), ("connection", "c"), ("queue 0", "new")] {
            assert_eq!(
                events.pass_or_hold(key("e", state), event.into(), end),
                None
            );
        }
        assert_eq!(events.end_states_of("e"), ["c", "new"]);
    }

    /// Such as that of a guest that breaks one queue without end.
    #[test]
    fn flood_of_one_state_delays_others_of_its_owner_by_an_interval_at_most() {
        let (mut events, start) = (StateEvents::default(), Instant::now());
        sent(&mut events, 0..100, start);
        let (mut of_flood, mut of_others) = (0, 0);
        for step in 1..=50_u32 {
            let now = start + INTERVAL * step / 10;
            sent(&mut events, 0..10, now);
            let queue = key("e", &format!("queue {step}"));
            of_others += u32::from(events.pass_or_hold(queue, "q".into(), now).is_some());
            for event in events.take_due(now) {
                *(if event == "q" {
                    &mut of_others
                } else {
                    &mut of_flood
                }) += 1;
            }
            assert!(step - of_others < 10, "{of_others} after {step}");
        }
        assert_eq!(of_flood, 5);
    }

    #[test]
    fn held_events_of_all_states_are_returned_at_the_end_of_their_owner() {
        let (mut events, now) = (StateEvents::default(), Instant::now());
        sent(&mut events, 0..100, now);
        for (owner, state) in [("e", "queue 0"), ("e", "queue 1"), ("f", "queue 0")] {
            for number in 0..=BURST {
                events.pass_or_hold(
                    key(owner, state),
                    format!("{owner} {state} {number}").into(),
                    now,
                );
            }
        }
        let held = [json!(99), json!("e queue 0 10"), json!("e queue 1 10")];
        assert_eq!(events.end_states_of("e"), held);
        assert_eq!(events.end_states_of("e"), Vec::<Value>::new());
        assert_eq!(sent(&mut events, 0..1, now), [0]);
        assert_eq!(events.end_states_of("f"), ["f queue 0 10"]);
    }

    #[test]
    fn states_without_recent_events_are_forgotten() {
        let (mut events, now) = (StateEvents::default(), Instant::now());
        for state in 0..1000 {
            events.pass_or_hold(key("e", &state.to_string()), 0.into(), now);
        }
        events.take_due(now + INTERVAL);
        assert!(events.states.is_empty());
    }
}
