//! Shrinks a finding: removes and simplifies events while the failure remains.

use crate::plan::{End, Event, Filters, Plan};

/// Runs at most.
const RUNS: usize = 4000;

/// Leaves out what a plan does not need to fail.
#[must_use]
pub fn shrink(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut smallest = plan.clone();
    let mut left = RUNS;
    let mut fails = |plan: &Plan| {
        left = left.saturating_sub(1);
        left > 0 && fails(plan)
    };
    loop {
        let before = smallest.events.len();
        fewer(&mut smallest, &mut fails);
        simpler(&mut smallest, &mut fails);
        if smallest.events.len() == before {
            return smallest;
        }
    }
}

/// Pieces of the list are left out, from large ones to single events.
fn fewer(plan: &mut Plan, fails: &mut impl FnMut(&Plan) -> bool) {
    let mut size = plan.events.len().div_ceil(2);
    while size > 0 {
        let mut end = plan.events.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let mut without = plan.clone();
            without.events.drain(start..end);
            if fails(&without) {
                *plan = without;
            }
            end = start.min(plan.events.len());
        }
        size /= 2;
    }
}

/// Worlds and events that are simpler take their places.
fn simpler(plan: &mut Plan, fails: &mut impl FnMut(&Plan) -> bool) {
    let worlds: [fn(&mut Plan); 15] = [
        |plan| plan.config.iothreads = 1,
        |plan| plan.config.client = false,
        |plan| plan.config.packed = false,
        |plan| plan.config.event_idx = false,
        |plan| plan.config.base = 0,
        |plan| plan.config.merging = false,
        |plan| plan.config.io_uring = false,
        |plan| plan.config.filters = Filters::default(),
        |plan| plan.config.throttling = None,
        |plan| plan.config.jobs = false,
        |plan| {
            if let Some(throttling) = &mut plan.config.throttling {
                (throttling.members, throttling.tenant) = (1, None);
            }
        },
        |plan| plan.config.max_events = 64,
        |plan| plan.config.memory_alignment = 1,
        |plan| plan.config.starts_disabled = false,
        |plan| plan.config.suspends = false,
    ];
    for world in worlds {
        let mut other = plan.clone();
        world(&mut other);
        // Sizes that are no powers of two are for packed rings.
        other.config.size = other.config.size.next_power_of_two();
        if fails(&other) {
            *plan = other;
        }
    }
    for index in 0..plan.events.len() {
        for event in simpler_events(&plan.events[index]) {
            let mut other = plan.clone();
            other.events[index] = event;
            if fails(&other) {
                *plan = other;
                break;
            }
        }
    }
}

fn simpler_events(event: &Event) -> Vec<Event> {
    match event.clone() {
        Event::Ask {
            queue,
            kind,
            sector,
            sectors,
            shape,
        } if shape != 0 || sectors > 1 => [(1, 0), (sectors, 0), (1, shape)]
            .map(|(sectors, shape)| Event::Ask {
                queue,
                kind,
                sector,
                sectors,
                shape,
            })
            .to_vec(),
        Event::Complete { pick, how } if pick > 0 || how != End::Whole => {
            vec![
                Event::Complete {
                    pick: 0,
                    how: End::Whole,
                },
                Event::Complete { pick: 0, how },
                Event::Complete {
                    pick,
                    how: End::Whole,
                },
            ]
        }
        Event::Between {
            iothread,
            store,
            event,
        } => {
            let less = (0..store).map(|store| Event::Between {
                iothread,
                store,
                event: event.clone(),
            });
            vec![(*event).clone()]
                .into_iter()
                .chain(less.take(2))
                .collect()
        }
        _ => Vec::new(),
    }
}
