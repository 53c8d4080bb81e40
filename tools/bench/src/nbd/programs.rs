//! NBD servers, and the command line that makes each serve one disk.

use std::path::{Path, PathBuf};

use crate::comparison_options::{ComparisonOptions, PEER};
use crate::error::{Error, Result};
use crate::program::{blockplane, find_program};
use crate::server::{Disk, Server, all_iothreads, blockdev};
use crate::storage::Backing;

/// A name of `--servers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProgramName {
    /// This blockplane
    Ours,
    /// What takes the same command line
    QemuStorageDaemon,
    /// QEMU's server of a single disk
    QemuNbd,
    /// The server of plugins
    Nbdkit,
}

/// A program that is measured.
pub(super) struct Program {
    /// For tables.
    pub name: &'static str,
    kind: ProgramName,
    path: PathBuf,
}

impl Program {
    /// The programs of these names; of none, all that are there.
    pub fn find(names: &[ProgramName], place: &ComparisonOptions) -> Result<Vec<Program>> {
        let others = [
            (ProgramName::QemuStorageDaemon, PEER, place.peer()),
            (ProgramName::QemuNbd, "qemu-nbd", find_program("qemu-nbd")),
            (ProgramName::Nbdkit, "nbdkit", find_program("nbdkit")),
        ];
        let mut programs = Vec::new();
        if names.is_empty() || names.contains(&ProgramName::Ours) {
            programs.push(Program {
                name: "ours",
                kind: ProgramName::Ours,
                path: blockplane(place.server.as_deref())?,
            });
        }
        for (kind, name, path) in others {
            match path {
                Some(path) if names.is_empty() || names.contains(&kind) => {
                    programs.push(Program { name, kind, path });
                }
                None if names.contains(&kind) => {
                    return Err(Error::Unsuitable(format!(
                        "{name} is not in PATH: install it, or leave it out of --servers"
                    )));
                }
                _ => {}
            }
        }
        Ok(programs)
    }

    /// Starts it with a disk.
    pub fn start(&self, disk: &Disk, iothreads: u16) -> Result<Server> {
        Server::start_listening_at(&self.path, |socket| match self.kind {
            ProgramName::Ours => storage_daemon(disk, socket, iothreads),
            // The one of version 7.2 aborts when a client of an export on an iothread goes.
            ProgramName::QemuStorageDaemon => storage_daemon(disk, socket, 0),
            ProgramName::QemuNbd => words(&[
                "-t",
                "-e",
                "64",
                "-k",
                &shown(socket),
                "--image-opts",
                &blockdev(0, disk),
            ]),
            ProgramName::Nbdkit => nbdkit(disk, socket),
        })
    }
}

/// Of no iothreads: the main thread. The name of the export is empty: what clients get that name none.
fn storage_daemon(disk: &Disk, socket: &Path, iothreads: u16) -> Vec<String> {
    let mut arguments = Vec::new();
    for index in 0..iothreads {
        arguments.extend(words(&["--object", &format!("iothread,id=io{index}")]));
    }
    let iothreads = match iothreads {
        0 => String::new(),
        count => format!(",{}", all_iothreads(count)),
    };
    arguments.extend(words(&[
        "--blockdev",
        &blockdev(0, disk),
        "--nbd-server",
        &format!("addr.type=unix,addr.path={}", shown(socket)),
        "--export",
        &format!("nbd,id=e0,node-name=d0,name=,writable=on{iothreads}"),
    ]));
    arguments
}

fn nbdkit(disk: &Disk, socket: &Path) -> Vec<String> {
    let mut arguments = words(&["--foreground", "--unix", &shown(socket)]);
    arguments.extend(match &disk.backing {
        Backing::File(path, _) | Backing::Device(path, _) => words(&["file", &shown(path)]),
        Backing::Null | Backing::Rbd(_) | Backing::Nbd(_) => words(&["null", "1G"]),
    });
    arguments
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
