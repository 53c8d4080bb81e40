//! `blockplane-bench idle`: cost of disks that are attached and idle.
//!
//! One server with many disks of many queues, all started by a front-end of ours, and then
//! silence. What is promised: no thread of the server wakes up, and a queue costs little memory.

mod report;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::aio::Aio;
use crate::client::{Doorbells, Layout, Session, SharedMemory};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::limits::{descriptors_left, raise_descriptor_limit};
use crate::procfs;
use crate::program::blockplane;
use crate::progress::Progress;
use crate::server::{Disk, FrontEnd, Server};
use crate::storage::{Backing, image_folder};
pub use report::{Idle, Report};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Disks of the one server
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub disks: u16,
    /// Queues of each disk
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub queues: u16,
    /// Entries of each queue, a power of two
    #[arg(long, value_name = "N", default_value = "128", value_parser = queue_size)]
    pub queue_size: u16,
    /// How long to watch the idle server, in milliseconds
    #[arg(long, value_name = "MS", default_value = "3000")]
    pub watch_ms: u64,
    /// How long to let it settle before that, in milliseconds
    #[arg(long, value_name = "MS", default_value = "500")]
    pub settle_ms: u64,
    /// The blockplane to measure [default: BLOCKPLANE_BIN, else the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub server: Option<PathBuf>,
    /// Where to put the disks' files for the time being [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
}

fn queue_size(text: &str) -> std::result::Result<u16, String> {
    match text.parse::<u16>() {
        Ok(size) if size.is_power_of_two() && (2..=1024).contains(&size) => Ok(size),
        _ => Err("a power of two from 2 to 1024 is expected".to_owned()),
    }
}

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`] when descriptors would run out; [`Error::Server`] and others when the
/// server fails.
pub fn run(options: &Options) -> Result<Report> {
    let queues = u64::from(options.disks) * u64::from(options.queues);
    let limit = raise_descriptor_limit();
    // Ours: two of each queue, a socket and the memory of each disk. The server's are about as many.
    let needed = 2 * queues + 2 * u64::from(options.disks);
    if needed > descriptors_left(limit) as u64 {
        return Err(Error::Unsuitable(format!(
            "{queues} queues need {needed} descriptors and this process may have {limit}: raise the \
             hard limit (`ulimit -Hn`) or lower --disks or --queues"
        )));
    }
    let program = blockplane(options.server.as_deref())?;
    let progress = Progress::start("idle", 2 * usize::from(options.disks) + 2);
    let mut servers = vec![measure(&program, "null-co", options, None, &progress)?];
    let folder = image_folder(options.folder.as_deref())?;
    servers.push(measure(
        &program,
        "file",
        options,
        Some(folder.path()),
        &progress,
    )?);
    Ok(Report {
        options: options.clone(),
        servers,
    })
}

/// A disk's front-end, which stays connected while the server is measured.
struct ConnectedFrontEnd {
    session: Session,
    memory: SharedMemory,
    doorbells: Vec<Doorbells>,
}

fn measure(
    program: &Path,
    backing: &'static str,
    options: &Options,
    folder: Option<&Path>,
    progress: &Progress,
) -> Result<Idle> {
    progress.now(format!("{backing}: starting the server"));
    let disks = (0..options.disks)
        .map(|index| disk(index, options, folder))
        .collect::<Result<Vec<_>>>()?;
    let mut server = Server::start(program, &disks)?;
    let idle = watch(&mut server, backing, options, progress);
    let idle = idle.map_err(|error| server.explain(error))?;
    server.stop()?;
    Ok(idle)
}

fn watch(
    server: &mut Server,
    backing: &'static str,
    options: &Options,
    progress: &Progress,
) -> Result<Idle> {
    let sessions = (0..usize::from(options.disks))
        .map(|index| Session::negotiate(server.connect(index)?))
        .collect::<Result<Vec<_>>>()?;
    let pid = server.pid();
    let memory_before = procfs::memory(pid)?;
    let descriptors_before = procfs::descriptors(pid)?;

    progress.now(format!("{backing}: starting queues"));
    let start = Instant::now();
    let mut attached = Vec::new();
    for session in sessions {
        attached.push(attach(session, options)?);
        progress.step();
    }
    let start_ns = ns(start.elapsed());
    interrupt::sleep(Duration::from_millis(options.settle_ms))?;
    let memory_after = procfs::memory(pid)?;
    let descriptors_after = procfs::descriptors(pid)?;

    progress.now(format!("{backing}: watching"));
    let before = procfs::threads(pid)?;
    let start = Instant::now();
    interrupt::sleep(Duration::from_millis(options.watch_ms))?;
    let after = procfs::threads(pid)?;
    let watched_ns = ns(start.elapsed());
    progress.step();

    for attached in &mut attached {
        // The server is alive and its queues can be stopped: what was watched was not a corpse.
        attached.session.stop_queue(0)?;
    }
    let queues = attached.iter().map(|attached| attached.doorbells.len());
    let queues = queues.sum::<usize>() as u64;
    debug_assert!(attached.iter().all(|attached| !attached.memory.is_empty()));
    Ok(Idle {
        backing,
        queues,
        start_ns,
        watched_ns,
        threads: procfs::used_between(&before, &after),
        memory_before,
        memory_after,
        descriptors: (descriptors_before, descriptors_after),
    })
}

fn disk(index: u16, options: &Options, folder: Option<&Path>) -> Result<Disk> {
    /// Enough for a disk; it is not read.
    const IMAGE_BYTES: u64 = 1 << 20;
    let backing = match folder {
        None => Backing::Null,
        Some(folder) => {
            let path = folder.join(format!("{index}.img"));
            File::create(&path)
                .and_then(|file| file.set_len(IMAGE_BYTES))
                .map_err(Error::io(format!("create {}", path.display())))?;
            Backing::File(path, Some(Aio::Native))
        }
    };
    Ok(Disk {
        backing,
        num_queues: options.queues,
        writable: false,
        front_end: FrontEnd::Blk,
        throttle_groups: Vec::new(),
    })
}

fn attach(mut session: Session, options: &Options) -> Result<ConnectedFrontEnd> {
    let mut layout = Layout::new();
    let places: Vec<_> = (0..options.queues)
        .map(|_| layout.queue(options.queue_size))
        .collect();
    let memory = SharedMemory::new(layout.len_bytes())?;
    session.share(&memory)?;
    let mut doorbells = Vec::new();
    for (index, place) in (0..=u8::MAX).zip(places) {
        // As a guest's driver does: a page that only the server has touched counts as its own.
        memory.u16s(place.avail, 1)[0].store(0, Ordering::Relaxed);
        let bells = Doorbells::new()?;
        session.start_queue(index, &memory, place, &bells)?;
        doorbells.push(bells);
    }
    Ok(ConnectedFrontEnd {
        session,
        memory,
        doorbells,
    })
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
