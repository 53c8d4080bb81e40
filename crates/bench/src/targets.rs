//! `bench targets`: what blockplane wants to reach, each beside what it reaches.
//!
//! The table below is the whole of it: a load, a figure, somebody to compare with, the ratio wanted.
//! Ratios are taken in one run, from pairs of repetitions.

use std::time::Duration;

use serde_json::{Value, json};

use crate::aio::Aio;
use crate::arena::{Arena, Contender, Figure, Ground, Row, Times};
use crate::compare::{Place, ratio_text};
use crate::error::Result;
use crate::idle::{self, Idle};
use crate::load::{Load, Measured, Order, Pattern, Waiting};
use crate::procfs;
use crate::program::blockplane;
use crate::progress::Progress;
use crate::run::describe;
use crate::stats::{Summary, count, number};
use crate::storage::Wanted;
use crate::table::Table;
use crate::units;

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
    /// Reads and writes on several queues and iothreads
    Mixed,
    /// Nothing to do
    Idle,
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Only these groups of rows [default: all]
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',', value_enum)]
    pub only: Vec<Group>,
    /// How long each measurement is
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::time)]
    pub time: Duration,
    /// Load before it that does not count
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = units::time_or_none)]
    pub warm_up: Duration,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Idle disks beside the one that is loaded, and of the server that has nothing to do
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub idle_disks: u16,
    /// Queues of each of them
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u8).range(1..))]
    pub idle_queues: u8,
    /// Where things are.
    #[command(flatten)]
    pub place: Place,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// Requests per second: ours over theirs.
    Iops,
    /// Processor time of the server per request: theirs over ours.
    Cpu,
}

/// With whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Against {
    /// qemu-storage-daemon.
    Peer,
    /// The host itself.
    Raw,
    /// Ours with one queue and nothing else.
    Alone,
}

/// One target.
struct Target {
    group: Group,
    waiting: Waiting,
    depth: u16,
    measure: Measure,
    against: Against,
    at_least: f64,
}

const fn target(
    group: Group,
    waiting: Waiting,
    depth: u16,
    measure: Measure,
    against: Against,
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
const TARGETS: [Target; 16] = {
    use Against::{Alone, Peer, Raw};
    use Group::{Disk, IdleNeighbours, Mixed, Null, Tmpfs};
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
        // The host waits as everybody does, in the kernel; and as nobody does, with all of a processor.
        target(Disk, Blocking, 32, Iops, Raw, 0.97),
        target(Disk, Blocking, 128, Iops, Raw, 0.97),
        target(Disk, Polling, 32, Iops, Raw, 0.97),
        target(Disk, Polling, 128, Iops, Raw, 0.97),
        target(Disk, Polling, 32, Cpu, Peer, 1.5),
        target(Disk, Polling, 128, Cpu, Peer, 1.5),
        target(IdleNeighbours, Polling, 32, Iops, Alone, 0.98),
        target(Mixed, Polling, 32, Iops, Peer, 1.2),
    ]
};

/// One target, measured.
#[derive(Clone, Debug)]
pub struct Outcome {
    load: String,
    measure: &'static str,
    against: String,
    at_least: f64,
    /// Of the figure itself: ours and theirs.
    figures: Option<(Summary, Summary)>,
    ratio: Option<Summary>,
    saturated: &'static str,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    /// In order of the table.
    pub outcomes: Vec<Outcome>,
    idle: Vec<Idle>,
}

/// Measures.
///
/// # Errors
/// When a request or a server fails.
pub fn run(options: &Options) -> Result<Report> {
    let wanted = |group: Group| options.only.is_empty() || options.only.contains(&group);
    let mut outcomes = Vec::new();
    for group in [
        Group::Null,
        Group::Tmpfs,
        Group::Disk,
        Group::IdleNeighbours,
        Group::Mixed,
    ] {
        if wanted(group) {
            outcomes.extend(measure(group, options)?);
        }
    }
    let idle = if wanted(Group::Idle) {
        let nothing = idle::Options {
            disks: options.idle_disks,
            queues: u16::from(options.idle_queues),
            queue_size: 128,
            watch_ms: u64::try_from(options.time.as_millis()).unwrap_or(u64::MAX),
            settle_ms: u64::try_from(options.warm_up.as_millis()).unwrap_or(u64::MAX),
            server: options.place.server.clone(),
            folder: options.place.folder.clone(),
        };
        idle::run(&nothing)?.servers
    } else {
        Vec::new()
    };
    Ok(Report { outcomes, idle })
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Group::Null => "null",
            Group::Tmpfs => "tmpfs",
            Group::Disk => "disk",
            Group::IdleNeighbours => "idle neighbours",
            Group::Mixed => "mixed",
            Group::Idle => "idle",
        }
    }

    fn storage(self) -> Wanted {
        match self {
            Group::Null | Group::IdleNeighbours | Group::Idle => Wanted::Null,
            Group::Tmpfs => Wanted::Tmpfs,
            Group::Disk | Group::Mixed => Wanted::File,
        }
    }

    /// The load of its targets, with one queue on one iothread, but for [`Group::Mixed`].
    fn load(self, waiting: Waiting, depth: u16, cpus: &[usize]) -> Load {
        let mixed = self == Group::Mixed;
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
            latency: false,
            span_bytes: 0,
        }
    }

    fn contenders(self, options: &Options, peer: bool) -> Vec<Contender> {
        let crowd = Contender::OursInACrowd {
            disks: options.idle_disks,
            queues: options.idle_queues,
        };
        let peer = peer.then_some(Contender::Peer(None));
        let raw = Contender::Raw(Aio::Native);
        match self {
            Group::Tmpfs | Group::Disk => [Contender::Ours, raw].into_iter().chain(peer).collect(),
            Group::IdleNeighbours => vec![crowd, Contender::Ours],
            _ => std::iter::once(Contender::Ours).chain(peer).collect(),
        }
    }
}

fn measure(group: Group, options: &Options) -> Result<Vec<Outcome>> {
    let targets: Vec<&Target> = TARGETS
        .iter()
        .filter(|target| target.group == group)
        .collect();
    let mut loads: Vec<(Waiting, u16)> = Vec::new();
    for target in &targets {
        let load = (target.waiting, target.depth);
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    let place = &options.place;
    let peer = place.peer();
    let contenders = group.contenders(options, peer.is_some());
    let steps = loads.len() * contenders.len() * options.repetitions as usize;
    let progress = Progress::start(&format!("targets, {}", group.name()), steps);
    progress.now("starting");
    let mixed = group == Group::Mixed;
    let storage = group.storage().storage(place.room(), None)?;
    let ground = Ground {
        ours: blockplane(place.server.as_deref())?,
        peer,
        backing: storage.backing.clone(),
        queues: if mixed { 4 } else { 1 },
        writable: mixed,
        iothreads: if mixed { 2 } else { 1 },
        iothread_options: String::new(),
        server_options: Vec::new(),
        server_cpus: if mixed {
            Vec::new()
        } else {
            place.server_cpus.clone()
        },
    };
    let times = Times {
        warm_up: options.warm_up,
        time: options.time,
        repetitions: options.repetitions,
    };
    let mut arena = Arena::open(ground, &contenders)?;
    let mut rows = Vec::new();
    for &(waiting, depth) in &loads {
        let load = group.load(waiting, depth, &place.client_cpus);
        rows.push(((waiting, depth), arena.row(&load, times, &progress)?));
    }
    arena.close()?;
    let outcomes = targets.into_iter().filter_map(|target| {
        let (_, row) = rows
            .iter()
            .find(|(load, _)| *load == (target.waiting, target.depth))?;
        Some(target.outcome(row, &contenders))
    });
    Ok(outcomes.collect())
}

impl Target {
    fn outcome(&self, row: &Row, contenders: &[Contender]) -> Outcome {
        let against = contenders.iter().position(|contender| match self.against {
            Against::Peer => matches!(contender, Contender::Peer(_)),
            Against::Raw => matches!(contender, Contender::Raw(_)),
            Against::Alone => *contender == Contender::Ours,
        });
        let (figure, name): (Figure, _) = match self.measure {
            Measure::Iops => (|measured| Some(measured.iops()), "IOPS"),
            Measure::Cpu => (Measured::server_cpu_ns, "CPU ns per I/O"),
        };
        let storage = match self.group.storage() {
            Wanted::Null => "null",
            Wanted::Tmpfs => "file on tmpfs",
            Wanted::File | Wanted::At(_) => "file on the disk",
        };
        let neighbours = match contenders.first() {
            Some(crowd @ Contender::OursInACrowd { .. }) => format!(", {crowd}"),
            _ => String::new(),
        };
        let ratio = against.and_then(|other| match self.measure {
            Measure::Iops => row.ratio(0, other, figure),
            // How many times less.
            Measure::Cpu => row.ratio(other, 0, figure),
        });
        let saturated = row.measured.first().and_then(|ours| ours.first());
        Outcome {
            load: format!("{storage}, {}{neighbours}", describe(&row.load)),
            measure: name,
            against: against.map_or_else(
                || "qemu-storage-daemon, which is not installed".to_owned(),
                |other| contenders[other].to_string(),
            ),
            at_least: self.at_least,
            figures: against
                .and_then(|other| Some((row.summary(0, figure)?, row.summary(other, figure)?))),
            ratio,
            saturated: saturated.map_or("", |ours| ours.saturated().who()),
        }
    }
}

impl Outcome {
    /// Whether the ratio is what was wanted; `None` where it was not measured.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        self.ratio.map(|ratio| ratio.median >= self.at_least)
    }
}

fn met_text(met: Option<bool>) -> String {
    match met {
        Some(true) => "met",
        Some(false) => "NOT MET",
        None => "not measured",
    }
    .to_owned()
}

impl Report {
    /// For whoever looks.
    #[must_use]
    pub fn table(&self) -> Table {
        let columns = [
            "load",
            "measure",
            "ours",
            "against",
            "theirs",
            "at least",
            "ratio",
            "",
            "saturated",
        ]
        .map(str::to_owned);
        let mut table = Table::new("What must hold", &columns);
        for outcome in &self.outcomes {
            let figure = |which: fn(&(Summary, Summary)) -> Summary| {
                let figures = outcome.figures.as_ref();
                figures.map_or_else(|| "-".to_owned(), |both| number(which(both).median))
            };
            table.row([
                outcome.load.clone(),
                outcome.measure.to_owned(),
                figure(|both| both.0),
                outcome.against.clone(),
                figure(|both| both.1),
                format!("{}x", outcome.at_least),
                outcome
                    .ratio
                    .map_or_else(|| "-".to_owned(), |ratio| ratio_text(&ratio)),
                met_text(outcome.met()),
                outcome.saturated.to_owned(),
            ]);
        }
        for idle in &self.idle {
            let used = procfs::total(&idle.threads);
            let quiet = used.voluntary_switches == 0 && used.cpu_ns == 0;
            table.row([
                format!("idle, {} queues on {}", count(idle.queues), idle.backing),
                "wake-ups; CPU us".to_owned(),
                format!("{}; {}", used.voluntary_switches, used.cpu_ns / 1000),
                String::new(),
                String::new(),
                "0".to_owned(),
                String::new(),
                met_text(Some(quiet)),
            ]);
        }
        table.note("ratio: of IOPS ours over theirs, of CPU theirs over ours; in pairs of repetitions: median (lowest-highest)");
        table.note("server and client on one processor each, except for the mixed load; the host's own load where the servers are");
        table.note("saturated: who could not have done more, when ours was loaded");
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let outcome = |outcome: &Outcome| {
            json!({
                "load": outcome.load,
                "measure": outcome.measure,
                "against": outcome.against,
                "at_least": outcome.at_least,
                "ours": outcome.figures.map(|both| both.0.json()),
                "theirs": outcome.figures.map(|both| both.1.json()),
                "ratio": outcome.ratio.map(|ratio| ratio.json()),
                "met": outcome.met(),
                "saturated": outcome.saturated,
            })
        };
        let idle = |idle: &Idle| {
            let used = procfs::total(&idle.threads);
            json!({
                "backing": idle.backing,
                "queues": idle.queues,
                "watched_ns": idle.watched_ns,
                "wake_ups": used.voluntary_switches,
                "cpu_ns": used.cpu_ns,
            })
        };
        json!({
            "targets": self.outcomes.iter().map(outcome).collect::<Vec<_>>(),
            "idle": self.idle.iter().map(idle).collect::<Vec<_>>(),
        })
    }
}
