//! Targets: a load, a figure, a peer to compare with, the ratio wanted.

use super::Options;
use crate::aio::Aio;
use crate::client::{Form, Placement};
use crate::contenders::Contender;
use crate::load::{Detail, Load, Order, Pattern, Waiting};
use crate::storage::BackingOption;

/// Groups of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    /// No storage: what everything else costs
    Null,
    /// A file on a tmpfs: a disk without latency
    Tmpfs,
    /// A file on the disk
    Disk,
    /// One queue beside thousands that are idle
    IdleNeighbours,
    /// Reads and writes on several queues and iothreads, on the disk
    Mixed,
    /// The same on a tmpfs, where no disk is the limit
    MixedTmpfs,
    /// Nothing to do
    Idle,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Requests per second: ours over theirs.
    Iops,
    /// Processor time of the server per request: theirs over ours.
    Cpu,
}

/// The contender to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Baseline {
    /// qemu-storage-daemon.
    Peer,
    /// The host itself.
    Raw,
    /// Ours with one queue and nothing else.
    Alone,
}

/// One target.
pub(super) struct Target {
    pub group: Group,
    pub waiting: Waiting,
    pub depth: u16,
    pub measure: Measure,
    pub against: Baseline,
    pub at_least: f64,
}

const fn target(
    group: Group,
    waiting: Waiting,
    depth: u16,
    measure: Measure,
    against: Baseline,
    at_least: f64,
) -> Target {
    Target {
        group,
        waiting,
        depth,
        measure,
        against,
        at_least,
    }
}

/// All of them, but for the idle server.
pub(super) const TARGETS: [Target; 18] = {
    use Baseline::{Alone, Peer, Raw};
    use Group::{Disk, IdleNeighbours, Mixed, MixedTmpfs, Null, Tmpfs};
    use Measure::{Cpu, Iops};
    use Waiting::{Blocking, Polling};
    [
        target(Null, Polling, 128, Cpu, Peer, 3.0),
        target(Null, Polling, 1, Iops, Peer, 15.0),
        target(Null, Polling, 8, Iops, Peer, 1.7),
        target(Tmpfs, Polling, 32, Iops, Raw, 0.95),
        target(Tmpfs, Polling, 128, Iops, Raw, 0.95),
        target(Tmpfs, Polling, 1, Iops, Peer, 5.0),
        target(Disk, Polling, 1, Iops, Raw, 0.95),
        target(Disk, Blocking, 1, Iops, Peer, 1.5),
        // The host waits in the kernel, as programs do; and by polling, which takes all of a processor.
        target(Disk, Blocking, 32, Iops, Raw, 0.97),
        target(Disk, Blocking, 128, Iops, Raw, 0.97),
        target(Disk, Polling, 32, Iops, Raw, 0.97),
        target(Disk, Polling, 128, Iops, Raw, 0.97),
        target(Disk, Polling, 32, Cpu, Peer, 1.5),
        target(Disk, Polling, 128, Cpu, Peer, 1.5),
        target(IdleNeighbours, Polling, 32, Iops, Alone, 0.98),
        target(Mixed, Polling, 32, Iops, Peer, 1.2),
        // What the disk has to give at all.
        target(Mixed, Polling, 32, Iops, Raw, 0.97),
        target(MixedTmpfs, Polling, 32, Iops, Peer, 1.2),
    ]
};

impl Group {
    pub(super) fn name(self) -> &'static str {
        match self {
            Group::Null => "null",
            Group::Tmpfs => "tmpfs",
            Group::Disk => "disk",
            Group::IdleNeighbours => "idle neighbours",
            Group::Mixed => "mixed",
            Group::MixedTmpfs => "mixed on a tmpfs",
            Group::Idle => "idle",
        }
    }

    pub(super) fn storage(self) -> BackingOption {
        match self {
            Group::Null | Group::IdleNeighbours | Group::Idle => BackingOption::Null,
            Group::Tmpfs | Group::MixedTmpfs => BackingOption::Tmpfs,
            Group::Disk | Group::Mixed => BackingOption::File,
        }
    }

    /// Reads and writes on several queues and iothreads.
    pub(super) fn is_mixed(self) -> bool {
        matches!(self, Group::Mixed | Group::MixedTmpfs)
    }

    /// The load of its targets, with one queue on one iothread unless it is mixed.
    pub(super) fn load(self, waiting: Waiting, depth: u16, cpus: &[usize]) -> Load {
        let mixed = self.is_mixed();
        Load {
            pattern: Pattern {
                order: Order::Random,
                read_percent: if mixed { 70 } else { 100 },
            },
            block_bytes: if mixed { 16 << 10 } else { 4 << 10 },
            depth,
            queues: if mixed { 4 } else { 1 },
            waiting,
            threads: 1,
            // Two iothreads and a client on two processors: the kernel knows best.
            cpus: if mixed { Vec::new() } else { cpus.to_vec() },
            // At the lightest: a client that is slower than the server hides it.
            detail: Detail::default(),
            span_bytes: 0,
            gives_way: false,
            recorded: false,
            placement: Placement::Packed,
            form: Form::Plain,
        }
    }

    pub(super) fn contenders(self, options: &Options, peer: bool) -> Vec<Contender> {
        let crowd = Contender::OursInACrowd {
            disks: options.idle_disks,
            queues: options.idle_queues,
        };
        let peer = peer.then_some(Contender::Peer(None));
        let raw = Contender::Raw(Aio::Native);
        match self {
            Group::Tmpfs | Group::Disk | Group::Mixed => {
                [Contender::Ours, raw].into_iter().chain(peer).collect()
            }
            Group::IdleNeighbours => vec![crowd, Contender::Ours],
            _ => std::iter::once(Contender::Ours).chain(peer).collect(),
        }
    }
}
