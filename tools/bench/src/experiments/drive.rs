//! One load on one server: connect, start queues, run, stop them.

use std::fmt;

use super::setup::Setup;
use crate::client::{Form, Placement};
use crate::error::Result;
use crate::load::{self, Detail, Order, Pattern};
use crate::server::Server;

/// Requests at random places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub block_bytes: u32,
    pub write: bool,
    /// Requests in flight in each queue.
    pub depth: u16,
    pub queues: u8,
}

impl Load {
    /// Reads or writes of each size at each depth, first through so many queues, then through so many others.
    pub fn grid(queues: &[u8], block_kib: &[u32], depths: &[u16], write: bool) -> Vec<Load> {
        let mut loads = Vec::new();
        for &queues in queues {
            for kib in block_kib {
                for &depth in depths {
                    loads.push(Load {
                        block_bytes: kib * 1024,
                        write,
                        depth,
                        queues,
                    });
                }
            }
        }
        loads
    }

    /// `4k`, or in bytes.
    pub fn block(&self) -> String {
        match self.block_bytes {
            kib if kib.is_multiple_of(1024) => format!("{}k", kib / 1024),
            bytes => bytes.to_string(),
        }
    }

    /// `1 queue`, `4 queues`.
    pub fn queues(&self) -> String {
        match self.queues {
            1 => "1 queue".to_owned(),
            queues => format!("{queues} queues"),
        }
    }
}

/// `4k read qd 8, 2 queues`.
impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.write { "write" } else { "read" };
        let (block, queues) = (self.block(), self.queues());
        write!(f, "{block} {kind} qd {}, {queues}", self.depth)
    }
}

/// What one repetition achieved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub iops: f64,
    /// Time of all the server's threads per request.
    pub cpu_ns: f64,
    /// How often they went to sleep, per request.
    pub sleeps: f64,
}

/// Loads the disk `disk` of a server through new queues.
pub(crate) fn drive(
    server: &mut Server,
    disk: usize,
    load: &Load,
    setup: &Setup,
) -> Result<Sample> {
    let measured = connected(server, disk, load, setup);
    measured.map_err(|error| server.explain(error))
}

fn connected(server: &mut Server, disk: usize, load: &Load, setup: &Setup) -> Result<Sample> {
    let whole = load::Load {
        pattern: Pattern {
            order: Order::Random,
            read_percent: if load.write { 0 } else { 100 },
        },
        block_bytes: load.block_bytes,
        depth: load.depth,
        queues: u16::from(load.queues),
        waiting: setup.client,
        threads: 1,
        cpus: vec![setup.client_cpu],
        detail: Detail::default(),
        span_bytes: 0,
        gives_way: false,
        recorded: false,
        placement: Placement::Packed,
        form: Form::Plain,
    };
    let stream = server.connect(disk)?;
    let pid = Some(server.pid());
    let measured = load::measure(stream, &whole, setup.warm_up(), setup.run(), pid)?;
    let completed = measured.completed().max(1) as f64;
    let used = measured.server.as_ref().map(|server| server.used);
    let used = used.unwrap_or_default();
    Ok(Sample {
        iops: measured.iops(),
        cpu_ns: used.cpu_ns as f64 / completed,
        sleeps: used.voluntary_switches as f64 / completed,
    })
}
