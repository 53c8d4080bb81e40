//! `blockplane-bench compare`: the same load on several servers and on the host itself, in turn in one run.

mod plot;
mod report;

use std::fs::File;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::aio::Aio;
use crate::contenders::{Contender, Running, ServerSetup};
use crate::error::{Error, Result};
use crate::load::Waiting;
use crate::places::{PEER, Places};
use crate::program::blockplane;
use crate::progress::Progress;
use crate::run::{LoadOptions, describe};
use crate::stats::in_turn;
use crate::storage::Backing;
use crate::table::Table;
use report::{Part, Row};

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
    pub backing: Vec<Backing>,
    /// Requests in flight on each queue, 1 to 256
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,32,128", value_parser = clap::value_parser!(u16).range(1..=256))]
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
    /// Options of our iothreads
    #[arg(
        long,
        value_name = "KEY=VALUE,…",
        default_value = "",
        hide_default_value = true
    )]
    pub iothread: String,
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
    pub places: Places,
    /// The load.
    #[command(flatten)]
    pub load: LoadOptions,
}

impl Options {
    fn contenders(&self, backing: &Backing, has_peer: bool) -> Vec<Contender> {
        let mut contenders = self.servers.clone();
        if contenders.is_empty() {
            contenders.extend([Contender::Ours, Contender::Raw(Aio::Native)]);
            contenders.extend(has_peer.then_some(Contender::Peer(None)));
        }
        contenders.extend(self.socket.iter().cloned().map(Contender::Socket));
        if matches!(backing, Backing::Null | Backing::Rbd(..) | Backing::Nbd(_)) {
            contenders.retain(|contender| !matches!(contender, Contender::Raw(_)));
        }
        contenders
    }

    fn check(&self) -> Result<()> {
        let pattern = self.load.pattern;
        let theirs = self.backing.iter().find(|backing| backing.is_foreign());
        let socket = || Some(self.socket.first()?.display().to_string());
        let foreign = theirs.map(Backing::to_string).or_else(socket);
        let lonely = |backing: &&Backing| self.contenders(backing, false).is_empty();
        let is_several = |backing: &&Backing| !matches!(backing, Backing::Null | Backing::Rbd(..));
        let (most, of) = match self.disks {
            1 => (self.load.queues, "--queues"),
            disks => (disks, "--disks"),
        };
        let why = if let (true, false, Some(whose)) =
            (pattern.writes(), self.load.destroy_data, foreign)
        {
            format!(
                "{pattern} writes to {whose}, and what is on it is lost: say --destroy-data if that is meant"
            )
        } else if let Some(backing) = self.backing.iter().find(lonely) {
            format!(
                "--backing {backing} leaves nothing to measure: raw is a file or device of the host's, and there is none; name \
                 ours or another of --servers, or say --backing file"
            )
        } else if self.iothreads > most {
            let iothreads = self.iothreads;
            format!(
                "--iothreads {iothreads} is more than {of} {most}: a thread without a queue has nothing to do"
            )
        } else if self.disks > 1 && !self.socket.is_empty() {
            "--socket is one disk: leave out --disks, or the socket".to_owned()
        } else if self.disks > 1
            && let Some(one) = self.backing.iter().find(is_several)
        {
            let disks = self.disks;
            format!(
                "--backing {one} is one disk, not {disks}: --disks is for null and for images of RBD"
            )
        } else if !self.no_pinning {
            return self.places.check_cpus();
        } else {
            return Ok(());
        };
        Err(Error::Unsuitable(why))
    }

    /// Opens the file of the plot, if there is to be one. That it cannot is known before minutes of measuring, and what is there
    /// stays until there is something better.
    fn check_svg(&self) -> Result<()> {
        let Some(path) = &self.svg else {
            return Ok(());
        };
        let opened = File::options().append(true).create(true).open(path);
        opened.map_err(Error::io(format!("open {} for the plot", path.display())))?;
        Ok(())
    }

    fn cpus(&self, cpus: &[usize]) -> Vec<usize> {
        let cpus = cpus.iter().filter(|_| !self.no_pinning);
        cpus.copied().collect()
    }
}

/// Measures; tables for people, and JSON for scripts.
///
/// # Errors
/// [`Error::Unsuitable`] for options that do not go together; when a request or a server fails.
pub fn run(options: &Options) -> Result<(Vec<Table>, Value)> {
    options.check()?;
    options.check_svg()?;
    let peer = options.places.peer();
    let parts = options.backing.iter();
    let parts = parts.map(|backing| compare_on(backing, options, peer.clone()));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    if let Some(path) = &options.svg {
        let written =
            plot::svg(&parts, options.load.times()).and_then(|svg| std::fs::write(path, svg));
        written.map_err(Error::io(format!("write the plot {}", path.display())))?;
    }
    let mut tables: Vec<Table> = parts.iter().map(Part::table).collect();
    if let Some(last) = tables.last_mut() {
        last.note("medians; the contenders take turns");
        last.note(
            "ratio: the first one over this one, in pairs of repetitions: median (lowest-highest)",
        );
        last.note("CPU: a server that polls uses its processor whether there is work or not; of raw it is the load's own");
        if options.servers.is_empty() && peer.is_none() {
            last.note(format!("{PEER} is not installed"));
        }
    }
    let json = json!({ "compare": parts.iter().map(Part::json).collect::<Vec<_>>() });
    Ok((tables, json))
}

fn compare_on(backing: &Backing, options: &Options, peer: Option<PathBuf>) -> Result<Part> {
    let contenders = options.contenders(backing, peer.is_some());
    let times = options.load.times();
    let loads = options.client.len() * options.depth.len();
    let steps = loads * contenders.len() * times.repetitions as usize;
    let progress = Progress::start(&format!("compare, {backing}"), steps);
    progress.now("making the disk");
    let storage = (0..options.disks).map(|disk| backing.storage(disk, options.places.room()));
    let setup = ServerSetup {
        storage: storage.collect::<Result<_>>()?,
        ours: blockplane(options.places.server.as_deref())?,
        peer,
        aio: options.aio,
        queues: options.load.queues,
        writable: options.load.pattern.writes(),
        iothreads: options.iothreads,
        iothread_options: options.iothread.clone(),
        server_options: options.server_option.clone(),
        server_cpus: options.cpus(&options.places.server_cpus),
        on_demand: matches!(backing, Backing::Rbd(..)),
    };
    let running = contenders.iter().map(|one| Running::open(one, &setup));
    let mut running = running.collect::<Result<Vec<_>>>()?;
    let client_cpus = options.cpus(&options.places.client_cpus);
    let mut rows = Vec::new();
    for &client in &options.client {
        for &depth in &options.depth {
            let load = options
                .load
                .load(depth, client, &client_cpus, options.disks)?;
            let runs = in_turn(contenders.len(), times.repetitions, |index| {
                let name = &contenders[index];
                progress.now(format!("{}: {name}", describe(&load)));
                let run = running[index].measure(&load, times);
                progress.step();
                run.map_err(|error| Error::Of(name.to_string(), Box::new(error)))
            })?;
            rows.push(Row { load, runs });
        }
    }
    running.into_iter().try_for_each(Running::close)?;
    Ok(Part {
        backing: backing.to_string(),
        disks: options.disks,
        contenders: contenders.iter().map(Contender::to_string).collect(),
        rows,
    })
}
