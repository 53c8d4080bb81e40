//! `blockplane-bench neighbours`: a disk with one read in flight, alone and beside another one that takes all it can get.

use std::time::Duration;

use serde_json::{Value, json};

use crate::aio::Aio;
use crate::background_load::BackgroundLoad;
use crate::client::{Form, Placement};
use crate::compare::ratio_text;
use crate::comparison_options::{ComparisonOptions, PEER};
use crate::error::{Error, Result};
use crate::load::{Detail, Load, Measured, Order, Pattern, Waiting, measure_together};
use crate::progress::Progress;
use crate::server::{Disk, Server};
use crate::server_programs::{ServerName, ServerProgram};
use crate::stats::{Summary, number};
use crate::storage::BackingOption;
use crate::table::Table;
use crate::units;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Who takes part [default: ours, and qemu-storage-daemon where it is installed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_enum)]
    pub servers: Vec<ServerName>,
    /// What is behind each of the two disks: null, file or tmpfs (temporary files there)
    #[arg(
        long,
        value_name = "WHAT,…",
        value_delimiter = ',',
        default_value = "null"
    )]
    pub backing: Vec<BackingOption>,
    /// How the reading client learns of completions; the other one sleeps, unless its signals block
    #[arg(long, value_name = "HOW", value_enum, default_value = "blocking")]
    pub client: Waiting,
    /// How long each measurement is
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    pub time: Duration,
    /// Load before it that does not count
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = commands::time::parse_duration)]
    pub warm_up: Duration,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Where things are.
    #[command(flatten)]
    pub place: ComparisonOptions,
}

/// What a greedy disk does.
struct GreedyLoad {
    name: &'static str,
    read_percent: u8,
    block_bytes: u32,
    form: Form,
    waiting: Waiting,
}

impl GreedyLoad {
    /// Whether a server survives it: in the peer a signal that blocks stalls the iothread for ever.
    fn suits(&self, server: &str) -> bool {
        self.waiting != Waiting::Obstructing || server != PEER
    }
}

const GREEDY_DEPTH: u16 = 256;

const GREEDY_LOADS: [GreedyLoad; 4] = [
    GreedyLoad {
        name: "writes of 1 MiB",
        read_percent: 0,
        block_bytes: 1 << 20,
        form: Form::Plain,
        waiting: Waiting::Blocking,
    },
    GreedyLoad {
        name: "discards of 1 MiB",
        read_percent: 0,
        block_bytes: 1 << 20,
        form: Form::Discards,
        waiting: Waiting::Blocking,
    },
    GreedyLoad {
        name: "unaligned reads of 4 KiB",
        read_percent: 100,
        block_bytes: 4096,
        form: Form::Unaligned,
        waiting: Waiting::Blocking,
    },
    GreedyLoad {
        name: "signals that block",
        read_percent: 100,
        block_bytes: 4096,
        form: Form::Plain,
        waiting: Waiting::Obstructing,
    },
];

/// Where the greedy disk is served.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    SameIothread,
    AnotherIothread,
    /// Nothing is shared but the machine: what the other places are to be compared with.
    AnotherServer,
}

impl Place {
    const ALL: [Place; 3] = [
        Place::SameIothread,
        Place::AnotherIothread,
        Place::AnotherServer,
    ];

    fn name(self) -> &'static str {
        match self {
            Place::SameIothread => "same iothread",
            Place::AnotherIothread => "another iothread",
            Place::AnotherServer => "another server",
        }
    }

    /// Starts what serves the disks.
    fn start(self, program: &ServerProgram, disks: &[Disk]) -> Result<Vec<Server>> {
        match self {
            Place::SameIothread => Ok(vec![program.start(1, disks)?]),
            Place::AnotherIothread => Ok(vec![program.start(2, disks)?]),
            Place::AnotherServer => disks.chunks(1).map(|disk| program.start(1, disk)).collect(),
        }
    }
}

/// One case.
#[derive(Clone, Debug)]
struct Row {
    backing: String,
    greedy_load: &'static str,
    place: &'static str,
    servers: Vec<Figures>,
}

/// What one server did.
#[derive(Clone, Debug)]
struct Figures {
    server: &'static str,
    /// Of reads, alone and beside the other disk, in microseconds.
    p50_us: [Summary; 2],
    p99_us: Summary,
    /// Reads per second by the median latency, beside the other disk over alone.
    ratio: Summary,
    greedy_mb_per_s: Summary,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    rows: Vec<Row>,
    /// Cases without the peer.
    without_peer: Vec<&'static str>,
}

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`] for a disk with data that is not ours, or when a program is not there; when a request or a server
/// fails.
pub fn run(options: &Options) -> Result<Report> {
    let servers = ServerProgram::find(&options.servers, &options.place)?;
    let servers: Vec<_> = servers.into_iter().map(ServerProgram::unpinned).collect();
    if let Some(foreign) = options.backing.iter().find(|backing| backing.is_foreign()) {
        return Err(Error::Unsuitable(format!(
            "--backing {foreign}: the greedy disk is written to; null, file or tmpfs is expected"
        )));
    }
    let of = |greedy_load: &'static GreedyLoad| {
        servers
            .iter()
            .filter(|server| greedy_load.suits(server.name))
    };
    let cases = options.backing.len() * Place::ALL.len() * GREEDY_LOADS.iter().flat_map(of).count();
    let progress = Progress::start("neighbours", cases * options.repetitions as usize);
    let mut rows = Vec::new();
    for wanted in &options.backing {
        progress.now(format!("making the disks: {wanted}"));
        let room = options.place.room();
        let disks = [(); 2].map(|()| wanted.storage(room, Some(Aio::Native)));
        let [quiet, greedy] = disks;
        let (quiet, greedy) = (quiet?, greedy?);
        let disks = [
            Disk::of_one_queue(&quiet.backing, false),
            Disk::of_one_queue(&greedy.backing, true),
        ];
        for greedy_load in &GREEDY_LOADS {
            for place in Place::ALL {
                let mut servers: Vec<_> =
                    of(greedy_load).map(|server| (server, Vec::new())).collect();
                for _ in 0..options.repetitions {
                    for (server, runs) in &mut servers {
                        progress.now(format!(
                            "{}, {}: {}",
                            greedy_load.name,
                            place.name(),
                            server.name
                        ));
                        let run = measure_once(server, place, &disks, greedy_load, options);
                        runs.push(run.map_err(|error| error.of(server.name))?);
                        progress.step();
                    }
                }
                rows.push(Row {
                    backing: wanted.to_string(),
                    greedy_load: greedy_load.name,
                    place: place.name(),
                    servers: servers
                        .iter()
                        .filter_map(|(server, runs)| figures(server.name, runs))
                        .collect(),
                });
            }
        }
    }
    let without_peer = GREEDY_LOADS
        .iter()
        .filter(|greedy_load| servers.iter().any(|server| !greedy_load.suits(server.name)));
    Ok(Report {
        rows,
        without_peer: without_peer.map(|greedy_load| greedy_load.name).collect(),
    })
}

/// The reads alone, and both.
#[derive(Clone, Debug)]
struct Run {
    alone: Measured,
    beside: Measured,
    greedy: Measured,
}

fn measure_once(
    program: &ServerProgram,
    place: Place,
    disks: &[Disk],
    greedy_load: &GreedyLoad,
    options: &Options,
) -> Result<Run> {
    let quiet = Load {
        pattern: Pattern {
            order: Order::Random,
            read_percent: 100,
        },
        block_bytes: 4096,
        depth: 1,
        queues: 1,
        waiting: options.client,
        threads: 1,
        cpus: Vec::new(),
        gives_way: false,
        detail: Detail {
            latency: true,
            ..Detail::default()
        },
        span_bytes: 0,
        recorded: false,
        placement: Placement::Packed,
        form: Form::Plain,
    };
    let greedy = Load {
        pattern: Pattern {
            order: Order::Random,
            read_percent: greedy_load.read_percent,
        },
        block_bytes: greedy_load.block_bytes,
        depth: GREEDY_DEPTH,
        waiting: greedy_load.waiting,
        gives_way: true,
        form: greedy_load.form,
        ..quiet.clone()
    };
    let measure = |loads: &[&Load]| {
        let mut servers = place.start(program, disks)?;
        let measured = measure_on(&mut servers, loads, options);
        let measured = measured.map_err(|error| match servers.first_mut() {
            Some(server) => server.explain(error),
            None => error,
        })?;
        servers.into_iter().try_for_each(Server::stop)?;
        Ok(measured)
    };
    let _busy = BackgroundLoad::start()?;
    let alone = measure(&[&quiet])?;
    let both = measure(&[&quiet, &greedy])?;
    let mut all = alone.into_iter().chain(both);
    let (Some(alone), Some(beside), Some(greedy)) = (all.next(), all.next(), all.next()) else {
        return Err(Error::Requests("a load has no figures".to_owned()));
    };
    Ok(Run {
        alone,
        beside,
        greedy,
    })
}

/// Puts a load on each of the first disks.
fn measure_on(servers: &mut [Server], loads: &[&Load], options: &Options) -> Result<Vec<Measured>> {
    let pid = servers[0].pid();
    let disks = loads.iter().enumerate().map(|(index, load)| {
        let stream = match servers {
            [server] => server.connect(index)?,
            _ => servers[index].connect(0)?,
        };
        Ok((stream, *load))
    });
    let disks = disks.collect::<Result<Vec<_>>>()?;
    measure_together(disks, options.warm_up, options.time, pid)
}

fn figures(server: &'static str, runs: &[Run]) -> Option<Figures> {
    let summary = |value: &dyn Fn(&Run) -> Option<f64>| {
        Summary::of(&runs.iter().map(value).collect::<Option<Vec<_>>>()?)
    };
    let latency_us = |measured: &Measured, percent| crate::run::latency_us(measured, percent);
    Some(Figures {
        server,
        p50_us: [
            summary(&|run| latency_us(&run.alone, 50.0))?,
            summary(&|run| latency_us(&run.beside, 50.0))?,
        ],
        p99_us: summary(&|run| latency_us(&run.beside, 99.0))?,
        ratio: summary(&|run| {
            Some(latency_us(&run.alone, 50.0)? / latency_us(&run.beside, 50.0)?)
        })?,
        greedy_mb_per_s: summary(&|run| Some(run.greedy.mb_per_s()))?,
    })
}

impl Report {
    /// The table for people: a row for each case and server.
    #[must_use]
    pub fn table(&self) -> Table {
        let columns = [
            "beside the other disk's",
            "server",
            "alone, p50 us",
            "beside, p50 us",
            "p99 us",
            "rate",
            "the other's MB/s",
        ];
        let title = "4k random reads at depth 1, beside a disk with 256 requests in flight";
        let mut table = Table::new(title, &columns.map(str::to_owned));
        for row in &self.rows {
            for figures in &row.servers {
                table.row([
                    format!("{}: {}, {}", row.backing, row.greedy_load, row.place),
                    figures.server.to_owned(),
                    number(figures.p50_us[0].median),
                    number(figures.p50_us[1].median),
                    number(figures.p99_us.median),
                    ratio_text(&figures.ratio),
                    number(figures.greedy_mb_per_s.median),
                ]);
            }
        }
        table.note("rate: reads per second by the median latency, beside the other disk over alone: median (lowest-highest)");
        for case in &self.without_peer {
            table.note(format!(
                "{case}: not in {PEER}, whose iothread they stall for ever"
            ));
        }
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let figures = |figures: &Figures| {
            json!({
                "server": figures.server,
                "alone_p50_us": figures.p50_us[0].json(),
                "beside_p50_us": figures.p50_us[1].json(),
                "beside_p99_us": figures.p99_us.json(),
                "rate_ratio": figures.ratio.json(),
                "greedy_mb_per_s": figures.greedy_mb_per_s.json(),
            })
        };
        let row = |row: &Row| {
            json!({
                "backing": row.backing,
                "greedy": row.greedy_load,
                "place": row.place,
                "figures": row.servers.iter().map(figures).collect::<Value>(),
            })
        };
        json!({ "neighbours": self.rows.iter().map(row).collect::<Value>() })
    }
}
