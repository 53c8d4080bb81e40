//! Options of all experiments: the disk's file, CPUs, duration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::patched::Patched;
use crate::aio::Aio;
use crate::error::{Error, Result};
use crate::load::Waiting;
use crate::storage::{BackingOption, NewFile, Storage};

/// Options of all experiments.
#[derive(Clone, Debug, clap::Args)]
pub struct Setup {
    /// How often each figure is measured, all servers in turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Length of one repetition, in milliseconds
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = clap::value_parser!(u64).range(1..))]
    pub run_ms: u64,
    /// Load before each repetition that is not counted, in milliseconds
    #[arg(long, value_name = "MS", default_value = "200")]
    pub warm_up_ms: u64,
    /// Processor of the servers
    #[arg(long, value_name = "CPU", default_value = "0")]
    pub server_cpu: usize,
    /// Processor of the client
    #[arg(long, value_name = "CPU", default_value = "1")]
    pub client_cpu: usize,
    /// How the client learns of completions: it watches the ring, or sleeps until it is called
    #[arg(long, value_enum, default_value = "polling")]
    pub client: Waiting,
    /// The blockplane to measure [default: BLOCKPLANE_BIN, else the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub server: Option<PathBuf>,
    /// A blockplane that was built with the patch NAME of experiments/patches, as `cargo xtask
    /// experiment` passes it
    #[arg(long, value_name = "NAME=PATH", value_parser = Patched::parse)]
    pub patched: Vec<Patched>,
    /// Put the disk's file into memory (a tmpfs): a disk without latency
    #[arg(long, conflicts_with = "folder")]
    pub tmpfs: bool,
    /// Where to put the disk's file for the time being [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// A block device (such as a loop device) or file that is there already; it is only read
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tmpfs", "folder", "file_mib", "null"])]
    pub device: Option<PathBuf>,
    /// No disk at all but null-co, which completes at once
    #[arg(long, conflicts_with_all = ["tmpfs", "folder", "file_mib"])]
    pub null: bool,
    /// Size of the file, in MiB; it is written first
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = clap::value_parser!(u64).range(1..))]
    pub file_mib: u64,
    /// The engine that carries the requests
    #[arg(long, value_enum, default_value = "native")]
    pub aio: Aio,
    /// More options for the servers' iothreads
    #[arg(long, value_name = "KEY=VALUE,…")]
    pub iothread: Option<String>,
    /// Write a plot to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl Setup {
    pub(crate) fn run(&self) -> Duration {
        Duration::from_millis(self.run_ms)
    }

    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_millis(self.warm_up_ms)
    }

    /// `own` options of an iothread, and those that were asked for.
    pub(crate) fn iothread_with(&self, own: &str) -> String {
        match &self.iothread {
            Some(more) if own.is_empty() => more.clone(),
            Some(more) => format!("{own},{more}"),
            None => own.to_owned(),
        }
    }

    /// The blockplane that was built with this patch, if one was named.
    pub(crate) fn patched(&self, patch: &str) -> Option<&Path> {
        let mut named = self.patched.iter();
        let found = named.find(|patched| patched.patch == patch);
        found.map(|patched| patched.program.as_path())
    }

    /// The blockplane that was built with this patch.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] when none was named: it says how to get one.
    pub(crate) fn needs_patched(&self, patch: &str) -> Result<PathBuf> {
        let found = self.patched(patch).map(Path::to_owned);
        found.ok_or_else(|| {
            Error::Unsuitable(format!(
                "this compares with a blockplane that was built with experiments/patches/{patch}.patch: in the \
                 source folder, `cargo xtask experiment {patch}` builds and measures it; or name one with \
                 --patched {patch}=PATH"
            ))
        })
    }

    /// Makes the disk.
    pub(crate) fn storage(&self) -> Result<Storage> {
        let wanted = match &self.device {
            Some(path) => BackingOption::At(path.clone()),
            None if self.null => BackingOption::Null,
            None if self.tmpfs => BackingOption::Tmpfs,
            None => BackingOption::File,
        };
        let room = NewFile {
            folder: self.folder.as_deref(),
            bytes: self.file_mib << 20,
        };
        wanted.storage(room, Some(self.aio))
    }

    /// Under what conditions it was measured, for a subtitle.
    pub(crate) fn conditions(&self, storage: &Storage) -> String {
        format!(
            "{}; server and {} client on one processor each; mean of {} interleaved repetitions of {} ms, \
             error bars: standard error",
            storage.name,
            self.client.name(),
            self.repetitions,
            self.run_ms
        )
    }
}
