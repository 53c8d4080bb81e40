//! The plan of a run: a world, and a list of events, both made from a seed.
//!
//! Every event is complete in itself, and means something, or nothing, whatever happened before. So a run can be replayed with
//! any of them left out, which is how a finding is made small.

mod event;
mod jobs;
mod migration;
mod throttling;
mod weights;

use iothread::OnError;

use crate::random::Random;

use weights::Weights;

pub use event::{
    Backup, DisconnectReason, DriverFeatures, End, Event, Exchange, Handover, JobEvent, Mirror,
    Then,
};
pub use throttling::Throttling;

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
    /// Iothreads.
    pub iothreads: usize,
    /// There is a client that has no ring, on the last of these.
    pub client: bool,
    /// Queues, which take turns among the iothreads.
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
    /// Requests go by io_uring, else by Linux AIO.
    pub io_uring: bool,
    /// What the first daemon has in front of its disk.
    pub filters: Filters,
    /// Limits, and the disks that share them, if there are any.
    pub throttling: Option<Throttling>,
    /// There are jobs.
    pub jobs: bool,
    /// What an engine has in flight at most.
    pub max_events: u32,
    /// What memory direct I/O wants, bytes.
    pub memory_alignment: u32,
    /// What becomes of failed reads, and of failed others.
    pub policy: [OnError; 2],
    /// What the first driver negotiates.
    pub driver: DriverFeatures,
    /// Queues start disabled and are enabled by a message, as with protocol features.
    pub starts_disabled: bool,
    /// A queue that stops leaves parked requests in its in-flight region, which the front-end takes along
    /// (`GET_VRING_BASE_INFLIGHT`).
    pub suspends: bool,
}

/// What is in front of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// A filter that passes on all that comes.
    pub passes_on: bool,
    /// Throttled nodes, below that, if there are limits.
    pub throttles: bool,
    /// A node that rewrites blocks, below that.
    pub rewrites: bool,
    /// A gate, below that, at which some requests wait for so many turns of their iothread; 0: none.
    pub gate_turns: u32,
    /// A dirty bitmap of the disk itself records.
    pub marks: bool,
}

impl Filters {
    /// Whether requests may be tasks, which come to the disk in no particular order.
    #[must_use]
    pub fn are_tasks(self) -> bool {
        self.passes_on || self.throttles || self.rewrites || self.gate_turns > 0
    }
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

impl DriverFeatures {
    fn of(random: &mut Random) -> Self {
        DriverFeatures {
            flush: !random.one_in(3),
            config_wce: random.one_in(2),
        }
    }
}

impl Config {
    fn some_iothread(&self, random: &mut Random) -> u8 {
        u8::try_from(random.index(self.iothreads)).expect("few iothreads")
    }

    fn of(random: &mut Random) -> Self {
        let packed = random.one_in(2);
        let iothreads = random.pick(&[1, 1, 2]);
        let errors = [
            OnError::Report,
            OnError::Report,
            OnError::Stop,
            OnError::NoSpace,
            OnError::Ignore,
        ];
        let throttling = Throttling::of(random);
        let jobs = random.one_in(3);
        Config {
            packed,
            event_idx: random.one_in(2),
            indirect: random.one_in(2),
            iothreads,
            client: random.one_in(3),
            queues: match iothreads {
                1 => random.pick(&[1, 1, 2, 3]),
                _ => random.pick(&[2, 2, 3]),
            },
            size: match packed {
                true => random.pick(&[4, 5, 7, 8, 13, 16]),
                false => random.pick(&[4, 8, 16, 32]),
            },
            base: random.pick(&[0, 0, 65_533, 3]),
            inflight: random.one_in(2),
            write_through: random.one_in(4),
            merging: !random.one_in(3),
            sectors: random.pick(&[16, 24, 64]),
            io_uring: random.one_in(2),
            // A mirror needs a disk without any.
            filters: if jobs && random.one_in(3) {
                Filters::default()
            } else {
                Filters {
                    passes_on: random.one_in(8),
                    throttles: throttling.is_some() && !random.one_in(5),
                    rewrites: random.one_in(8),
                    gate_turns: random.pick(&[0, 0, 0, 0, 1, 8]),
                    marks: random.one_in(if jobs { 2 } else { 3 }),
                }
            },
            throttling,
            max_events: random.pick(&[1, 2, 4, 64, 64]),
            memory_alignment: random.pick(&[1, 1, 8, 512]),
            policy: [random.pick(&errors), random.pick(&errors)],
            driver: DriverFeatures::of(random),
            starts_disabled: random.one_in(2),
            suspends: random.one_in(2),
            jobs,
        }
    }
}

impl Plan {
    /// The one of this seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let config = Config::of(&mut random);
        let weights = Weights::of(&mut random);
        let count = random.pick(&[4, 20, 60, 60, 150, 300]);
        let mut events = Vec::new();
        while events.len() < count {
            weights.events(&config, &mut random, &mut events);
        }
        if random.one_in(2) {
            // Nothing comes behind it that would wake anybody.
            weights.race(&config, &mut random, &mut events);
        }
        Plan {
            config,
            events,
            salt: random.draw(),
        }
    }
}
