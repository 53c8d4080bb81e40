//! Options of all experiments: where disks are, which programs run, how long.

use std::path::PathBuf;
use std::time::Duration;

use bench::Result;
use bench::comparison_options::{ComparisonOptions, PEER};
use bench::load::{Load, Times, Waiting};
use bench::program::blockplane;
use bench::storage::BackingOption;
use bench::units;

/// Options of all experiments.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Setup {
    /// How often each figure is measured, all servers in turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// How long each measurement is
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    pub time: Duration,
    /// Load before it that does not count
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = commands::time::parse_duration)]
    pub warm_up: Duration,
    /// How the client learns of completions [default: as published]
    #[arg(long, value_name = "HOW", value_enum)]
    pub client: Option<Waiting>,
    /// What is behind disks: null, file, tmpfs, or a file or block device, which is only read [default: as published]
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',')]
    pub backing: Vec<BackingOption>,
    /// A blockplane that was built with the patch NAME of experiments/patches
    #[arg(long, value_name = "NAME=PATH", value_parser = named_path)]
    pub patched: Vec<(String, PathBuf)>,
    /// Where things are.
    #[command(flatten)]
    pub place: ComparisonOptions,
}

fn named_path(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("NAME=PATH is expected")?;
    Ok((name.to_owned(), path.into()))
}

/// A server that is measured.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// For tables.
    pub name: &'static str,
    pub path: PathBuf,
}

impl Setup {
    pub fn times(&self) -> Times {
        Times {
            warm_up: self.warm_up,
            time: self.time,
            repetitions: self.repetitions,
        }
    }

    /// What is behind disks, unless the command line says something else.
    pub fn backings(&self, default: &[BackingOption]) -> Vec<BackingOption> {
        match &self.backing[..] {
            [] => default.to_vec(),
            named => named.to_vec(),
        }
    }

    /// Requests of `block_kib` at random places on `queues` queues, of which so many percent are reads.
    pub fn load(
        &self,
        read_percent: u8,
        block_kib: u32,
        queues: u16,
        depth: u16,
        waiting: Waiting,
    ) -> Load {
        Load {
            block_bytes: block_kib << 10,
            queues,
            cpus: self.place.client_cpus.clone(),
            ..Load::random(read_percent, depth, self.client.unwrap_or(waiting))
        }
    }

    /// The blockplane that was built with this patch, if one was named.
    pub fn patched(&self, patch: &str) -> Option<PathBuf> {
        let found = self.patched.iter().find(|(name, _)| name == patch);
        found.map(|(_, path)| path.clone())
    }

    /// blockplane.
    pub fn ours(&self) -> Result<PathBuf> {
        blockplane(self.place.server.as_deref())
    }

    /// blockplane, and qemu-storage-daemon where it is installed.
    pub fn programs(&self) -> Result<Vec<Program>> {
        let ours = Program {
            name: "ours",
            path: self.ours()?,
        };
        let peer = self.place.peer().map(|path| Program { name: PEER, path });
        Ok(std::iter::once(ours).chain(peer).collect())
    }
}
