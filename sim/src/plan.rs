//! What happens in one run: a world, and a list of events, both made from a seed.
//!
//! Every event is complete in itself, and means something, or nothing, whatever happened before. So a run can be replayed with
//! any of them left out, which is how a finding is made small.

use data_plane::OnError;

use crate::random::Random;

/// What a request of the guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `VIRTIO_BLK_T_IN`.
    Read,
    /// `VIRTIO_BLK_T_OUT`.
    Write,
    /// `VIRTIO_BLK_T_FLUSH`.
    Flush,
    /// `VIRTIO_BLK_T_DISCARD`.
    Discard,
    /// `VIRTIO_BLK_T_WRITE_ZEROES`.
    WriteZeroes,
    /// `VIRTIO_BLK_T_GET_ID`.
    GetId,
    /// What no device knows.
    Unknown,
}

/// How the world is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Packed rings.
    pub packed: bool,
    /// `VIRTIO_F_EVENT_IDX`.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub indirect: bool,
    /// Queues.
    pub queues: usize,
    /// Entries of each.
    pub size: u16,
    /// Where the rings' indices begin.
    pub base: u16,
    /// What is in flight is recorded.
    pub inflight: bool,
    /// Every write is stable when it completes.
    pub write_through: bool,
    /// Neighbours are joined.
    pub merging: bool,
    /// The disk's sectors.
    pub sectors: u16,
    /// What an engine has in flight at most.
    pub max_events: u32,
    /// What memory direct I/O wants, bytes.
    pub memory_alignment: u32,
    /// What becomes of failed reads, and of failed others.
    pub policy: [OnError; 2],
}

/// How the guest goes on after it has looked at what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It looks again by itself.
    Polls,
    /// It wants to be signalled for the next.
    Sleeps,
    /// It wants to be signalled when so many more are done, if the ring can say that.
    SleepsFor(u8),
}

/// How the kernel ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All of it.
    Whole,
    /// A part, in words.
    Short(u16),
    /// Not at all.
    Error,
    /// Not at all: the disk is full.
    NoSpace,
}

/// Why a front-end goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// It will come back.
    Disconnect,
    /// It is gone without a word, and so will it come back, if there is a record of what was in flight; else as `Disconnect`.
    Vanish,
    /// The guest resets its device.
    Reset,
    /// It goes on with another daemon.
    Migrate,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// The guest prepares a request. `shape` says how it lies in memory.
    Ask {
        /// Where.
        queue: u8,
        /// What.
        kind: Kind,
        /// Where on the disk.
        sector: u16,
        /// How much.
        sectors: u8,
        /// Bits.
        shape: u32,
    },
    /// It shows all that it has prepared, and kicks if it is to: so many times at once (the first of them may be late).
    Publish {
        /// Where.
        queue: u8,
        /// 0: later.
        kicks: u8,
    },
    /// Late kicks arrive.
    Kicks,
    /// It looks at what is done, unless it sleeps and nobody has signalled.
    Look {
        /// Where.
        queue: u8,
        /// And then.
        then: Then,
    },
    /// The iothread runs so many iterations, if there is a reason.
    Run {
        /// How many.
        times: u8,
    },
    /// The same; this happens before the store with that number.
    Between {
        /// Which store.
        store: u8,
        /// What the guest does.
        event: Box<Event>,
    },
    /// The process is killed before that store, or at the end of the iterations.
    Kill {
        /// Which store.
        store: u16,
        /// What becomes of what the kernel has.
        salt: u32,
    },
    /// The kernel ends one of the requests that it has.
    Complete {
        /// Which.
        pick: u16,
        /// How.
        how: End,
    },
    /// A worker ends one of its jobs.
    Work {
        /// Which.
        pick: u16,
        /// It fails.
        fails: bool,
    },
    /// The next submission takes no more than that; 0: it is to be tried later.
    Busy {
        /// How many.
        takes: u8,
    },
    /// Power fails.
    PowerFail {
        /// What survives.
        salt: u32,
    },
    /// The queues stop, and wait for what is in flight.
    Leave(Leave),
    /// A daemon is started if there is none, and the queues with it.
    Connect,
    /// The guest's memory is mapped anew.
    Remap,
    /// Another eventfd for signals.
    SetCall {
        /// Where.
        queue: u8,
    },
    /// Another eventfd for kicks.
    SetKick {
        /// Where.
        queue: u8,
    },
    /// The queue is enabled, or disabled.
    Enable {
        /// Where.
        queue: u8,
        /// Enabled.
        enabled: bool,
    },
    /// The disk gets another size.
    Resize {
        /// Sectors.
        sectors: u16,
    },
    /// What waits after an error is tried again, or given up.
    Resume {
        /// Given up.
        report: bool,
    },
    /// Time passes until something is due.
    Time,
}

/// A world and what happens in it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How it is made.
    pub config: Config,
    /// What happens, in order.
    pub events: Vec<Event>,
    /// For what is decided at the end.
    pub salt: u64,
}

/// Largest request, sectors.
pub const MAX_SECTORS: u8 = 8;

impl Config {
    fn of(random: &mut Random) -> Self {
        let packed = random.one_in(2);
        let errors = [
            OnError::Report,
            OnError::Report,
            OnError::Stop,
            OnError::NoSpace,
            OnError::Ignore,
        ];
        Config {
            packed,
            event_idx: random.one_in(2),
            indirect: random.one_in(2),
            queues: random.pick(&[1, 1, 2, 3]),
            size: match packed {
                true => random.pick(&[4, 5, 7, 8, 13, 16]),
                false => random.pick(&[4, 8, 16, 32]),
            },
            base: random.pick(&[0, 0, 65_533, 3]),
            inflight: random.one_in(2),
            write_through: random.one_in(4),
            merging: !random.one_in(3),
            sectors: random.pick(&[16, 24, 64]),
            max_events: random.pick(&[1, 2, 4, 64, 64]),
            memory_alignment: random.pick(&[1, 1, 8, 512]),
            policy: [random.pick(&errors), random.pick(&errors)],
        }
    }
}

impl Plan {
    /// The one of this seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let config = Config::of(&mut random);
        let moods = Moods::of(&mut random);
        let count = random.pick(&[20, 60, 60, 150, 300]);
        let mut events = Vec::new();
        while events.len() < count {
            moods.events(&config, &mut random, &mut events);
        }
        Plan {
            config,
            events,
            salt: random.draw(),
        }
    }
}

/// What is frequent in this run, in parts of 1000: beside the usual, something is more likely than else.
struct Moods {
    faults: u64,
    control: u64,
    crashes: u64,
    between: u64,
    reads: u64,
    hot: u64,
}

fn byte(random: &mut Random, end: u32) -> u8 {
    u8::try_from(random.small(end)).expect("below 256")
}

fn short(random: &mut Random, end: u32) -> u16 {
    u16::try_from(random.small(end)).expect("below 65536")
}

impl Moods {
    fn of(random: &mut Random) -> Self {
        Moods {
            faults: random.pick(&[0, 0, 50, 300]),
            control: random.pick(&[0, 20, 60, 200]),
            crashes: random.pick(&[0, 10, 30, 80]),
            between: random.pick(&[0, 100, 400]),
            reads: random.pick(&[100, 400, 700]),
            hot: random.pick(&[2, 6, 1000]),
        }
    }

    /// The next one, or several that belong together.
    fn events(&self, config: &Config, random: &mut Random, events: &mut Vec<Event>) {
        let at = random.below(1000);
        if at < self.crashes {
            crash(random, events);
        } else if at < self.crashes + self.control {
            events.push(control(config, random));
        } else if random.below(4000) < self.between {
            self.race(config, random, events);
        } else {
            events.push(self.usual(config, random));
        }
    }

    /// The guest shows something while the iothread is about to sleep.
    fn race(&self, config: &Config, random: &mut Random, events: &mut Vec<Event>) {
        let queue = queue(config, random);
        let show = Event::Publish { queue, kicks: 1 };
        // What is answered without the disk leaves nothing behind that would wake anybody.
        events.push(match random.below(2) {
            0 => Event::Ask {
                queue,
                kind: Kind::GetId,
                sector: 0,
                sectors: 1,
                shape: 0,
            },
            _ => self.ask(config, random),
        });
        events.push(show.clone());
        events.push(Event::Run {
            times: 1 + byte(random, 3),
        });
        events.push(self.ask(config, random));
        events.push(Event::Between {
            store: byte(random, 6),
            event: Box::new(show),
        });
    }

    fn usual(&self, config: &Config, random: &mut Random) -> Event {
        match random.below(100) {
            0..35 => self.ask(config, random),
            35..50 => guest(config, random),
            50..58 => Event::Look {
                queue: queue(config, random),
                then: then(random),
            },
            58..80 if random.below(1000) < self.between => Event::Between {
                store: byte(random, 12),
                event: Box::new(guest(config, random)),
            },
            58..80 => Event::Run {
                times: 1 + byte(random, 3),
            },
            80..95 => Event::Complete {
                pick: short(random, 1 << 16),
                how: self.end(random),
            },
            _ => match random.below(4) {
                0 => Event::Kicks,
                1 => Event::Time,
                2 if self.faults > 0 => Event::Busy {
                    takes: byte(random, 3),
                },
                _ => Event::Work {
                    pick: short(random, 1 << 16),
                    fails: random.below(1000) < self.faults,
                },
            },
        }
    }

    fn end(&self, random: &mut Random) -> End {
        match random.below(8) {
            _ if random.below(1000) < self.faults => random.pick(&[End::Error, End::NoSpace]),
            0 => End::Short(short(random, 512)),
            _ => End::Whole,
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
            sectors: 1 + byte(random, MAX_SECTORS.into()),
            shape: random.small(u32::MAX),
        }
    }
}

fn queue(config: &Config, random: &mut Random) -> u8 {
    u8::try_from(random.index(config.queues)).expect("few queues")
}

fn then(random: &mut Random) -> Then {
    match random.below(5) {
        0 => Then::Polls,
        1 => Then::SleepsFor(byte(random, 4)),
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

fn crash(random: &mut Random, events: &mut Vec<Event>) {
    let event = match random.below(8) {
        0 => Event::PowerFail {
            salt: random.small(u32::MAX),
        },
        at @ 1..4 => {
            // Often while something is given back.
            if at > 1 {
                let pick = short(random, 1 << 16);
                events.push(Event::Complete {
                    pick,
                    how: End::Whole,
                });
            }
            let end = random.pick(&[4, 12, 40]);
            Event::Kill {
                store: short(random, end),
                salt: random.small(u32::MAX),
            }
        }
        _ => Event::Connect,
    };
    events.push(event);
}

fn control(config: &Config, random: &mut Random) -> Event {
    let queue = queue(config, random);
    match random.below(12) {
        0 => Event::Leave(random.pick(&[
            Leave::Disconnect,
            Leave::Vanish,
            Leave::Reset,
            Leave::Migrate,
        ])),
        1..4 => Event::Connect,
        4 => Event::Remap,
        5 => Event::SetCall { queue },
        6 => Event::SetKick { queue },
        7 | 8 => Event::Enable {
            queue,
            enabled: !random.one_in(3),
        },
        9 => Event::Resize {
            sectors: config.sectors - 8 + short(random, 12),
        },
        _ => Event::Resume {
            report: random.one_in(3),
        },
    }
}
