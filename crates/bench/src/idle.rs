//! `bench idle`: what disks cost that are attached and have nothing to do.
//!
//! One server with many disks of many queues, all started by a front-end of ours, and then
//! silence. What is promised: no thread of the server wakes up, and a queue costs little memory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::aio::Aio;
use crate::client::{Doorbells, Layout, Session, SharedMemory};
use crate::error::{Error, Result};
use crate::limits::{descriptors_left, raise_descriptor_limit};
use crate::procfs::{self, Memory, Thread};
use crate::program::blockplane;
use crate::progress::Progress;
use crate::server::{Disk, Server};
use crate::stats::count;
use crate::storage::{Backing, image_folder};
use crate::table::Table;

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
    /// The blockplane to measure [default: BLOCKPLANE_BIN, else one that is built now]
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

/// One server, idle.
#[derive(Clone, Debug)]
pub struct Idle {
    /// `null-co` or `file`.
    pub backing: &'static str,
    /// Queues started, all disks together.
    pub queues: u64,
    /// Time from the first message to the last started queue.
    pub start_ns: u64,
    /// Time watched.
    pub watched_ns: u64,
    /// What each thread used in that time.
    pub threads: Vec<Thread>,
    /// Memory once all front-ends are connected, before a queue is started.
    pub memory_before: Memory,
    /// Memory with all queues started.
    pub memory_after: Memory,
    /// Descriptors before and after.
    pub descriptors: (usize, usize),
}

impl Idle {
    /// Threads that run queues.
    pub fn iothreads(&self) -> impl Iterator<Item = &Thread> {
        self.threads
            .iter()
            .filter(|thread| thread.name.starts_with("IO "))
    }

    /// What one queue added to `part` of the memory, in bytes.
    #[must_use]
    pub fn bytes_per_queue(&self, part: impl Fn(&Memory) -> u64) -> i64 {
        // Memory is far below 2^63 bytes.
        let bytes = |memory| i64::try_from(part(memory)).unwrap_or(i64::MAX);
        let queues = i64::try_from(self.queues).unwrap_or(i64::MAX);
        (bytes(&self.memory_after) - bytes(&self.memory_before)) / queues
    }
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    options: Options,
    /// One for each backing.
    pub servers: Vec<Idle>,
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

/// A disk's front-end; nothing of it may go while the server is watched.
struct Attached {
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
    sleep(Duration::from_millis(options.settle_ms));
    let memory_after = procfs::memory(pid)?;
    let descriptors_after = procfs::descriptors(pid)?;

    progress.now(format!("{backing}: watching"));
    let before = procfs::threads(pid)?;
    let start = Instant::now();
    sleep(Duration::from_millis(options.watch_ms));
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
    /// Enough to be a disk; nobody reads it.
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
    })
}

fn attach(mut session: Session, options: &Options) -> Result<Attached> {
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
    Ok(Attached {
        session,
        memory,
        doorbells,
    })
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes for whoever looks.
fn kib(bytes: u64) -> String {
    format!("{} KiB", count(bytes / 1024))
}

type Row<'a> = (&'a str, &'a dyn Fn(&Idle) -> String);

impl Report {
    /// For whoever looks: a column for each server.
    #[must_use]
    pub fn table(&self) -> Table {
        let Options {
            disks,
            queues,
            queue_size,
            ..
        } = &self.options;
        let title =
            format!("One idle server: {disks} disks with {queues} queues of {queue_size} entries");
        let mut columns = vec![String::new()];
        columns.extend(self.servers.iter().map(|idle| idle.backing.to_owned()));
        let mut table = Table::new(&title, &columns);
        let total = |idle: &Idle| procfs::total(&idle.threads);
        let iothreads = |idle: &Idle| {
            let iothreads: Vec<Thread> = idle.iothreads().cloned().collect();
            procfs::total(&iothreads)
        };
        let bytes = |bytes: i64| format!("{bytes} bytes");
        let rows: &[Row<'_>] = &[
            ("watched, seconds", &|idle| {
                format!("{:.2}", idle.watched_ns as f64 / 1e9)
            }),
            ("processor time, us", &|idle| {
                format!("{:.1}", total(idle).cpu_ns as f64 / 1e3)
            }),
            ("voluntary switches (wake-ups)", &|idle| {
                count(total(idle).voluntary_switches)
            }),
            ("... of iothreads", &|idle| {
                count(iothreads(idle).voluntary_switches)
            }),
            ("involuntary switches", &|idle| {
                count(total(idle).involuntary_switches)
            }),
            ("threads", &|idle| count(idle.threads.len() as u64)),
            ("... iothreads", &|idle| {
                count(idle.iothreads().count() as u64)
            }),
            ("descriptors, connected", &|idle| {
                count(idle.descriptors.0 as u64)
            }),
            ("descriptors, queues started", &|idle| {
                count(idle.descriptors.1 as u64)
            }),
            ("private, connected", &|idle| {
                kib(idle.memory_before.private_bytes)
            }),
            ("private, queues started", &|idle| {
                kib(idle.memory_after.private_bytes)
            }),
            ("Pss, queues started", &|idle| {
                kib(idle.memory_after.proportional_bytes)
            }),
            ("Rss, queues started", &|idle| {
                kib(idle.memory_after.resident_bytes)
            }),
            ("virtual, connected", &|idle| {
                kib(idle.memory_before.virtual_bytes)
            }),
            ("virtual, queues started", &|idle| {
                kib(idle.memory_after.virtual_bytes)
            }),
            ("private per queue", &|idle| {
                bytes(idle.bytes_per_queue(|memory| memory.private_bytes))
            }),
            ("Rss per queue", &|idle| {
                bytes(idle.bytes_per_queue(|memory| memory.resident_bytes))
            }),
            ("virtual per queue", &|idle| {
                bytes(idle.bytes_per_queue(|memory| memory.virtual_bytes))
            }),
            ("starting a queue, us", &|idle| {
                format!("{:.0}", idle.start_ns as f64 / 1e3 / idle.queues as f64)
            }),
        ];
        for (name, figure) in rows {
            let mut row = vec![(*name).to_owned()];
            row.extend(self.servers.iter().map(figure));
            table.row(row);
        }
        table.note("Rss and virtual contain the guests' memory, which is shared: one page per queue of 128 entries");
        for idle in &self.servers {
            for thread in &idle.threads {
                if thread.usage.voluntary_switches > 0 {
                    let wake_ups = thread.usage.voluntary_switches;
                    table.note(format!(
                        "{}: thread '{}' woke up {wake_ups} times",
                        idle.backing, thread.name
                    ));
                }
            }
        }
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let memory = |memory: &Memory| {
            json!({
                "virtual_bytes": memory.virtual_bytes,
                "resident_bytes": memory.resident_bytes,
                "proportional_bytes": memory.proportional_bytes,
                "private_bytes": memory.private_bytes,
            })
        };
        let thread = |thread: &Thread| {
            json!({
                "id": thread.id,
                "name": thread.name,
                "cpu_ns": thread.usage.cpu_ns,
                "voluntary_switches": thread.usage.voluntary_switches,
                "involuntary_switches": thread.usage.involuntary_switches,
            })
        };
        let server = |idle: &Idle| {
            json!({
                "backing": idle.backing,
                "queues": idle.queues,
                "start_ns": idle.start_ns,
                "watched_ns": idle.watched_ns,
                "threads": idle.threads.iter().map(thread).collect::<Vec<_>>(),
                "memory_connected": memory(&idle.memory_before),
                "memory_started": memory(&idle.memory_after),
                "private_bytes_per_queue": idle.bytes_per_queue(|memory| memory.private_bytes),
                "virtual_bytes_per_queue": idle.bytes_per_queue(|memory| memory.virtual_bytes),
                "descriptors_connected": idle.descriptors.0,
                "descriptors_started": idle.descriptors.1,
            })
        };
        json!({ "idle": self.servers.iter().map(server).collect::<Vec<_>>() })
    }
}
