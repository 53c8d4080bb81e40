//! Options of all comparisons: files, programs and processors.

use std::path::PathBuf;

use crate::cpus;
use crate::error::Result;
use crate::program::find_program;
use crate::storage::NewFile;
use crate::units;

/// The program that takes the same command line.
pub const PEER: &str = "qemu-storage-daemon";

/// Where files are made, and what runs where.
#[derive(Clone, Debug, clap::Args)]
pub struct Places {
    /// Size of a temporary file; it is filled with random data first
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::file_bytes)]
    pub size: u64,
    /// Where to put temporary files [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// The blockplane to measure [default: BLOCKPLANE_BIN, else the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub server: Option<PathBuf>,
    /// The qemu-storage-daemon to compare with [default: the one in PATH]
    #[arg(long, value_name = "PATH")]
    pub peer: Option<PathBuf>,
    /// Processors that servers run on, and the host's own load
    #[arg(long, value_name = "CPU,…", value_delimiter = ',', default_value = "0")]
    pub server_cpus: Vec<usize>,
    /// Processors that the client's threads run on, in turn
    #[arg(long, value_name = "CPU,…", value_delimiter = ',', default_value = "1")]
    pub client_cpus: Vec<usize>,
}

impl Places {
    /// The place and size of a temporary file.
    #[must_use]
    pub fn room(&self) -> NewFile<'_> {
        NewFile {
            folder: self.folder.as_deref(),
            bytes: self.size,
        }
    }

    /// Refuses processors that are not available.
    ///
    /// # Errors
    /// [`Error::Unsuitable`](crate::Error::Unsuitable).
    pub fn check_cpus(&self) -> Result<()> {
        cpus::check(&self.server_cpus)?;
        cpus::check(&self.client_cpus)
    }

    /// The peer, if there is one.
    #[must_use]
    pub fn peer(&self) -> Option<PathBuf> {
        self.peer.clone().or_else(|| find_program(PEER))
    }
}
