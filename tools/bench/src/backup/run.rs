//! One measurement of a server: a job alone, its guest without a job and with jobs.

use std::time::Duration;

use super::Options;
use super::job::{BackupJob, BackupTarget, JobSettings, Sync};
use crate::background_load::BackgroundLoad;
use crate::comparison_options::PEER;
use crate::error::{Error, Result};
use crate::load::{Load, Measured, latencies, measure, measure_during};
use crate::monitor::{self, Monitor};
use crate::server::{Disk, Server};
use crate::server_programs::ServerProgram;

/// What the guest got.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestFigures {
    pub iops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// The figures of one measurement.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub without: GuestFigures,
    pub with: GuestFigures,
    /// Seconds of a job without load.
    pub alone_s: f64,
    /// Seconds of a job under load, on average.
    pub loaded_s: f64,
    /// Jobs under load.
    pub jobs: usize,
}

impl GuestFigures {
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
        Ok(GuestFigures {
            iops: completed as f64 / seconds,
            p50_us: all.value_at_percentile(50.0) as f64 / 1e3,
            p99_us: all.value_at_percentile(99.0) as f64 / 1e3,
        })
    }
}

/// Starts a server for it.
pub(super) fn measure_once(
    program: &ServerProgram,
    disk: &Disk,
    target: &BackupTarget,
    load: &Load,
    options: &Options,
) -> Result<Run> {
    let folder = tempfile::Builder::new()
        .prefix("bench-")
        .tempdir()
        .map_err(Error::io("create a folder for a monitor's socket"))?;
    let socket = folder.path().join("qmp");
    let words = monitor::arguments(&socket);
    // In the peer (11.1) a job that begins on an iothread under load hangs, or fails an assertion.
    let has_iothread = program.name != PEER || options.peer_iothread;
    let mut server =
        program.start_with(u16::from(has_iothread), &words, std::slice::from_ref(disk))?;
    let connection = server.connect_to(&socket)?;
    let _busy = BackgroundLoad::start()?;
    let run = Monitor::new(connection)
        .and_then(|mut monitor| measure_on(&mut server, &mut monitor, target, load, options))
        .map_err(|error| server.explain(error))?;
    server.stop()?;
    Ok(run)
}

fn measure_on(
    server: &mut Server,
    monitor: &mut Monitor,
    target: &BackupTarget,
    load: &Load,
    options: &Options,
) -> Result<Run> {
    let pid = Some(server.pid());
    let settings = JobSettings {
        sync: options.sync,
        speed: options.speed,
        time: options.time,
    };
    let alone = match options.sync {
        Sync::Full => BackupJob::new(monitor, target, settings).run_alone()?,
        // It would do nothing.
        Sync::None => Duration::ZERO,
    };
    let without = measure(server.connect(0)?, load, options.warm_up, options.time, pid)?;
    let mut with = Vec::new();
    let mut loaded = Duration::ZERO;
    while with.is_empty() || loaded < options.time {
        let mut job = BackupJob::new(monitor, target, settings);
        with.push(measure_during(
            server.connect(0)?,
            load,
            options.warm_up,
            &mut job,
        )?);
        loaded += job.finish()?;
    }
    Ok(Run {
        without: GuestFigures::of(&[without])?,
        with: GuestFigures::of(&with)?,
        alone_s: alone.as_secs_f64(),
        loaded_s: loaded.as_secs_f64() / with.len() as f64,
        jobs: with.len(),
    })
}
