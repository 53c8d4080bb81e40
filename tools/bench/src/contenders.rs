//! Several servers, and the host itself, behind the same disk and under the same load in turn.
//!
//! All servers run all the time; one that is not loaded sleeps, unless it is of the kind that does
//! not. Those of images in Ceph RBD run only while they are measured, since a writer locks its image.
//! A repetition visits each contender once, and the next one in the other direction: whatever
//! else the machine does affects all of them, and drift favours none.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::aio::Aio;
use crate::cpus::Pinned;
use crate::error::{Error, Result};
use crate::idle_disks::{self, IdleDisks};
use crate::load::raw;
use crate::load::{Load, Measured, measure, measure_disks};
use crate::progress::Progress;
use crate::rbd_image::RbdImage;
use crate::run::connect;
use crate::server::{Disk, FrontEnd, Server, Threads, ThrottleGroup};
use crate::stats::Summary;
use crate::storage::Backing;
use crate::turns;

/// A server or storage that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contender {
    /// This blockplane.
    Ours,
    /// This blockplane, and it has to record what is in flight.
    OursRecorded,
    /// This blockplane, with a throttled node in front of each disk, whose limits are never reached.
    OursThrottled,
    /// This blockplane, with other disks beside the one that is loaded, all idle.
    OursInACrowd {
        /// Other disks.
        disks: u16,
        /// Queues of each.
        queues: u8,
    },
    /// qemu-storage-daemon, or what takes its options, with an engine of its own if one is named.
    Peer(Option<Aio>),
    /// No server at all.
    Raw(Aio),
    /// No server at all: librbd alone.
    RawImages,
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
            ("ours-throttled", None) => Ok(Contender::OursThrottled),
            ("raw", engine) => Ok(Contender::Raw(engine.unwrap_or(Aio::Native))),
            ("qemu-storage-daemon", engine) => Ok(Contender::Peer(engine)),
            _ => Err(
                "ours, ours-recorded, ours-throttled, raw[:ENGINE] or qemu-storage-daemon[:ENGINE] is expected"
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
            Contender::OursThrottled => f.write_str("ours-throttled"),
            Contender::OursInACrowd { disks, queues } => {
                let idle = u32::from(*disks) * u32::from(*queues);
                write!(f, "ours beside {idle} idle queues")
            }
            Contender::Peer(None) => f.write_str("qemu-storage-daemon"),
            Contender::Peer(Some(engine)) => write!(f, "qemu-storage-daemon:{engine}"),
            Contender::Raw(engine) => write!(f, "raw:{engine}"),
            Contender::RawImages => f.write_str("raw:librbd"),
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
    /// What is behind each disk that is loaded; at least one. Its engine is ours, and the peer's unless it has one of its own.
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

/// How long a load is.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before it counts.
    pub warm_up: Duration,
    /// While it counts.
    pub time: Duration,
    /// How often.
    pub repetitions: u32,
}

enum Running {
    Server(Box<Server>, Option<IdleDisks>),
    Raw(PathBuf, Aio),
    RawImages(Vec<RbdImage>),
    Socket(PathBuf),
    /// Started for each measurement.
    OnDemand(Contender),
}

/// Running contenders.
pub struct Contenders {
    /// The contenders.
    pub contenders: Vec<Contender>,
    running: Vec<Running>,
    setup: ServerSetup,
}

/// One load on all of them.
#[derive(Clone, Debug)]
pub struct Row {
    /// The load.
    pub load: Load,
    /// By contender, then by repetition.
    pub measured: Vec<Vec<Measured>>,
}

impl Contenders {
    /// Starts those that have to be started.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] where one cannot be: there is no file to read without a server, no such
    /// program; [`Error::Server`] and others when one fails.
    pub fn open(setup: ServerSetup, contenders: &[Contender]) -> Result<Self> {
        let mut running = Vec::new();
        for contender in contenders {
            running.push(match contender {
                Contender::Ours
                | Contender::OursRecorded
                | Contender::OursThrottled
                | Contender::Peer(_)
                    if setup.serves_images() =>
                {
                    Running::OnDemand(contender.clone())
                }
                _ => {
                    let mut started = setup.start(contender)?;
                    if let Running::Server(server, _) = &mut started {
                        // It listens before anything is measured.
                        drop(server.connect(0)?);
                    }
                    started
                }
            });
        }
        Ok(Contenders {
            contenders: contenders.to_vec(),
            running,
            setup,
        })
    }

    /// Puts a load on all of them in turn. A step of `progress` is one measurement.
    ///
    /// # Errors
    /// When a request or a server fails.
    pub(crate) fn row(&mut self, load: &Load, times: Times, progress: &Progress) -> Result<Row> {
        let mut measured = vec![Vec::new(); self.running.len()];
        for repetition in 0..times.repetitions {
            for index in turns::of_repetition(repetition, self.running.len()) {
                let name = &self.contenders[index];
                progress.now(format!("{}: {name}", crate::run::describe(load)));
                let load = Load {
                    recorded: load.recorded || *name == Contender::OursRecorded,
                    ..load.clone()
                };
                let one = self.running[index].measure(&load, times, &self.setup);
                measured[index].push(one.map_err(|error| error.of(&name.to_string()))?);
                progress.step();
            }
        }
        Ok(Row {
            load: load.clone(),
            measured,
        })
    }

    /// Ends what was started.
    ///
    /// # Errors
    /// [`Error::Server`] when one does not end well.
    pub fn close(self) -> Result<()> {
        for running in self.running {
            running.close()?;
        }
        Ok(())
    }
}

impl Running {
    fn measure(&mut self, load: &Load, times: Times, setup: &ServerSetup) -> Result<Measured> {
        let Times { warm_up, time, .. } = times;
        match self {
            Running::Server(server, _) => {
                let pid = Some(server.pid());
                let disks = 0..setup.backings.len();
                let streams = disks.map(|disk| server.connect(disk));
                let streams = streams.collect::<Result<Vec<_>>>()?;
                measure_disks(streams, load, warm_up, time, pid)
                    .map_err(|error| server.explain(error))
            }
            Running::Raw(path, engine) => {
                raw::measure(path, *engine, load, &setup.server_cpus, warm_up, time)
            }
            Running::RawImages(images) => {
                raw::images::measure(images, load, &setup.server_cpus, warm_up, time)
            }
            Running::Socket(path) => measure(connect(path)?, load, warm_up, time, None),
            Running::OnDemand(contender) => {
                let mut server = setup.start(contender)?;
                let measured = server.measure(load, times, setup)?;
                server.close()?;
                Ok(measured)
            }
        }
    }

    fn close(self) -> Result<()> {
        if let Running::Server(server, crowd) = self {
            drop(crowd);
            server.stop()?;
        }
        Ok(())
    }
}

impl ServerSetup {
    fn start(&self, contender: &Contender) -> Result<Running> {
        match contender {
            Contender::Ours | Contender::OursRecorded => {
                self.server(&self.ours, self.iothreads, &self.backings, &[], None)
            }
            Contender::OursThrottled => {
                let groups = [never_reached()];
                self.server(&self.ours, self.iothreads, &self.backings, &groups, None)
            }
            Contender::OursInACrowd { disks, queues } => {
                let crowd = Some((*disks, *queues));
                self.server(&self.ours, self.iothreads, &self.backings, &[], crowd)
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
                self.server(peer, self.iothreads.min(disks), &backings, &[], None)
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
            Contender::RawImages => Ok(Running::RawImages(self.images().cloned().collect())),
            Contender::Socket(path) => Ok(Running::Socket(path.clone())),
        }
    }

    fn images(&self) -> impl Iterator<Item = &RbdImage> {
        self.backings.iter().filter_map(|backing| match backing {
            Backing::Rbd(image) => Some(image),
            Backing::Null | Backing::File(..) | Backing::Device(..) | Backing::Nbd(_) => None,
        })
    }

    fn serves_images(&self) -> bool {
        self.images().next().is_some()
    }

    fn server(
        &self,
        program: &Path,
        iothreads: u16,
        backings: &[Backing],
        throttle_groups: &[ThrottleGroup],
        crowd: Option<(u16, u8)>,
    ) -> Result<Running> {
        // What we start runs where we do at that moment.
        let _pinned = Pinned::to(&self.server_cpus)?;
        let ours = program == self.ours;
        let threads = Threads {
            count: iothreads,
            options: if ours { &self.iothread_options } else { "" },
        };
        let more: &[String] = if ours { &self.server_options } else { &[] };
        let disks = backings.iter().map(|backing| Disk {
            backing: backing.clone(),
            num_queues: self.queues,
            writable: self.writable,
            front_end: FrontEnd::Blk,
            throttle_groups: throttle_groups.to_vec(),
        });
        let mut disks: Vec<_> = disks.collect();
        if let Some((count, queues)) = crowd {
            disks.extend((0..count).map(|_| idle_disks::disk(queues)));
        }
        let mut server = Server::start_as(program, threads, more, &disks)?;
        let crowd = crowd
            .map(|(count, queues)| idle_disks::gather(&mut server, count, queues))
            .transpose()
            .map_err(|error| server.explain(error))?;
        Ok(Running::Server(Box::new(server), crowd))
    }
}

/// Limits that no disk reaches.
fn never_reached() -> ThrottleGroup {
    ThrottleGroup {
        id: "unreached",
        limits: "limits.iops-total=1000000000,limits.bps-total=1000000000000".to_owned(),
    }
}

/// A figure of one measurement.
pub type Figure = fn(&Measured) -> Option<f64>;

impl Row {
    /// The repetitions of one contender, summed up.
    #[must_use]
    pub fn summary(&self, contender: usize, figure: Figure) -> Option<Summary> {
        let values: Option<Vec<f64>> = self.measured.get(contender)?.iter().map(figure).collect();
        Summary::of(&values?)
    }

    /// How many times one contender's figure is another's, from each repetition's pair.
    #[must_use]
    pub fn ratio(&self, of: usize, over: usize, figure: Figure) -> Option<Summary> {
        let pairs = self.measured.get(of)?.iter().zip(self.measured.get(over)?);
        let ratios: Option<Vec<f64>> = pairs
            .map(|(of, over)| {
                let over = figure(over).filter(|&over| over > 0.0)?;
                Some(figure(of)? / over)
            })
            .collect();
        Summary::of(&ratios?)
    }
}
