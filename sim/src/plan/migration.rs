//! Migrations of a run.

use crate::random::Random;

use super::{Config, DisconnectReason, End, Event};

/// A migration's steps, most of them copies; some of the rest come to nothing.
pub(super) fn events(config: &Config, random: &mut Random, events: &mut Vec<Event>) {
    match random.below(16) {
        0..4 => events.push(Event::Log),
        4 => events.push(Event::LogNoMore),
        5..7 => {
            events.push(Event::DisconnectReason(DisconnectReason::Migrate));
            // What is under way ends while the last pages are copied.
            for _ in 0..random.below(10) {
                if random.one_in(2) {
                    let pick = random.short(1 << 16);
                    events.push(Event::Complete {
                        pick,
                        how: End::Whole,
                    });
                    events.push(copy(random));
                }
                let iothread = config.some_iothread(random);
                events.push(match random.below(3) {
                    0 => Event::Run { iothread, times: 1 },
                    _ => Event::Between {
                        iothread,
                        store: random.byte(8),
                        event: Box::new(Event::Copy {
                            pages: 1000,
                            pick: 0,
                        }),
                    },
                });
            }
        }
        _ => events.push(copy(random)),
    }
}

/// The front-end copies pages.
pub(super) fn copy(random: &mut Random) -> Event {
    Event::Copy {
        pages: random.pick(&[1, 8, 1000]),
        pick: random.short(1 << 16),
    }
}
