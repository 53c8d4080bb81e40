//! The daemon: the program's own iothread, with its queues, device, engines and control messages, on this thread.
//!
//! What is not here is what a seed cannot decide: sockets, threads, and files.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use block::{Aio, DiscardLimits, IoSettings, IoContext, Geometry, Node};
use data_plane::{
    DeviceCommand, DeviceSetup, ErrorPolicy, ExportReports, Message, QueueReports, Report, Resume,
    StoragePlane, VringSetup, mailbox,
};
use device_queue::{QueueName, QueueStats};
use engine::{AioKernel, AioSettings, PoolSettings};
use event_loop::{IoThread, PollSettings, Remote};
use virtio_blk::{Device, DeviceOptions};
use virtqueue::control::{QueueCommand, QueueSetup};

use crate::guest::SERIAL;
use crate::kernel::Kernel;
use crate::model::SECTOR;
use crate::plan::Config;
use crate::poller::Wakeups;
use crate::ring::Ring;

/// A queue that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its place on the iothread.
    pub place: u32,
    /// Where its kicks go.
    pub kick: RawFd,
}

/// A running daemon.
pub struct Daemon {
    io: IoThread<StoragePlane>,
    remote: Remote<Message>,
    /// What wakes it.
    pub wakeups: Wakeups,
    /// How the guest sees the disk.
    pub device: Arc<Device>,
    node: Arc<Node>,
    reports: Arc<ExportReports>,
    _mailbox: Receiver<Report>,
    /// By index; those that run.
    pub queues: Vec<Option<Running>>,
}

fn geometry(sectors: usize) -> Geometry {
    Geometry {
        size: (sectors * SECTOR) as u64,
        logical_block_size: 512,
        physical_block_size: 512,
        min_io_size: 0,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: 512,
            max_bytes: 1 << 30,
        },
    }
}

/// A descriptor that names something to the poller, and is nothing else.
fn descriptor() -> OwnedFd {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    rustix::event::eventfd(0, flags).expect("an eventfd")
}

impl Daemon {
    /// One without queues, for a simulated disk of this size.
    pub fn new(config: &Config, kernel: &Kernel, sectors: usize) -> Self {
        let disk = Arc::new(kernel.clone());
        let aio = if config.io_uring {
            Aio::IoUring
        } else {
            Aio::Native
        };
        let node = Node::simulated(geometry(sectors), config.memory_alignment, aio, disk);
        let mut daemon = Daemon::of(config, node.expect("a node"), Box::new(kernel.clone()));
        kernel.state().uring = None;
        if config.io_uring {
            let ring = Ring::new(kernel, config.max_events);
            daemon.io().simulate_ring(Box::new(ring));
        }
        daemon
    }

    /// One without queues, for a node on that kernel.
    pub fn of(config: &Config, node: Arc<Node>, kernel: Box<dyn AioKernel>) -> Self {
        let wakeups = Wakeups::default();
        let polling = PollSettings {
            max_ns: 0,
            ..PollSettings::default()
        };
        let settings = IoSettings {
            aio: AioSettings {
                max_events: config.max_events,
                ..AioSettings::default()
            },
            pool: PoolSettings::default(),
        };
        let io = IoThread::new(Box::new(wakeups.clone()), polling, |_, remote| {
            let (waker, mail) = (remote.waker(), wakeups.clone());
            let wake = Arc::new(move || {
                waker.wake();
                mail.state().wake();
            });
            let mut io = IoContext::new(settings, wake).map_err(std::io::Error::other)?;
            io.simulate(kernel);
            Ok::<_, std::io::Error>(StoragePlane::new(remote, io))
        });
        let io = io.expect("an iothread");
        let options = DeviceOptions {
            num_queues: u16::try_from(config.queues).expect("few"),
            serial: SERIAL.to_owned(),
            write_through: config.write_through,
            request_merging: config.merging,
            ..DeviceOptions::default()
        };
        let device = Device::new(options, node.geometry()).expect("a device");
        let [reads, writes] = config.policy;
        let (reports, mailbox) = mailbox();
        let reports = ExportReports::new(reports, "sim", "disk");
        Daemon {
            remote: io.remote(),
            io,
            wakeups,
            device: Arc::new(device),
            node,
            reports: Arc::new(reports.with_policy(ErrorPolicy { reads, writes })),
            _mailbox: mailbox,
            queues: vec![None; config.queues],
        }
    }

    /// Sends a message, and does not wait.
    pub fn send(&self, message: Message) {
        self.remote.send(message).expect("a loop that runs");
        self.wakeups.state().wake();
    }

    /// Tells all queues that run.
    pub fn tell(&self, command: impl Fn() -> QueueCommand) {
        for running in self.queues.iter().flatten() {
            self.send(Message::Queue(running.place, command()));
        }
    }

    /// Tells all queues that run; where their answers come.
    pub fn ask<T>(&self, command: impl Fn(Sender<T>) -> QueueCommand) -> Vec<Receiver<T>> {
        let running = self.queues.iter().flatten();
        let asked = running.map(|running| {
            let (reply, answer) = channel();
            self.send(Message::Queue(running.place, command(reply)));
            answer
        });
        asked.collect()
    }

    /// Whether there is a reason to run.
    pub fn is_awake(&self) -> bool {
        self.wakeups.state().is_awake()
    }

    /// One iteration, if there is a reason.
    pub fn iterate(&mut self) {
        if self.is_awake() {
            let goes_on = self.io.iterate().expect("a poller that works");
            assert!(goes_on, "nobody has stopped it");
        }
    }

    /// Starts a queue and waits for that. Its kick descriptor is made here.
    pub fn start(&mut self, index: usize, mut start: QueueSetup) {
        let kick = descriptor();
        let fd = kick.as_raw_fd();
        self.wakeups.state().new_kick(fd);
        start.descriptors.kick = Some(kick);
        let queue = u16::try_from(index).expect("few");
        let setup = VringSetup {
            name: QueueName::new("sim", queue),
            device: DeviceSetup::Blk {
                device: self.device.clone(),
                node: self.node.clone(),
            },
            queue: start,
            fixed_buffers: false,
            stats: Arc::new(QueueStats::new()),
            reports: Some(QueueReports {
                export: self.reports.clone(),
                queue,
            }),
        };
        let (reply, answer) = channel();
        self.send(Message::Start(Box::new(setup), reply));
        loop {
            self.iterate();
            match answer.try_recv() {
                Ok(Ok(place)) => {
                    self.queues[index] = Some(Running { place, kick: fd });
                    return;
                }
                Ok(Err(error)) => panic!("queue {index} does not start: {error}"),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => panic!("queue {index} is not started"),
            }
        }
    }

    /// Another eventfd for kicks; those on the old one are lost.
    pub fn set_kick(&mut self, index: usize) {
        if let Some(running) = &mut self.queues[index] {
            let kick = descriptor();
            running.kick = kick.as_raw_fd();
            self.wakeups.state().new_kick(running.kick);
            let message = Message::Queue(
                running.place,
                QueueCommand::SetKick(Some(kick), channel().0),
            );
            self.send(message);
        }
    }

    /// What waits after an error goes on.
    pub fn resume(&self, how: Resume) {
        for running in self.queues.iter().flatten() {
            self.send(Message::Device(running.place, DeviceCommand::Resume(how)));
        }
    }

    /// Requests that wait after an error.
    pub fn waiting(&self) -> u64 {
        self.reports.waiting().count()
    }

    /// Its engines.
    pub fn io(&mut self) -> &mut IoContext {
        self.io.plane().io_mut()
    }
}
