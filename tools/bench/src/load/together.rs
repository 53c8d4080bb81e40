//! Disks of a server under different loads at the same time.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::phases::conduct;
use super::started_server::StartedServer;
use super::{Load, Measured, Walk, usage, workers};
use crate::error::Result;

/// Puts a load on each of several disks of one server, as [`measure`](super::measure) does on one. The usage of the server is
/// that of all of them together.
///
/// # Errors
/// As for [`measure`](super::measure).
pub fn measure_together(
    disks: Vec<(UnixStream, &Load)>,
    warm_up: Duration,
    time: Duration,
    server: u32,
) -> Result<Vec<Measured>> {
    let mut started = Vec::new();
    for (stream, load) in disks {
        let disk = StartedServer::new(stream, load)?;
        if load.pattern.writes() {
            disk.scatter();
        }
        started.push((disk, load));
    }
    let mut drivers = Vec::new();
    for (disk, load) in &started {
        let walk = |index| Walk::new(load.pattern, disk.blocks, index, load.queues);
        drivers.push(disk.drivers(walk));
    }
    let mut all = Vec::new();
    let mut threads_of = Vec::new();
    for (drivers, (disk, load)) in drivers.iter_mut().zip(&started) {
        let workers = workers(drivers, disk.session.socket(), load);
        threads_of.push(workers.len());
        all.extend(workers);
    }
    let mut usage = usage::UsageSampler::new(Some(server));
    let mut tallies = conduct(all, warm_up, time, |phase| {
        usage.look(phase);
        Ok(())
    })?
    .into_iter();
    drop(drivers);
    let used = usage.used();
    let mut measured = Vec::new();
    for ((disk, load), threads) in started.into_iter().zip(threads_of) {
        disk.stop()?;
        measured.push(Measured {
            block_bytes: load.block_bytes,
            threads: tallies.by_ref().take(threads).collect(),
            server: used.clone(),
        });
    }
    Ok(measured)
}
