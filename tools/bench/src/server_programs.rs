//! Servers that are compared: each is started anew for every measurement, with the same command line.

use std::path::PathBuf;

use crate::comparison_options::{ComparisonOptions, PEER};
use crate::cpus::Pinned;
use crate::error::{Error, Result};
use crate::program::blockplane;
use crate::server::{Disk, Server, Threads};

/// A name of `--servers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ServerName {
    /// This blockplane
    Ours,
    /// What takes the same command line
    QemuStorageDaemon,
}

/// A program that is measured.
#[derive(Clone, Debug)]
pub(crate) struct ServerProgram {
    /// For tables.
    pub name: &'static str,
    path: PathBuf,
    cpus: Vec<usize>,
}

impl ServerProgram {
    /// The programs of these names; of none, blockplane and the peer, if there is one.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] when one is not there, or a processor is not.
    pub fn find(names: &[ServerName], place: &ComparisonOptions) -> Result<Vec<Self>> {
        place.check_cpus()?;
        let peer = place.peer();
        let names = match names {
            [] if peer.is_some() => &[ServerName::Ours, ServerName::QemuStorageDaemon],
            [] => &[ServerName::Ours][..],
            names => names,
        };
        let program = |name: &ServerName| {
            let (name, path) = match name {
                ServerName::Ours => ("ours", blockplane(place.server.as_deref())?),
                ServerName::QemuStorageDaemon => (
                    PEER,
                    peer.clone().ok_or_else(|| {
                        Error::Unsuitable(format!(
                            "{PEER} is not in PATH: install it, name it with --peer, or leave it out of --servers"
                        ))
                    })?,
                ),
            };
            Ok(ServerProgram {
                name,
                path,
                cpus: place.server_cpus.clone(),
            })
        };
        names.iter().map(program).collect()
    }

    /// The same, on any processor.
    pub fn unpinned(self) -> Self {
        ServerProgram {
            cpus: Vec::new(),
            ..self
        }
    }

    /// Starts it with these disks; of several iothreads each disk has one, in turn.
    pub fn start(&self, iothreads: u16, disks: &[Disk]) -> Result<Server> {
        self.start_with(iothreads, &[], disks)
    }

    /// As [`ServerProgram::start`], with `more` words on the command line; of 0 iothreads the main thread has the disks.
    pub fn start_with(&self, iothreads: u16, more: &[String], disks: &[Disk]) -> Result<Server> {
        // What we start runs where we do at that moment.
        let _pinned = Pinned::to(&self.cpus)?;
        let threads = Threads {
            count: iothreads,
            options: "",
        };
        Server::start_as(&self.path, threads, more, disks)
    }
}
