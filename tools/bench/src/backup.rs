//! `blockplane-bench backup`: the cost of a backup for the guest that works on the disk meanwhile.

mod job;
mod report;
mod run;

use std::time::Duration;

use self::job::BackupTarget;
pub use self::job::Sync;
pub use self::report::Report;
use self::report::Row;
use self::run::{Run, measure_once};
use crate::aio::Aio;
use crate::client::{Form, Placement};
use crate::comparison_options::ComparisonOptions;
use crate::error::{Error, Result};
use crate::load::{Detail, Load, Pattern, Waiting};
use crate::progress::Progress;
use crate::server::Disk;
use crate::server_programs::{ServerName, ServerProgram};
use crate::storage::BackingOption;
use crate::turns;
use crate::units;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Who takes part [default: ours, and qemu-storage-daemon where it is installed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_enum)]
    pub servers: Vec<ServerName>,
    /// Where the disk and its backup are: tmpfs or file (temporary files there)
    #[arg(
        long,
        value_name = "WHAT,…",
        value_delimiter = ',',
        default_value = "tmpfs,file"
    )]
    pub backing: Vec<BackingOption>,
    /// What the job copies
    #[arg(long, value_name = "WHAT", value_enum, default_value = "full")]
    pub sync: Sync,
    /// Bytes per second of the job, 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::bytes)]
    pub speed: u64,
    /// What the guest does: randread, randwrite, randrw[:READS], read, write or rw[:READS]
    #[arg(
        long,
        value_name = "PATTERN,…",
        value_delimiter = ',',
        default_value = "randread,randwrite"
    )]
    pub pattern: Vec<Pattern>,
    /// Requests that it has in flight
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,32",
        value_parser = clap::value_parser!(u16).range(1..=512)
    )]
    pub depth: Vec<u16>,
    /// Bytes of a request, a multiple of 512 up to 1M
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = units::block_bytes)]
    pub bs: u32,
    /// How the guest learns of completions
    #[arg(long, value_name = "HOW", value_enum, default_value = "blocking")]
    pub client: Waiting,
    /// qemu-storage-daemon has an iothread for the disk; 11.1 hangs or aborts then
    #[arg(long)]
    pub peer_iothread: bool,
    /// How long it is measured without a job, and at least with jobs
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::time)]
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

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`] for a disk that cannot be used, or when a program or a processor is not there; when a request, a job
/// or a server fails.
pub fn run(options: &Options) -> Result<Report> {
    let servers = ServerProgram::find(&options.servers, &options.place)?;
    let is_ours =
        |backing: &&BackingOption| matches!(backing, BackingOption::File | BackingOption::Tmpfs);
    if let Some(other) = options.backing.iter().find(|backing| !is_ours(backing)) {
        return Err(Error::Unsuitable(format!(
            "--backing {other}: the disk is full of data, and written to; file or tmpfs is expected"
        )));
    }
    let loads = loads(options);
    let steps = options.backing.len() * loads.len() * servers.len();
    let progress = Progress::start("backup", steps * options.repetitions as usize);
    let mut rows = Vec::new();
    for wanted in &options.backing {
        progress.now(format!("making the disk: {wanted}"));
        let storage = wanted.storage(options.place.room(), Some(Aio::Native))?;
        let target = BackupTarget::beside(&storage, wanted, options.place.size)?;
        let disk = Disk::of_one_queue(&storage.backing, true);
        for load in &loads {
            let mut runs: Vec<Vec<Run>> = vec![Vec::new(); servers.len()];
            for repetition in 0..options.repetitions {
                for index in turns::of_repetition(repetition, servers.len()) {
                    let server = &servers[index];
                    progress.now(format!(
                        "{wanted}, {}: {}",
                        crate::run::describe(load),
                        server.name
                    ));
                    let run = measure_once(server, &disk, &target, load, options);
                    runs[index].push(run.map_err(|error| error.of(server.name))?);
                    progress.step();
                }
            }
            rows.push(Row {
                backing: wanted.to_string(),
                load: load.clone(),
                runs,
            });
        }
    }
    Ok(Report {
        servers: servers.iter().map(|server| server.name).collect(),
        rows,
    })
}

/// Each pattern at each depth.
fn loads(options: &Options) -> Vec<Load> {
    let of = |&pattern: &Pattern| {
        options.depth.iter().map(move |&depth| Load {
            pattern,
            block_bytes: options.bs,
            depth,
            queues: 1,
            waiting: options.client,
            threads: 1,
            cpus: options.place.client_cpus.clone(),
            gives_way: false,
            detail: Detail {
                latency: true,
                in_flight: true,
                ..Detail::default()
            },
            span_bytes: 0,
            recorded: false,
            placement: Placement::Packed,
            form: Form::Plain,
        })
    };
    options.pattern.iter().flat_map(of).collect()
}
