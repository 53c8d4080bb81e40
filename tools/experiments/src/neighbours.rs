//! A disk with one read in flight, alone and beside another one that takes all it can get.

use bench::aio::Aio;
use bench::client::Form;
use bench::load::{Detail, Load, Measured, Span, Waiting, measure_together};
use bench::progress::Progress;
use bench::server::{Disk, Server, Threads};
use bench::stats::{Summary, in_turn, number};
use bench::storage::BackingOption;
use bench::table::Table;
use bench::{Error, Result};

use crate::background_load::BackgroundLoad;
use crate::setup::{Program, Setup};

const GREEDY_DEPTH: u16 = 256;

/// What a greedy disk does: its name, the reads among its requests in percent, their KiB, their form.
const GREEDY_LOADS: [(&str, u8, u32, Form); 3] = [
    ("writes of 1 MiB", 0, 1024, Form::Plain),
    ("discards of 1 MiB", 0, 1024, Form::Discards),
    ("unaligned reads of 4 KiB", 100, 4, Form::Unaligned),
];

/// Where the greedy disk is served. Another server shares nothing but the machine: no server can do better than that.
const PLACES: [(&str, Place); 3] = [
    ("same iothread", Place::Iothreads(1)),
    ("another iothread", Place::Iothreads(2)),
    ("another server", Place::AnotherServer),
];

#[derive(Clone, Copy)]
enum Place {
    /// In the same server with so many iothreads.
    Iothreads(u16),
    AnotherServer,
}

/// The reads alone and beside the greedy disk, and that one's requests.
struct Run {
    alone: Measured,
    beside: Measured,
    greedy: Measured,
}

pub(crate) fn run(setup: &Setup) -> Result<Vec<Table>> {
    let programs = setup.programs()?;
    let backings = setup.backings(&[BackingOption::Null, BackingOption::Tmpfs]);
    if let Some(foreign) = backings.iter().find(|backing| backing.is_foreign()) {
        return Err(Error::Unsuitable(format!(
            "--backing {foreign}: the greedy disk is written to; null, file or tmpfs is expected"
        )));
    }
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
    let cases = backings.len() * GREEDY_LOADS.len() * PLACES.len() * programs.len();
    let progress = Progress::start("neighbours", cases * setup.repetitions as usize);
    for wanted in &backings {
        let storage = || wanted.storage(setup.place.room(), Some(Aio::Native));
        let (quiet, greedy) = (storage()?, storage()?);
        let disks = [
            Disk::virtio(&quiet.backing, 1, false),
            Disk::virtio(&greedy.backing, 1, true),
        ];
        for (greedy, read_percent, kib, form) in GREEDY_LOADS {
            let quiet_load = Load {
                cpus: Vec::new(),
                detail: Detail {
                    latency: true,
                    ..Detail::default()
                },
                ..setup.load(100, 4, 1, 1, Waiting::Blocking)
            };
            let greedy_load = Load {
                cpus: Vec::new(),
                gives_way: true,
                form,
                waiting: Waiting::Blocking,
                ..setup.load(read_percent, kib, 1, GREEDY_DEPTH, Waiting::Blocking)
            };
            for (place_name, place) in PLACES {
                let case = format!("{wanted}: {greedy}, {place_name}");
                let runs = in_turn(programs.len(), setup.repetitions, |index| {
                    let program = &programs[index];
                    progress.now(format!("{case}: {}", program.name));
                    let measure = |loads: &[&Load]| measure(program, place, &disks, loads, setup);
                    let _busy = BackgroundLoad::start()?;
                    let run = measure(&[&quiet_load])
                        .and_then(|alone| Ok((alone, measure(&[&quiet_load, &greedy_load])?)));
                    progress.step();
                    let (mut alone, mut both) = run.map_err(|error| error.of(program.name))?;
                    match (alone.pop(), both.pop(), both.pop()) {
                        (Some(alone), Some(greedy), Some(beside)) => Ok(Run {
                            alone,
                            beside,
                            greedy,
                        }),
                        _ => Err(Error::Requests("a load has no figures".to_owned())),
                    }
                })?;
                for (program, runs) in programs.iter().zip(&runs) {
                    table.row(row(&case, program.name, runs));
                }
            }
        }
    }
    table.note("rate: reads per second by the median latency, beside the other disk over alone: median (lowest-highest)");
    Ok(vec![table])
}

/// Starts servers for it, and puts a load on each of the first disks.
fn measure(
    program: &Program,
    place: Place,
    disks: &[Disk],
    loads: &[&Load],
    setup: &Setup,
) -> Result<Vec<Measured>> {
    let start = |count, disks: &[Disk]| {
        let threads = Threads { count, options: "" };
        Server::start(&program.path, &[], threads, &[], disks)
    };
    let mut servers = match place {
        Place::Iothreads(count) => vec![start(count, disks)?],
        Place::AnotherServer => {
            let servers = disks.chunks(1).map(|disk| start(1, disk));
            servers.collect::<Result<Vec<_>>>()?
        }
    };
    let pid = Some(servers[0].pid());
    let streams = loads.iter().enumerate().map(|(index, load)| {
        let stream = match &mut servers[..] {
            [server] => server.connect(index)?,
            servers => servers[index].connect(0)?,
        };
        Ok((vec![stream], *load))
    });
    let measured = streams
        .collect::<Result<Vec<_>>>()
        .and_then(|streams| measure_together(streams, setup.warm_up, Span::Time(setup.time), pid));
    let measured = measured.map_err(|error| servers[0].explain(error))?;
    for server in servers {
        server.stop()?;
    }
    Ok(measured)
}

fn row(case: &str, server: &str, runs: &[Run]) -> Vec<String> {
    let median = |figure: &dyn Fn(&Run) -> Option<f64>| {
        let summary = Summary::of_runs(runs, figure);
        summary.map_or_else(String::new, |summary| number(summary.median))
    };
    let ratio = |run: &Run| Some(run.alone.latency_us(50.0)? / run.beside.latency_us(50.0)?);
    let ratio = Summary::of_runs(runs, ratio);
    vec![
        case.to_owned(),
        server.to_owned(),
        median(&|run| run.alone.latency_us(50.0)),
        median(&|run| run.beside.latency_us(50.0)),
        median(&|run| run.beside.latency_us(99.0)),
        ratio.map_or_else(String::new, |ratio| ratio.ratio_text()),
        median(&|run| Some(run.greedy.mb_per_s())),
    ]
}
