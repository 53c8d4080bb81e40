//! Events chosen by a seed: at random, but each seed has something that it does more often than others.

use crate::dirty_sectors::BitmapSwitch;
use crate::random::Random;

use super::{
    Config, DisconnectReason, DriverFeatures, End, Event, Exchange, Handover, JobEvent, Kind,
    MAX_SECTORS, Then, jobs, migration, throttling,
};

/// Probabilities of events in a run, per mille; in each run some events are more frequent than in others.
pub(super) struct Weights {
    faults: u64,
    control: u64,
    crashes: u64,
    migration: u64,
    outages: u64,
    between: u64,
    reads: u64,
    hot: u64,
    load: u64,
}

/// How often a job begins where there are some, per mille.
const JOBS: u64 = 60;

impl Weights {
    pub(super) fn of(random: &mut Random) -> Self {
        Weights {
            faults: random.pick(&[0, 0, 50, 300]),
            control: random.pick(&[0, 20, 60, 200]),
            crashes: random.pick(&[0, 10, 30, 80]),
            migration: random.pick(&[0, 0, 60, 250]),
            outages: random.pick(&[0, 0, 0, 30]),
            between: random.pick(&[0, 100, 400]),
            reads: random.pick(&[100, 400, 700]),
            hot: random.pick(&[2, 6, 1000]),
            load: random.pick(&[0, 30, 100]),
        }
    }

    /// The next one, or several that belong together.
    pub(super) fn events(&self, config: &Config, random: &mut Random, events: &mut Vec<Event>) {
        let at = random.below(1000);
        if config.jobs && random.below(1000) < JOBS {
            self.job(config, random, events);
        } else if config.throttling.is_some() && random.below(1000) < self.load {
            self.throttled_load(config, random, events);
        } else if at < self.crashes {
            crash(config, random, events);
        } else if at < self.crashes + self.control {
            events.push(control(config, random));
        } else if random.below(1000) < self.outages {
            self.outage(config, random, events);
        } else if random.below(1000) < self.migration {
            migration::events(config, random, events);
        } else if random.below(4000) < self.between {
            self.race(config, random, events);
        } else {
            events.push(self.usual(config, random));
        }
    }

    /// The guest shows something while the iothread is about to sleep.
    pub(super) fn race(&self, config: &Config, random: &mut Random, events: &mut Vec<Event>) {
        let queue = queue(config, random);
        let show = Event::Publish { queue, kicks: 1 };
        // What is answered without the disk leaves nothing behind that would wake anybody.
        events.push(match random.below(4) {
            0..3 => Event::Ask {
                queue,
                kind: Kind::GetId,
                sector: 0,
                sectors: 1,
                shape: 0,
            },
            _ => self.ask(config, random),
        });
        events.push(show.clone());
        // None: it is awake, for what was shown.
        let iothread = iothread_of(config, queue);
        events.push(Event::Run {
            iothread,
            times: random.byte(4),
        });
        events.push(self.ask(config, random));
        events.push(Event::Between {
            iothread,
            store: random.byte(12),
            event: Box::new(show),
        });
    }

    /// The disk fails some requests, which may wait; something else happens to their queues, and the operator resumes them
    /// before that, in the middle of it, or behind it.
    fn outage(&self, config: &Config, random: &mut Random, events: &mut Vec<Event>) {
        let queue = queue(config, random);
        for _ in 0..=random.below(3) {
            events.push(self.ask(config, random));
        }
        events.push(Event::Publish { queue, kicks: 1 });
        let iothread = iothread_of(config, queue);
        let run = Event::Run { iothread, times: 3 };
        events.push(run.clone());
        for _ in 0..=random.below(3) {
            events.push(Event::Complete {
                pick: random.short(1 << 16),
                how: random.pick(&[End::Error, End::NoSpace]),
            });
        }
        events.push(run.clone());
        let resume = Event::Resume {
            report: random.one_in(5),
        };
        for _ in 0..=random.below(4) {
            events.push(match random.below(4) {
                0 => resume.clone(),
                1 => Event::Enable {
                    queue,
                    enabled: random.one_in(3),
                },
                _ => control(config, random),
            });
            if !random.one_in(3) {
                events.push(run.clone());
            }
        }
        events.push(resume);
        if random.one_in(2) {
            let enabled = true;
            events.push(Event::Enable { queue, enabled });
        }
    }

    /// More requests of one queue than the limits let pass, in the midst of which something else happens; then sometimes the
    /// answers, and another request, which pays for those.
    fn throttled_load(&self, config: &Config, random: &mut Random, events: &mut Vec<Event>) {
        let queue = queue(config, random);
        let iothread = iothread_of(config, queue);
        let run = Event::Run { iothread, times: 3 };
        for _ in 0..=random.below(8) {
            events.push(self.ask(config, random));
        }
        events.push(Event::Publish { queue, kicks: 1 });
        events.push(run.clone());
        for _ in 0..random.below(4) {
            events.push(match random.below(8) {
                0 => Event::Limits(throttling::limits(random)),
                1 => Event::Exchange(Exchange::Throttled {
                    present: !random.one_in(3),
                }),
                2 => Event::Exchange(Exchange::Filtered {
                    present: random.one_in(2),
                }),
                3 => Event::Remap,
                4 => control(config, random),
                5 => self.complete(random),
                _ => time(random),
            });
            if !random.one_in(3) {
                events.push(run.clone());
            }
        }
        if random.one_in(2) {
            for _ in 0..2 {
                let end = Event::Complete {
                    pick: 0,
                    how: End::Whole,
                };
                events.extend(std::iter::repeat_n(end, 8));
                events.extend([run.clone(), run.clone()]);
                let then = Then::Polls;
                events.push(Event::Look { queue, then });
                events.push(self.ask(config, random));
                events.push(Event::Publish { queue, kicks: 1 });
                events.push(run.clone());
            }
        }
    }

    /// A job, and requests that change the disk while it begins and copies. Sometimes it comes to its end, sometimes another one
    /// follows.
    fn job(&self, config: &Config, random: &mut Random, events: &mut Vec<Event>) {
        for _ in 0..=random.below(4) {
            events.push(Event::Job(jobs::begin(config, random)));
            for _ in 0..random.pick(&[0, 10, 40, 80, 80]) {
                events.push(match random.below(16) {
                    0..2 => self.ask(config, random),
                    2..4 => Event::Publish {
                        queue: queue(config, random),
                        kicks: 1,
                    },
                    4..9 => self.complete(random),
                    9 => Event::Work {
                        pick: random.short(1 << 16),
                        fails: false,
                    },
                    10 if random.one_in(3) => Event::Job(jobs::command(random)),
                    10 if random.one_in(8) => control(config, random),
                    _ => run(config, random),
                });
            }
            if random.one_in(6) {
                events.push(Event::Job(JobEvent::Cancel));
            }
            if !random.one_in(3) {
                events.push(Event::Job(JobEvent::Finish));
            }
        }
    }

    fn usual(&self, config: &Config, random: &mut Random) -> Event {
        match random.below(100) {
            0..35 if config.client && random.one_in(3) => self.send(config, random),
            0..35 => self.ask(config, random),
            35..50 => guest(config, random),
            50..58 => Event::Look {
                queue: queue(config, random),
                then: then(random),
            },
            58..80 if random.below(1000) < self.between => Event::Between {
                iothread: config.some_iothread(random),
                store: random.byte(12),
                event: Box::new(self.meanwhile(config, random)),
            },
            58..80 => run(config, random),
            80..95 => self.complete(random),
            _ => match random.below(4) {
                0 => Event::Kicks,
                1 => time(random),
                2 if self.faults > 0 => Event::Busy {
                    takes: random.byte(3),
                },
                _ => Event::Work {
                    pick: random.short(1 << 16),
                    fails: random.below(1000) < self.faults,
                },
            },
        }
    }

    /// What goes on while an iothread runs.
    fn meanwhile(&self, config: &Config, random: &mut Random) -> Event {
        match random.below(5) {
            1 if config.iothreads > 1 => run(config, random),
            0 if self.migration > 0 => migration::copy(random),
            _ => guest(config, random),
        }
    }

    fn complete(&self, random: &mut Random) -> Event {
        Event::Complete {
            pick: random.short(1 << 16),
            how: self.end(random),
        }
    }

    fn end(&self, random: &mut Random) -> End {
        match random.below(8) {
            _ if random.below(1000) < self.faults => random.pick(&[End::Error, End::NoSpace]),
            0 => End::Short(random.short(512)),
            _ => End::Whole,
        }
    }

    fn send(&self, config: &Config, random: &mut Random) -> Event {
        let kind = match random.below(1000) {
            at if at < self.reads => Kind::Read,
            _ => random.pick(&[Kind::Write, Kind::Write, Kind::Write, Kind::Flush]),
        };
        Event::Send {
            kind,
            sector: random.short(config.sectors.into()),
            sectors: 1 + random.byte(MAX_SECTORS.into()),
            stable: random.one_in(3),
        }
    }

    fn ask(&self, config: &Config, random: &mut Random) -> Event {
        let kind = match random.below(1000) {
            at if at < self.reads => Kind::Read,
            _ => random.pick(&[
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::Flush,
                Kind::Flush,
                Kind::Discard,
                Kind::WriteZeroes,
                Kind::GetId,
                Kind::Unknown,
            ]),
        };
        let places = u64::from(config.sectors);
        // Sometimes beyond the end.
        let end = match random.below(20) {
            0 => places + 8,
            _ => places.min(self.hot * 4),
        };
        let sector = random.below(end);
        Event::Ask {
            queue: queue(config, random),
            kind,
            sector: u16::try_from(sector).expect("a small disk"),
            sectors: 1 + random.byte(MAX_SECTORS.into()),
            shape: random.small(u32::MAX),
        }
    }
}

fn time(random: &mut Random) -> Event {
    match random.below(3) {
        0 => Event::Wait {
            ms: random.pick(&[1, 10, 100, 1000]),
        },
        _ => Event::Time,
    }
}

fn queue(config: &Config, random: &mut Random) -> u8 {
    u8::try_from(random.index(config.queues)).expect("few queues")
}

/// That of a queue.
fn iothread_of(config: &Config, queue: u8) -> u8 {
    u8::try_from(usize::from(queue) % config.iothreads).expect("few iothreads")
}

fn run(config: &Config, random: &mut Random) -> Event {
    Event::Run {
        iothread: config.some_iothread(random),
        times: 1 + random.byte(3),
    }
}

fn then(random: &mut Random) -> Then {
    match random.below(5) {
        0 => Then::Polls,
        1 => Then::SleepsFor(random.byte(4)),
        _ => Then::Sleeps,
    }
}

/// What a guest does, also while an iothread runs.
fn guest(config: &Config, random: &mut Random) -> Event {
    let queue = queue(config, random);
    match random.below(4) {
        0 => Event::Look {
            queue,
            then: then(random),
        },
        _ => Event::Publish {
            queue,
            kicks: random.pick(&[0, 1, 1, 1, 2]),
        },
    }
}

fn crash(config: &Config, random: &mut Random, events: &mut Vec<Event>) {
    match random.below(8) {
        0 => events.push(Event::PowerFail {
            salt: random.small(u32::MAX),
        }),
        at @ 1..4 => {
            // Often while requests complete, and several together.
            let completed = if at > 1 { 1 + random.below(3) } else { 0 };
            for _ in 0..completed {
                events.push(Event::Complete {
                    pick: random.short(1 << 16),
                    how: End::Whole,
                });
            }
            let end = random.pick(&[4, 12, 40]);
            events.push(Event::Kill {
                iothread: config.some_iothread(random),
                store: random.short(end),
                salt: random.small(u32::MAX),
            });
            if random.one_in(2) {
                events.push(Event::Connect);
            }
        }
        _ => events.push(Event::Connect),
    }
}

fn control(config: &Config, random: &mut Random) -> Event {
    let queue = queue(config, random);
    match random.below(31) {
        0..3 => {
            let next = DriverFeatures::of(random);
            Event::DisconnectReason(random.pick(&[
                DisconnectReason::Disconnect,
                DisconnectReason::Vanish,
                DisconnectReason::Reset(next),
                DisconnectReason::Migrate,
            ]))
        }
        3..6 => Event::Connect,
        6 => Event::Remap,
        7 => Event::SetCall { queue },
        8 => Event::SetKick { queue },
        9..12 => Event::Enable {
            queue,
            enabled: !random.one_in(3),
        },
        12 => Event::Resize {
            sectors: config.sectors - 8 + random.short(12),
        },
        13 | 14 => Event::Resume {
            report: random.one_in(3),
        },
        15 | 16 => Event::Hotplug {
            present: random.one_in(2),
        },
        17 => Event::StopQueue {
            queue,
            reset: random.one_in(2),
        },
        20 if config.throttling.is_some() => Event::Exchange(Exchange::Throttled {
            present: random.one_in(2),
        }),
        19 if config.throttling.is_some() => Event::Limits(throttling::limits(random)),
        18..21 => Event::CacheMode {
            write_back: !random.one_in(3),
        },
        21 | 22 => Event::Exchange(Exchange::Reopened {
            rewrites: random.one_in(2),
        }),
        23 | 24 => Event::Exchange(Exchange::Filtered {
            present: random.one_in(2),
        }),
        26 | 27 if config.filters.marks => {
            Event::Bitmaps(random.pick(&[BitmapSwitch::Clear, BitmapSwitch::Next]))
        }
        28 if config.filters.marks => Event::Exchange(Exchange::Recorded {
            present: !random.one_in(3),
        }),
        25 if config.client => Event::HangUp,
        29 if config.jobs => Event::Job(jobs::command(random)),
        _ => Event::Upgrade(random.pick(&[
            Handover::Done,
            Handover::Done,
            Handover::Refused,
            Handover::Failed,
        ])),
    }
}
