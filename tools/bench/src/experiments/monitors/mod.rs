//! `blockplane-bench monitors`: what clients of a monitor cost the guest.
//!
//! One server with one disk, loaded all the time by a guest of its own; beside it no client, or many of
//! them at several rates, in turn. One of them asks for the longest answer there is and never reads.
//! The iothread and the guest are bound to a processor each; clients, and the threads that answer them,
//! run where the kernel likes.

mod clients;
mod report;

use std::path::Path;
use std::time::Instant;

use clients::{ClientLoad, ClientResults, Clients, Rate};
use report::Outcome;

use super::drive::{Load, drive};
use super::{Report, Setup};
use crate::cpus;
use crate::error::{Error, Result};
use crate::limits::raise_descriptor_limit;
use crate::monitor;
use crate::procfs::{Thread, threads};
use crate::program::blockplane;
use crate::progress::Progress;
use crate::server::{Disk, FrontEnd, Server, Threads};
use crate::turns;

/// The server's thread that monitors share; its main thread carries out what they say.
const MONITORS: &str = "monitors";

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Clients of the monitor, one of which never reads
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(2..=128))]
    pub clients: u16,
    /// Questions per second, of all clients in sum; 0: they are connected and silent; max: each asks as soon as it has its answer
    #[arg(
        long,
        value_name = "N|max,…",
        value_delimiter = ',',
        default_value = "0,100,1000,max"
    )]
    pub rate: Vec<Rate>,
    /// Niceness of the clients' thread; 19 leaves mostly what the server itself takes from the guest
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=19))]
    pub clients_nice: u8,
    /// Processor of the clients [default: any]
    #[arg(long, value_name = "CPU")]
    pub clients_cpu: Option<usize>,
    /// Reads of 4 KiB that the guest has in flight
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: u16,
    /// Where and how long.
    #[command(flatten)]
    pub setup: Setup,
}

/// One repetition.
#[derive(Clone, Debug)]
struct Sample {
    iops: f64,
    /// Processor time of the threads that answer clients, in percent of a processor.
    control_percent: f64,
    /// Nothing without clients.
    heard: ClientResults,
}

/// Measures.
///
/// # Errors
/// When the server, the disk or a monitor's client fails.
pub fn run(options: &Options) -> Result<Report> {
    let setup = &options.setup;
    let _ = raise_descriptor_limit();
    cpus::check(&[setup.server_cpu, setup.client_cpu])?;
    cpus::check(options.clients_cpu.as_slice())?;
    let storage = setup.storage()?;
    let program = blockplane(setup.server.as_deref())?;
    let disk = Disk {
        backing: storage.backing.clone(),
        num_queues: 1,
        writable: false,
        front_end: FrontEnd::Blk,
        throttle_groups: Vec::new(),
    };
    let folder = tempfile::Builder::new()
        .prefix("bench-")
        .tempdir()
        .map_err(Error::io("create a folder for a monitor's socket"))?;
    let socket = folder.path().join("qmp");
    let steps = (1 + options.rate.len()) * setup.repetitions as usize;
    let progress = Progress::start("monitors", steps);
    progress.now("starting the server");
    let mut server = Server::start_as(
        &program,
        Threads {
            count: 1,
            options: &setup.iothread_with(&format!("cpu-affinity={}", setup.server_cpu)),
        },
        &monitor::arguments(&socket),
        &[disk],
    )?;
    drop(server.connect_to(&socket)?);

    // Without clients first.
    let rates: Vec<Option<Rate>> = std::iter::once(None)
        .chain(options.rate.iter().copied().map(Some))
        .collect();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); rates.len()];
    for repetition in 0..setup.repetitions {
        for index in turns::of_repetition(repetition, rates.len()) {
            let rate = rates[index];
            progress.now(rate.map_or("no clients".to_owned(), |rate| rate.to_string()));
            let sample = measure(&mut server, options, &socket, rate);
            samples[index].push(sample.map_err(|error| server.explain(error))?);
            progress.step();
        }
    }
    server.stop()?;
    let outcome = Outcome::new(&rates, &samples);
    Ok(outcome.report(options, &setup.conditions(&storage)))
}

fn measure(
    server: &mut Server,
    options: &Options,
    socket: &Path,
    rate: Option<Rate>,
) -> Result<Sample> {
    let clients = rate.map(|rate| {
        let wanted = ClientLoad {
            clients: options.clients,
            rate,
            nice: options.clients_nice,
            cpu: options.clients_cpu,
        };
        Clients::start(socket, wanted)
    });
    let clients = clients.transpose()?;
    let load = Load {
        block_bytes: 4096,
        write: false,
        depth: options.depth,
        queues: 1,
    };
    let before = control_ns(server)?;
    let since = Instant::now();
    let driven = drive(server, 0, &load, &options.setup);
    let time = since.elapsed();
    let used = control_ns(server)?.saturating_sub(before);
    let heard = clients.map(Clients::leave).transpose()?;
    Ok(Sample {
        iops: driven?.iops,
        control_percent: 100.0 * used as f64 / time.as_nanos() as f64,
        heard: heard.unwrap_or_default(),
    })
}

/// Processor time of the two threads that answer clients.
fn control_ns(server: &Server) -> Result<u64> {
    let pid = server.pid();
    let answers = |thread: &Thread| thread.id == pid || thread.name == MONITORS;
    let threads = threads(pid)?.into_iter().filter(answers);
    Ok(threads.map(|thread| thread.usage.cpu_ns).sum())
}
