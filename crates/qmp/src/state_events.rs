//! Limits the events that a party outside the program can cause without end, such as a client that connects and leaves.
//!
//! Each of them tells the present value of a state. So that no value stays untold, the latest event of a state is held back
//! rather than dropped, and sent when the limit allows it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Events of a state that are sent at once after a time without any.
const BURST: u32 = 10;

/// Interval of further ones, as that of QEMU's limited events.
const INTERVAL: Duration = Duration::from_secs(1);

/// The states whose events are limited at present.
#[derive(Default)]
pub(crate) struct StateEvents(HashMap<String, LimitedState>);

/// A state of which events were sent lately.
struct LimitedState {
    /// Each event that is sent moves this on by an interval. It is never a burst or more ahead of the present time.
    paid_until: Instant,
    /// The latest event, if it may not be sent yet.
    held: Option<Value>,
}

impl LimitedState {
    /// When another event may be sent: the first ones of a burst at once, ahead of their pay.
    fn next_due(&self) -> Instant {
        self.paid_until - INTERVAL * (BURST - 1)
    }

    /// Pays for an event that is sent.
    fn pay(&mut self, now: Instant) {
        self.paid_until = self.paid_until.max(now) + INTERVAL;
    }
}

impl StateEvents {
    /// Returns an event of a state to be sent now; otherwise holds it back, in the place of the one held before.
    pub fn pass_or_hold(&mut self, state: String, event: Value, now: Instant) -> Option<Value> {
        let state = self.0.entry(state).or_insert(LimitedState {
            paid_until: now,
            held: None,
        });
        if state.held.is_some() || state.next_due() > now {
            state.held = Some(event);
            return None;
        }
        state.pay(now);
        Some(event)
    }

    /// Takes the event of a state that is held back, at its end.
    pub fn end(&mut self, state: &str) -> Option<Value> {
        self.0.remove(state)?.held
    }

    /// Takes the held events that may be sent now, and forgets states that are not limited any more.
    pub fn take_due(&mut self, now: Instant) -> Vec<Value> {
        let mut due = Vec::new();
        self.0.retain(|_, state| {
            if state.held.is_some() && state.next_due() <= now {
                due.extend(state.held.take());
                state.pay(now);
            }
            state.held.is_some() || state.paid_until > now
        });
        due
    }

    /// When the next held event may be sent.
    pub fn next_due(&self) -> Option<Instant> {
        let holding = self.0.values().filter(|state| state.held.is_some());
        holding.map(LimitedState::next_due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes or holds back events with these numbers; returns those that are sent.
    fn sent(
        events: &mut StateEvents,
        numbers: impl Iterator<Item = u32>,
        now: Instant,
    ) -> Vec<Value> {
        numbers
            .filter_map(|number| events.pass_or_hold("e".into(), number.into(), now))
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
        assert_eq!(
            events.pass_or_hold("f".into(), 1.into(), now),
            Some(1.into())
        );
    }

    #[test]
    fn held_event_is_returned_at_the_end_of_its_state() {
        let (mut events, now) = (StateEvents::default(), Instant::now());
        sent(&mut events, 0..100, now);
        assert_eq!(events.end("e"), Some(99.into()));
        assert_eq!(events.end("e"), None);
        assert_eq!(sent(&mut events, 0..1, now), [0]);
    }

    #[test]
    fn states_without_recent_events_are_forgotten() {
        let (mut events, now) = (StateEvents::default(), Instant::now());
        for state in 0..1000 {
            events.pass_or_hold(state.to_string(), 0.into(), now);
        }
        events.take_due(now + INTERVAL);
        assert!(events.0.is_empty());
    }
}
