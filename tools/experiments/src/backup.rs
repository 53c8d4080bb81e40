//! A guest's load while no job runs, and while a backup copies its disk at full speed to a new file beside it.
//!
//! The guest counts for whole jobs, from right before the command to the event of its end. Requests in flight at the end count for
//! the latency as well: of a server that answers none beside a job there would be no latency otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bench::aio::Aio;
use bench::comparison_options::PEER;
use bench::load::{Detail, Load, Measured, Phase, Span, Waiting, latencies, measure_together};
use bench::progress::Progress;
use bench::run::describe;
use bench::server::{Disk, Server, Threads};
use bench::stats::{Summary, in_turn, number};
use bench::storage::{Backing, BackingOption, check_room};
use bench::table::Table;
use bench::{Error, Result};
use serde_json::json;

use crate::background_load::BackgroundLoad;
use crate::monitor::{self, Monitor};
use crate::setup::{Program, Setup};

/// For a job. Only one that hangs, or gets next to nothing beside the load, takes it.
const JOB_LIMIT: Duration = Duration::from_secs(600);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What the guest got.
struct Guest {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
}

/// One measurement: the guest without a job and with jobs, and the seconds of a job without load and under load.
struct Run {
    without: Guest,
    with: Guest,
    alone_s: f64,
    loaded_s: f64,
}

type Figure = (&'static str, fn(&Run) -> f64);

/// With a job over without.
const RATIOS: [Figure; 3] = [
    ("IOPS ratio", |run| run.with.iops / run.without.iops),
    ("p50 ratio", |run| run.with.p50_us / run.without.p50_us),
    ("p99 ratio", |run| run.with.p99_us / run.without.p99_us),
];

const MEDIANS: [Figure; 4] = [
    ("IOPS with job", |run| run.with.iops),
    ("p99 us with job", |run| run.with.p99_us),
    ("job alone, s", |run| run.alone_s),
    ("job under load, s", |run| run.loaded_s),
];

pub(crate) fn run(setup: &Setup) -> Result<Vec<Table>> {
    let programs = setup.programs()?;
    let backings = setup.backings(&[BackingOption::Tmpfs, BackingOption::File]);
    let is_ours =
        |backing: &&BackingOption| matches!(backing, BackingOption::File | BackingOption::Tmpfs);
    if let Some(other) = backings.iter().find(|backing| !is_ours(backing)) {
        return Err(Error::Unsuitable(format!(
            "--backing {other}: the disk is full of data, and written to; file or tmpfs is expected"
        )));
    }
    let mut columns = vec!["load".to_owned(), "server".to_owned()];
    columns.extend(
        RATIOS
            .iter()
            .chain(&MEDIANS)
            .map(|(name, _)| (*name).to_owned()),
    );
    let mut table = Table::new("A guest with a backup of its disk, and without", &columns);
    let loads = [(100, 1), (100, 32), (0, 1), (0, 32)].map(|(reads, depth)| Load {
        detail: Detail {
            latency: true,
            in_flight: true,
            ..Detail::default()
        },
        ..setup.load(reads, 4, 1, depth, Waiting::Blocking)
    });
    let steps = backings.len() * loads.len() * programs.len();
    let progress = Progress::start("backup", steps * setup.repetitions as usize);
    for wanted in &backings {
        let storage = wanted.storage(setup.place.room(), Some(Aio::Native))?;
        let Backing::File(path, _) = &storage.backing else {
            continue;
        };
        let in_memory = *wanted == BackingOption::Tmpfs;
        check_room(path, setup.place.size, in_memory)?;
        let disk = Disk::virtio(&storage.backing, 1, true);
        for load in &loads {
            let case = format!("{wanted}: {}", describe(load));
            let runs = in_turn(programs.len(), setup.repetitions, |index| {
                let program = &programs[index];
                progress.now(format!("{case}: {}", program.name));
                let run = measure(program, &disk, path, load, setup);
                progress.step();
                run.map_err(|error| error.of(program.name))
            })?;
            for (program, runs) in programs.iter().zip(&runs) {
                let summary =
                    |figure: fn(&Run) -> f64| Summary::of_runs(runs, |run| Some(figure(run)));
                let mut row = vec![case.clone(), program.name.to_owned()];
                row.extend(RATIOS.iter().map(|&(_, figure)| {
                    summary(figure).map_or_else(String::new, |ratio| ratio.ratio_text())
                }));
                row.extend(MEDIANS.iter().map(|&(_, figure)| {
                    summary(figure).map_or_else(String::new, |it| number(it.median))
                }));
                table.row(row);
            }
        }
    }
    table.note("ratio: with a job over without, in the same repetition: median (lowest-highest)");
    table.note(format!(
        "{PEER} serves the disk in its main thread: version 11.1 hangs or aborts when a job begins on an iothread under load"
    ));
    Ok(vec![table])
}

/// Starts a server for it.
fn measure(program: &Program, disk: &Disk, path: &Path, load: &Load, setup: &Setup) -> Result<Run> {
    let folder = tempfile::tempdir().map_err(Error::io("create a folder for a socket"))?;
    let socket = folder.path().join("qmp");
    let threads = Threads {
        count: u16::from(program.name != PEER),
        options: "",
    };
    let words = monitor::arguments(&socket);
    let disks = std::slice::from_ref(disk);
    let cpus = &setup.place.server_cpus;
    let mut server = Server::start(&program.path, cpus, threads, &words, disks)?;
    let connection = server.connect_to(&socket)?;
    let _busy = BackgroundLoad::start()?;
    let run = Monitor::new(connection).and_then(|monitor| {
        let job = Job {
            monitor,
            target: path.with_file_name("backup.img"),
            bytes: setup.place.size,
            begun: None,
        };
        measure_on(&mut server, job, load, setup)
    });
    let run = run.map_err(|error| server.explain(error))?;
    server.stop()?;
    Ok(run)
}

fn measure_on(server: &mut Server, mut job: Job, load: &Load, setup: &Setup) -> Result<Run> {
    let pid = Some(server.pid());
    job.prepare()?;
    while job.lasts()? {}
    let alone = job.finish()?;
    let mut measure = |span: Span<'_>| {
        let streams = vec![server.connect(0)?];
        measure_together(vec![(streams, load)], setup.warm_up, span, pid)
    };
    let without = measure(Span::Time(setup.time))?;
    let (mut with, mut loaded, mut jobs) = (Vec::new(), Duration::ZERO, 0u32);
    while jobs == 0 || loaded < setup.time {
        // Prepared once a front-end is connected: a peer may close descriptors twice when a front-end leaves, those of a file that
        // is opened meanwhile.
        with.extend(measure(Span::While(&mut |phase| match phase {
            Phase::WarmUp => job.prepare().map(|()| true),
            _ => job.lasts(),
        }))?);
        loaded += job.finish()?;
        jobs += 1;
    }
    Ok(Run {
        without: Guest::of(&without)?,
        with: Guest::of(&with)?,
        alone_s: alone.as_secs_f64(),
        loaded_s: loaded.as_secs_f64() / f64::from(jobs),
    })
}

impl Guest {
    /// Of all parts together.
    fn of(parts: &[Measured]) -> Result<Self> {
        let mut all = latencies();
        for part in parts {
            if let Some(latencies) = part.latencies() {
                all += latencies;
            }
        }
        let completed: u64 = parts.iter().map(Measured::completed).sum();
        let seconds: f64 = parts.iter().map(Measured::seconds).sum();
        if all.is_empty() || seconds == 0.0 {
            return Err(Error::Requests("a load has no figures".to_owned()));
        }
        Ok(Guest {
            iops: completed as f64 / seconds,
            p50_us: all.value_at_percentile(50.0) as f64 / 1e3,
            p99_us: all.value_at_percentile(99.0) as f64 / 1e3,
        })
    }
}

/// Backups of the disk `d0`, one after the other, each to a new file.
struct Job {
    monitor: Monitor,
    target: PathBuf,
    bytes: u64,
    /// The present one, and how long it took once it is over.
    begun: Option<(Instant, Duration)>,
}

impl Job {
    fn prepare(&mut self) -> Result<()> {
        let path = &self.target;
        fs::File::create(path)
            .and_then(|file| file.set_len(self.bytes))
            .map_err(Error::io(format!("create {}", path.display())))?;
        let node = json!({
            "driver": "file",
            "node-name": "target",
            "filename": path.display().to_string(),
            "cache": { "direct": true },
            "aio": "native",
            "discard": "unmap",
        });
        self.monitor.execute("blockdev-add", &node)
    }

    /// Begins it, or waits a moment for its end. Whether it still runs.
    fn lasts(&mut self) -> Result<bool> {
        let Some((begun, took)) = &mut self.begun else {
            self.begun = Some((Instant::now(), Duration::ZERO));
            let arguments =
                json!({ "job-id": "backup", "device": "d0", "target": "target", "sync": "full" });
            self.monitor.execute("blockdev-backup", &arguments)?;
            return Ok(true);
        };
        if let Some(event) = self.monitor.event(LOOK_INTERVAL)?
            && event["data"]["device"] == "backup"
        {
            *took = begun.elapsed();
            let is_completed = event["event"] == "BLOCK_JOB_COMPLETED";
            return match is_completed && event["data"].get("error").is_none() {
                true => Ok(false),
                false => Err(Error::Requests(format!("the backup: {event}"))),
            };
        }
        match begun.elapsed() > JOB_LIMIT {
            true => Err(Error::Requests("the backup does not end".to_owned())),
            false => Ok(true),
        }
    }

    /// Removes its target; how long it took, from the command to the event of its end.
    fn finish(&mut self) -> Result<Duration> {
        let target = json!({ "node-name": "target" });
        self.monitor.execute("blockdev-del", &target)?;
        let path = &self.target;
        fs::remove_file(path).map_err(Error::io(format!("remove {}", path.display())))?;
        Ok(self
            .begun
            .take()
            .unwrap_or((Instant::now(), Duration::ZERO))
            .1)
    }
}
