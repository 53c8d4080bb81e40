//! Limits the events that a party outside the program can cause without end, such as a client that connects and leaves.
//!
//! Each of them tells the present value of a state. The latest event of a state is held back rather than dropped, so that clients learn
//! every final value. It is sent when the limit allows it.

use std::collections::BTreeMap;
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
pub(crate) struct StateEvents(BTreeMap<StateKey, LimitedState>);

/// A state of which events were sent lately.
struct LimitedState {
    /// Moves on by one interval for each event sent; an event may be sent while this is less than a burst of intervals ahead of now (a
    /// token bucket).
    full_rate_until: Instant,
    /// The latest event, if it may not be sent yet.
    held: Option<Value>,
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
    /// Returns an event of a state to be sent now; otherwise holds it back, in the place of the one held before.
    pub fn pass_or_hold(&mut self, state: StateKey, event: Value, now: Instant) -> Option<Value> {
        let state = self.0.entry(state).or_insert(LimitedState {
            full_rate_until: now,
            held: None,
        });
        if state.held.is_some() || state.next_send_time() > now {
            state.held = Some(event);
            return None;
        }
        state.count_sent(now);
        Some(event)
    }

    /// Takes the events of all states of an owner that are held back, at its end.
    pub fn end_states_of(&mut self, owner: &str) -> Vec<Value> {
        let mut held = Vec::new();
        self.0.retain(|key, state| {
            let ends = key.owner == owner;
            if ends {
                held.extend(state.held.take());
            }
            !ends
        });
        held
    }

    /// Takes the held events that may be sent now, and forgets states that are not limited any more.
    pub fn take_due(&mut self, now: Instant) -> Vec<Value> {
        let mut due = Vec::new();
        self.0.retain(|_, state| {
            if state.held.is_some() && state.next_send_time() <= now {
                due.extend(state.held.take());
                state.count_sent(now);
            }
            state.held.is_some() || state.full_rate_until > now
        });
        due
    }

    /// When the next held event may be sent.
    pub fn next_due(&self) -> Option<Instant> {
        let holding = self.0.values().filter(|state| state.held.is_some());
        holding.map(LimitedState::next_send_time).min()
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
        sent(&mut events, 0..100, now);
        for other in [key("e", "queue 0"), key("f", "connection")] {
            assert_eq!(events.pass_or_hold(other, 1.into(), now), Some(1.into()));
        }
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
        assert!(events.0.is_empty());
    }
}
