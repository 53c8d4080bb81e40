//! `blockplane-bench compare`: the same load on several servers and on the host itself, in turn in one run.

mod plot;
mod report;

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::aio::Aio;
use crate::comparison_options::{ComparisonOptions, PEER};
use crate::contenders::{Contender, Running, ServerSetup};
use crate::error::{Error, Result};
use crate::load::{Load, Waiting};
use crate::program::blockplane;
use crate::progress::Progress;
use crate::run::{LoadOptions, describe};
use crate::stats::in_turn;
use crate::storage::BackingOption;
pub use report::{Part, Report, Row};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Who takes part: ours, ours-recorded (it records what is in flight, as for QEMU),
    /// raw[:ENGINE] (the host without a server), qemu-storage-daemon[:ENGINE]; the engine is native, io_uring or, of a server,
    /// threads [default: ours, raw where there is a file or device, and qemu-storage-daemon where it is installed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub servers: Vec<Contender>,
    /// A server that runs already takes part too; may be repeated
    #[arg(long, value_name = "PATH")]
    pub socket: Vec<PathBuf>,
    /// What is behind the disk: null, file or tmpfs (temporary files there), a file or block device, an image of Ceph
    /// RBD: rbd:POOL/IMAGE[:conf=FILE][:id=USER], or nbd:SOCKET, what an NBD server exports without a name
    #[arg(
        long,
        value_name = "WHAT,…",
        value_delimiter = ',',
        default_value = "file"
    )]
    pub backing: Vec<BackingOption>,
    /// Requests in flight on each queue, 1 to 256
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,32,128",
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub depth: Vec<u16>,
    /// How the client, and the host's own load, learns of completions
    #[arg(
        long,
        value_name = "HOW,…",
        value_delimiter = ',',
        value_enum,
        default_value = "polling"
    )]
    pub client: Vec<Waiting>,
    /// The engine of ours, and of qemu-storage-daemon if it names none, for files and devices [default: our own choice, and
    /// native]
    #[arg(long, value_name = "ENGINE", value_enum)]
    pub aio: Option<Aio>,
    /// Disks, each with --queues queues, for null and images of RBD: IMAGE, IMAGE-2, IMAGE-3 and so on
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub disks: u16,
    /// Iothreads; of several disks each has one of them, in turn. With one disk qemu-storage-daemon has one
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub iothreads: u16,
    /// Longest polling of ours, in nanoseconds [default: the server's]
    #[arg(long, value_name = "NS")]
    pub poll_max_ns: Option<u64>,
    /// More options of our iothreads
    #[arg(long, value_name = "KEY=VALUE,…")]
    pub iothread: Option<String>,
    /// One more word for our server's command line; may be repeated
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub server_option: Vec<String>,
    /// Let the kernel decide who runs where
    #[arg(long)]
    pub no_pinning: bool,
    /// Write a plot to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Where things are.
    #[command(flatten)]
    pub place: ComparisonOptions,
    /// The load.
    #[command(flatten)]
    pub load: LoadOptions,
}

impl Options {
    fn contenders(&self, backing: &BackingOption, peer: Option<&Path>) -> Vec<Contender> {
        let mut contenders = self.servers.clone();
        if contenders.is_empty() {
            contenders.push(Contender::Ours);
            contenders.push(Contender::Raw(Aio::Native));
            contenders.extend(peer.map(|_| Contender::Peer(None)));
        }
        contenders.extend(self.socket.iter().cloned().map(Contender::Socket));
        if matches!(
            backing,
            BackingOption::Null | BackingOption::Rbd(_) | BackingOption::Nbd(_)
        ) {
            contenders.retain(|contender| !matches!(contender, Contender::Raw(_)));
        }
        contenders
    }

    fn check(&self) -> Result<()> {
        let pattern = self.load.pattern;
        let theirs = self.backing.iter().find(|it| it.is_foreign());
        let socket = || Some(self.socket.first()?.display().to_string());
        let foreign = theirs.map(BackingOption::to_string).or_else(socket);
        if let (true, false, Some(whose)) = (pattern.writes(), self.load.destroy_data, foreign) {
            return Err(Error::Unsuitable(format!(
                "{pattern} writes to {whose}, and what is on it is lost: say --destroy-data if that \
                 is meant"
            )));
        }
        let lonely = |backing: &&BackingOption| self.contenders(backing, None).is_empty();
        if let Some(backing) = self.backing.iter().find(lonely) {
            return Err(Error::Unsuitable(format!(
                "--backing {backing} leaves nothing to measure: raw is a file or device of the host's, and there \
                 is none; name ours or another of --servers, or say --backing file"
            )));
        }
        if !self.no_pinning {
            self.place.check_cpus()?;
        }
        let (most, of) = match self.disks {
            1 => (self.load.queues, "--queues"),
            disks => (disks, "--disks"),
        };
        if self.iothreads > most {
            return Err(Error::Unsuitable(format!(
                "--iothreads {} is more than {of} {most}: a thread without a queue has nothing to do",
                self.iothreads
            )));
        }
        if self.disks > 1 && !self.socket.is_empty() {
            return Err(Error::Unsuitable(
                "--socket is one disk: leave out --disks, or the socket".to_owned(),
            ));
        }
        for backing in &self.backing {
            backing.of_disk(0, self.disks)?;
        }
        if let Some(path) = &self.svg {
            // Known before minutes of measuring. What is there stays until there is something better.
            let opened = File::options().append(true).create(true).open(path);
            opened.map_err(Error::io(format!("open {} for the plot", path.display())))?;
        }
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`] for options that do not go together; when a request or a server fails.
pub fn run(options: &Options) -> Result<Report> {
    options.check()?;
    let peer = options.place.peer();
    let times = options.load.times();
    let mut report = Report {
        parts: Vec::new(),
        times,
        notes: Vec::new(),
    };
    if options.servers.is_empty() && peer.is_none() {
        report.notes.push(format!("{PEER} is not installed"));
    }
    let is_image = |backing: &BackingOption| matches!(backing, BackingOption::Rbd(_));
    if options.backing.iter().any(is_image) {
        report
            .notes
            .push("RBD: only the contender that is measured has the image open".to_owned());
    }
    let cpus = |cpus: &[usize]| match options.no_pinning {
        true => Vec::new(),
        false => cpus.to_vec(),
    };
    let client_cpus = cpus(&options.place.client_cpus);
    let mut iothread_options: Vec<String> = Vec::new();
    iothread_options.extend(options.poll_max_ns.map(|ns| format!("poll-max-ns={ns}")));
    iothread_options.extend(options.iothread.clone());
    for wanted in &options.backing {
        let storage = {
            let progress = Progress::start("compare", 1);
            progress.now(format!("making the disk: {wanted}"));
            let disks = (0..options.disks).map(|index| {
                wanted
                    .of_disk(index, options.disks)?
                    .storage(options.place.room(), options.aio)
            });
            disks.collect::<Result<Vec<_>>>()?
        };
        let contenders = options.contenders(wanted, peer.as_deref());
        let steps = contenders.len()
            * options.client.len()
            * options.depth.len()
            * times.repetitions as usize;
        let progress = Progress::start(&format!("compare, {wanted}"), steps);
        let setup = ServerSetup {
            ours: blockplane(options.place.server.as_deref())?,
            peer: peer.clone(),
            backings: storage.iter().map(|one| one.backing.clone()).collect(),
            queues: options.load.queues,
            writable: options.load.pattern.writes(),
            iothreads: options.iothreads,
            iothread_options: iothread_options.join(","),
            server_options: options.server_option.clone(),
            server_cpus: cpus(&options.place.server_cpus),
        };
        let running = contenders.iter().map(|one| Running::open(one, &setup));
        let mut running = running.collect::<Result<Vec<_>>>()?;
        let mut rows = Vec::new();
        for &client in &options.client {
            for &depth in &options.depth {
                let load = options
                    .load
                    .load(depth, client, &client_cpus, options.disks)?;
                let runs = in_turn(contenders.len(), times.repetitions, |index| {
                    let name = &contenders[index];
                    progress.now(format!("{}: {name}", describe(&load)));
                    let load = Load {
                        recorded: load.recorded || *name == Contender::OursRecorded,
                        ..load.clone()
                    };
                    let run = running[index].measure(&load, times, &setup);
                    progress.step();
                    run.map_err(|error| error.of(&name.to_string()))
                })?;
                rows.push(Row { load, runs });
            }
        }
        running.into_iter().try_for_each(Running::close)?;
        report.parts.push(Part {
            backing: wanted.to_string(),
            disks: options.disks,
            contenders: contenders.iter().map(Contender::to_string).collect(),
            rows,
        });
    }
    Ok(report)
}
