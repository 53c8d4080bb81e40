//! Several servers, and the host itself, behind the same disk and under the same load in turn.
//!
//! All servers run all the time; one that is not loaded sleeps, unless it is of the kind that does
//! not. Those of images in Ceph RBD run only while they are measured, since a writer locks its image.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::aio::Aio;
use crate::error::{Error, Result};
use crate::load::{Load, Measured, Times, measure, measure_disks, raw};
use crate::run::connect;
use crate::server::{Disk, Server, Threads};
use crate::storage::Backing;

/// A server or storage that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contender {
    /// This blockplane.
    Ours,
    /// This blockplane, and it has to record what is in flight.
    OursRecorded,
    /// qemu-storage-daemon, or what takes its options, with an engine of its own if one is named.
    Peer(Option<Aio>),
    /// No server at all.
    Raw(Aio),
    /// A server that runs already.
    Socket(PathBuf),
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, engine) = match text.split_once(':') {
            Some((name, engine)) => (name, Some(engine.parse()?)),
            None => (text, None),
        };
        match (name, engine) {
            ("ours", None) => Ok(Contender::Ours),
            ("ours-recorded", None) => Ok(Contender::OursRecorded),
            ("raw", Some(Aio::Threads)) => Err("raw:native or raw:io_uring is expected".to_owned()),
            ("raw", engine) => Ok(Contender::Raw(engine.unwrap_or(Aio::Native))),
            ("qemu-storage-daemon", engine) => Ok(Contender::Peer(engine)),
            _ => Err(
                "ours, ours-recorded, raw[:ENGINE] or qemu-storage-daemon[:ENGINE] is expected"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contender::Ours => f.write_str("ours"),
            Contender::OursRecorded => f.write_str("ours-recorded"),
            Contender::Peer(None) => f.write_str("qemu-storage-daemon"),
            Contender::Peer(Some(engine)) => write!(f, "qemu-storage-daemon:{engine}"),
            Contender::Raw(engine) => write!(f, "raw:{engine}"),
            Contender::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The disk, and the programs and options of the servers.
#[derive(Clone, Debug)]
pub struct ServerSetup {
    /// Our program.
    pub ours: PathBuf,
    /// The other one, if there is one.
    pub peer: Option<PathBuf>,
    /// What is behind each disk; at least one. Its engine is ours, and the peer's unless it has one of its own.
    pub backings: Vec<Backing>,
    /// Queues of each disk.
    pub queues: u16,
    /// Whether they are written to.
    pub writable: bool,
    /// Iothreads of ours. The peer has at most one per disk.
    pub iothreads: u16,
    /// Options of ours.
    pub iothread_options: String,
    /// More words for our command line.
    pub server_options: Vec<String>,
    /// Where servers run, and the host's own load; empty: anywhere.
    pub server_cpus: Vec<usize>,
}

/// A contender that can be measured.
pub(crate) enum Running {
    Server(Box<Server>),
    Raw(PathBuf, Aio),
    Socket(PathBuf),
    /// Started for each measurement.
    OnDemand(Contender),
}

impl Running {
    /// Starts a contender if it has to be started.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] where it cannot be: there is no file to read without a server, no such
    /// program; [`Error::Server`] and others when it fails.
    pub fn open(contender: &Contender, setup: &ServerSetup) -> Result<Self> {
        let images = || {
            setup
                .backings
                .iter()
                .any(|it| matches!(it, Backing::Rbd(_)))
        };
        let is_started = matches!(
            contender,
            Contender::Ours | Contender::OursRecorded | Contender::Peer(_)
        );
        if is_started && images() {
            return Ok(Running::OnDemand(contender.clone()));
        }
        let mut started = setup.start(contender)?;
        if let Running::Server(server) = &mut started {
            // It listens before anything is measured.
            drop(server.connect(0)?);
        }
        Ok(started)
    }

    pub fn measure(&mut self, load: &Load, times: Times, setup: &ServerSetup) -> Result<Measured> {
        match self {
            Running::Server(server) => {
                let pid = Some(server.pid());
                let streams = (0..setup.backings.len()).map(|disk| server.connect(disk));
                let streams = streams.collect::<Result<Vec<_>>>()?;
                let measured = measure_disks(streams, load, times, pid);
                measured.map_err(|error| server.explain(error))
            }
            Running::Raw(path, engine) => {
                raw::measure(path, *engine, load, &setup.server_cpus, times)
            }
            Running::Socket(path) => measure(connect(path)?, load, times, None),
            Running::OnDemand(contender) => {
                let mut server = setup.start(contender)?;
                let measured = server.measure(load, times, setup)?;
                server.close()?;
                Ok(measured)
            }
        }
    }

    /// Ends what was started.
    ///
    /// # Errors
    /// [`Error::Server`] when it does not end well.
    pub fn close(self) -> Result<()> {
        match self {
            Running::Server(server) => server.stop().map(drop),
            _ => Ok(()),
        }
    }
}

impl ServerSetup {
    fn start(&self, contender: &Contender) -> Result<Running> {
        match contender {
            Contender::Ours | Contender::OursRecorded => {
                self.server(&self.ours, self.iothreads, &self.backings)
            }
            Contender::Peer(engine) => {
                let peer = self.peer.as_deref().ok_or_else(|| {
                    Error::Unsuitable("qemu-storage-daemon is not in PATH: install it, name it with --peer, or leave it out \
                         of --servers"
                            .to_owned())
                })?;
                // Its default would be threads, which are slower.
                let engine = |ours: &Option<Aio>| engine.or(*ours).or(Some(Aio::Native));
                let backings = self.backings.iter().map(|backing| match backing {
                    Backing::Null | Backing::Rbd(_) | Backing::Nbd(_) => backing.clone(),
                    Backing::File(path, aio) => Backing::File(path.clone(), engine(aio)),
                    Backing::Device(path, aio) => Backing::Device(path.clone(), engine(aio)),
                });
                let backings: Vec<_> = backings.collect();
                let disks = u16::try_from(backings.len()).unwrap_or(u16::MAX);
                self.server(peer, self.iothreads.min(disks), &backings)
            }
            Contender::Raw(engine) => match &self.backings[..] {
                [Backing::File(path, _) | Backing::Device(path, _)] => {
                    Ok(Running::Raw(path.clone(), *engine))
                }
                _ => Err(Error::Unsuitable(
                    "this is no file or device to read on the host: leave raw out, or choose another --backing"
                        .to_owned(),
                )),
            },
            Contender::Socket(path) => Ok(Running::Socket(path.clone())),
        }
    }

    fn server(&self, program: &Path, iothreads: u16, backings: &[Backing]) -> Result<Running> {
        let ours = program == self.ours;
        let threads = Threads {
            count: iothreads,
            options: if ours { &self.iothread_options } else { "" },
        };
        let more: &[String] = if ours { &self.server_options } else { &[] };
        let disks = backings
            .iter()
            .map(|backing| Disk::virtio(backing, self.queues, self.writable));
        let disks: Vec<_> = disks.collect();
        let server = Server::start(program, &self.server_cpus, threads, more, &disks)?;
        Ok(Running::Server(Box::new(server)))
    }
}
