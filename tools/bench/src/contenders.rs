//! Several servers, and the host itself, behind the same disk and under the same load in turn.
//!
//! All servers run all the time; one that is not loaded sleeps, unless it is of the kind that does
//! not. Those of images in Ceph RBD run only while they are measured, since a writer locks its image.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::aio::Aio;
use crate::error::{Error, Result};
use crate::load::{Load, Measured, Times, measure, raw};
use crate::run::connect;
use crate::server::{Disk, Server, Threads};
use crate::storage::Storage;

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
            ("raw", None) => Ok(Contender::Raw(Aio::Native)),
            ("raw", Some(engine @ (Aio::Native | Aio::IoUring))) => Ok(Contender::Raw(engine)),
            ("qemu-storage-daemon", engine) => Ok(Contender::Peer(engine)),
            _ => Err(
                "ours, ours-recorded, raw[:native or :io_uring] or qemu-storage-daemon[:ENGINE] is expected"
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

/// The disks, and the programs and options of the servers.
pub(crate) struct ServerSetup {
    /// Our program.
    pub ours: PathBuf,
    /// The other one, if there is one.
    pub peer: Option<PathBuf>,
    /// What is behind each disk; at least one.
    pub storage: Vec<Storage>,
    /// The engine of ours, and the peer's unless it has one of its own.
    pub aio: Option<Aio>,
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
    /// Servers are started for each measurement.
    pub on_demand: bool,
}

/// A contender that can be measured, and its server if one was started.
pub(crate) struct Running<'s> {
    contender: &'s Contender,
    setup: &'s ServerSetup,
    server: Option<Server>,
}

impl<'s> Running<'s> {
    /// Starts a contender if it has to be started.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] where it cannot be: there is no file to read without a server, no such
    /// program; [`Error::Server`] and others when it fails.
    pub fn open(contender: &'s Contender, setup: &'s ServerSetup) -> Result<Self> {
        let server = match setup.on_demand {
            true => None,
            false => setup.start(contender)?,
        };
        Ok(Running {
            contender,
            setup,
            server,
        })
    }

    /// # Errors
    /// Those of the load, and of the server.
    pub fn measure(&mut self, load: &Load, times: Times) -> Result<Measured> {
        let setup = self.setup;
        match self.contender {
            Contender::Raw(engine) => match &setup.storage[..] {
                [Storage { path: Some(path), .. }] => {
                    raw::measure(path, *engine, load, &setup.server_cpus, times)
                }
                _ => Err(Error::Unsuitable(
                    "this is no file or device to read on the host: leave raw out, or choose another --backing".to_owned(),
                )),
            },
            Contender::Socket(path) => measure(vec![connect(path)?], load, times, None),
            Contender::Ours | Contender::OursRecorded | Contender::Peer(_) => {
                let mut started = match setup.on_demand {
                    true => setup.start(self.contender)?,
                    false => None,
                };
                let server = started.as_mut().or(self.server.as_mut());
                let server = server.ok_or_else(|| Error::Server("was not started".to_owned()))?;
                let load = Load {
                    recorded: load.recorded || *self.contender == Contender::OursRecorded,
                    ..load.clone()
                };
                let streams = (0..setup.storage.len()).map(|disk| server.connect(disk));
                let streams = streams.collect::<Result<Vec<_>>>()?;
                let measured = measure(streams, &load, times, Some(server.pid()));
                let measured = measured.map_err(|error| server.explain(error))?;
                started.map_or(Ok(String::new()), Server::stop)?;
                Ok(measured)
            }
        }
    }

    /// Ends what was started.
    ///
    /// # Errors
    /// [`Error::Server`] when it does not end well.
    pub fn close(self) -> Result<()> {
        self.server.map_or(Ok(()), |server| server.stop().map(drop))
    }
}

impl ServerSetup {
    /// Starts a contender's server, which listens then; `None`: it has none of ours.
    fn start(&self, contender: &Contender) -> Result<Option<Server>> {
        let disks = u16::try_from(self.storage.len()).unwrap_or(u16::MAX);
        let (program, aio, count, options, more) = match contender {
            Contender::Ours | Contender::OursRecorded => {
                let (options, more) = (&*self.iothread_options, &self.server_options[..]);
                (&self.ours, self.aio, self.iothreads, options, more)
            }
            Contender::Peer(engine) => {
                let peer = self.peer.as_ref().ok_or_else(|| {
                    Error::Unsuitable(
                        "qemu-storage-daemon is not in PATH: install it, name it with --peer, or leave it out of --servers"
                            .to_owned(),
                    )
                })?;
                // Its default would be threads, which are slower.
                let aio = engine.or(self.aio).or(Some(Aio::Native));
                (peer, aio, self.iothreads.min(disks), "", &[][..])
            }
            Contender::Raw(_) | Contender::Socket(_) => return Ok(None),
        };
        let storage = self.storage.iter();
        let disks = storage.map(|one| Disk::virtio(one, aio, self.queues, self.writable));
        let disks: Vec<_> = disks.collect();
        let threads = Threads { count, options };
        let mut server = Server::start(program, &self.server_cpus, threads, more, &disks)?;
        // It listens before anything is measured.
        drop(server.connect(0)?);
        Ok(Some(server))
    }
}
