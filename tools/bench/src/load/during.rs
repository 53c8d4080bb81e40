//! A load that counts while something else happens.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::phases::{Episode, conduct_during};
use super::started_server::StartedServer;
use super::{Load, Measured, Walk, workers};
use crate::error::Result;

/// Puts a load on a disk as [`measure`](super::measure) does, and counts while an episode lasts that begins after the warm-up.
///
/// # Errors
/// As for [`measure`](super::measure); when the episode fails.
pub fn measure_during(
    stream: UnixStream,
    load: &Load,
    warm_up: Duration,
    episode: &mut impl Episode,
) -> Result<Measured> {
    let disk = StartedServer::new(stream, load)?;
    if load.pattern.writes() {
        disk.scatter();
    }
    let walk = |index| Walk::new(load.pattern, disk.blocks, index, load.queues);
    let mut drivers = disk.drivers(walk);
    let workers = workers(&mut drivers, disk.session.socket(), load);
    let threads = conduct_during(workers, warm_up, episode)?;
    drop(drivers);
    disk.stop()?;
    Ok(Measured {
        block_bytes: load.block_bytes,
        threads,
        server: None,
    })
}
