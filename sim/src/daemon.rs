//! The daemon: the program's own iothreads, with the queues of a device that are divided between them, on this thread.
//!
//! What is not here is what a seed cannot decide: sockets, threads, and files.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use block::{Node, ThrottleLimits};
use engine::Errno;
use iothread::{
    DeviceCommand, DeviceSetup, ErrorPolicy, ExportReporter, Message, QueueReporter, Report,
    ReportedExport, ResumeAction, SocketDevice, SocketDeviceCommand, VringSetup, report_channel,
};
use telemetry::queue::{QueueName, QueueStats};
use virtio_blk::{Device, DeviceOptions};
use virtqueue::queue_setup::{QueueCommand, QueueSetup};

use crate::clock;
use crate::guest::SERIAL;
use crate::iothread::Iothread;
use crate::kernel::Kernel;
use crate::kernel::uring::Ring;
use crate::nodes::{Groups, Nodes};
use crate::plan::{Config, Filters};
use crate::poller::Wakeups;

/// Where something runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its iothread.
    pub iothread: usize,
    /// Its place there.
    number: u32,
}

/// A running queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Where.
    pub place: Place,
    /// Where its kicks go.
    pub kick: RawFd,
}

/// A running daemon.
pub struct Daemon {
    /// Behind cells, so that one can run while another one does.
    iothreads: Vec<Rc<RefCell<Iothread>>>,
    /// How the guest sees the disk.
    pub device: Arc<Device>,
    /// What it shows.
    pub nodes: Nodes,
    /// Its throttle groups.
    pub groups: Option<Groups>,
    reports: Arc<ExportReporter>,
    _mailbox: Receiver<Report>,
    /// By index; those that run.
    pub queues: Vec<Option<Running>>,
    /// Where the device of a client runs.
    pub client: Option<Place>,
}

/// A descriptor that names something to the poller, and is nothing else.
fn descriptor() -> OwnedFd {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    rustix::event::eventfd(0, flags).expect("an eventfd")
}

impl Daemon {
    /// One without queues, for a simulated disk of this size with these filters and limits.
    pub fn new(
        config: &Config,
        kernel: &Kernel,
        sectors: usize,
        filters: Filters,
        limits: ThrottleLimits,
    ) -> Self {
        let groups = Groups::new(config, limits);
        let nodes = Nodes::open(config, kernel, sectors, filters, groups.as_ref(), None);
        let iothreads = (0..config.iothreads).map(|index| {
            let face = kernel.of(index);
            let mut iothread = Iothread::new(config, Box::new(face.clone()));
            face.set_uring(None);
            if config.io_uring {
                let ring = Box::new(Ring::new(&face, config.max_events));
                iothread.io().set_simulated_ring(ring);
            }
            iothread
        });
        let options = DeviceOptions {
            num_queues: u16::try_from(config.queues).expect("few"),
            serial: SERIAL.to_owned(),
            write_through: config.write_through,
            request_merging: config.merging,
            ..DeviceOptions::default()
        };
        let device = Device::new(options, nodes.shown(0).geometry()).expect("a device");
        let [reads, writes] = config.policy;
        let (reports, mailbox) = report_channel();
        let reports = ExportReporter::new(reports, &ReportedExport::new("sim"), "disk");
        Daemon {
            iothreads: iothreads.map(RefCell::new).map(Rc::new).collect(),
            device: Arc::new(device),
            nodes,
            groups,
            reports: Arc::new(reports.with_policy(ErrorPolicy { reads, writes })),
            _mailbox: mailbox,
            queues: vec![None; config.queues],
            client: None,
        }
    }

    /// Sends a message about what runs there, and does not wait.
    pub fn send(&self, place: Place, message: impl FnOnce(u32) -> Message) {
        let message = message(place.number);
        self.iothreads[place.iothread].borrow().send(message);
    }

    /// The queues that run.
    fn running(&self) -> impl Iterator<Item = Running> {
        self.queues.iter().flatten().copied()
    }

    /// Whether something runs.
    pub fn is_used(&self) -> bool {
        self.running().next().is_some() || self.client.is_some()
    }

    /// Tells a queue.
    pub fn tell_queue(&self, queue: Running, command: QueueCommand) {
        self.send(queue.place, |place| Message::Queue(place, command));
    }

    /// Tells all queues that run.
    pub fn tell(&self, command: impl Fn() -> QueueCommand) {
        for queue in self.running() {
            self.tell_queue(queue, command());
        }
    }

    /// Tells all queues that run; where their answers come.
    pub fn ask<T>(&self, command: impl Fn(Sender<T>) -> QueueCommand) -> Vec<Receiver<T>> {
        let asked = self.running().map(|queue| {
            let (reply, answer) = channel();
            self.tell_queue(queue, command(reply));
            answer
        });
        asked.collect()
    }

    /// Tells the device of a client, if it runs.
    pub fn tell_client(&self, command: SocketDeviceCommand) {
        if let Some(place) = self.client {
            self.send(place, |place| Message::SocketDevice(place, command));
        }
    }

    /// The same; where its answer comes.
    pub fn ask_client<T>(
        &self,
        command: impl FnOnce(Sender<T>) -> SocketDeviceCommand,
    ) -> Option<Receiver<T>> {
        let (reply, answer) = channel();
        self.tell_client(command(reply));
        self.client.map(|_| answer)
    }

    /// All that run answer when what they have taken so far is done.
    pub fn settle(&self) -> Vec<Receiver<()>> {
        let mut answers = self.ask(QueueCommand::Settle);
        answers.extend(self.ask_client(SocketDeviceCommand::Settle));
        answers
    }

    /// Disables all that run. They answer when what they have taken so far is done.
    pub fn disable(&self) -> Vec<Receiver<()>> {
        self.tell(|| QueueCommand::Enable(false));
        self.tell_client(SocketDeviceCommand::Enable(false));
        self.settle()
    }

    /// Enables all that run but those queues whose driver has disabled them.
    pub fn enable(&self, enabled: impl Iterator<Item = bool>) {
        for (running, enabled) in self.queues.iter().zip(enabled) {
            if let Some(running) = running {
                self.tell_queue(*running, QueueCommand::Enable(enabled));
            }
        }
        self.tell_client(SocketDeviceCommand::Enable(true));
    }

    /// All that run go on with the node that is shown, and answer when all is done that they had taken before.
    pub fn set_node(&self) -> Vec<Receiver<()>> {
        let node = |source| self.nodes.shown(source).clone();
        let running = self.queues.iter().enumerate();
        let running = running.filter_map(|(index, queue)| Some((index, (*queue)?)));
        let asked = running.map(|(index, queue)| {
            let (reply, answer) = channel();
            let command = DeviceCommand::SetNode(node(index), reply);
            self.send(queue.place, |place| Message::Device(place, command));
            answer
        });
        let client = |reply| SocketDeviceCommand::SetNode(node(self.queues.len()), reply);
        asked.chain(self.ask_client(client)).collect()
    }

    /// What waits after an error goes on.
    pub fn resume(&self, how: ResumeAction) {
        for queue in self.running() {
            let command = DeviceCommand::Resume(how);
            self.send(queue.place, |place| Message::Device(place, command));
        }
    }

    /// Whether there is a reason to run.
    pub fn is_awake(&self) -> bool {
        let mut iothreads = self.iothreads.iter();
        iothreads.any(|iothread| iothread.borrow().is_awake())
    }

    /// One of its iothreads, and the place of that.
    pub fn iothread(&self, pick: usize) -> (usize, Rc<RefCell<Iothread>>) {
        let index = pick % self.iothreads.len();
        (index, self.iothreads[index].clone())
    }

    /// What wakes an iothread.
    pub fn wakeups(&self, iothread: usize) -> Wakeups {
        self.iothreads[iothread].borrow().wakeups.clone()
    }

    /// When the next of its iothreads wakes up by itself.
    pub fn due_ns(&self) -> Option<u64> {
        let due = |iothread: &Rc<RefCell<Iothread>>| iothread.borrow().wakeups.state().due_ns();
        self.iothreads.iter().filter_map(due).min()
    }

    /// Time goes on until something is due; false if nothing is.
    pub fn pass(&self) -> bool {
        let Some(due_ns) = self.due_ns() else {
            return false;
        };
        clock::advance(due_ns.saturating_sub(clock::now_ns()));
        true
    }

    /// How many jobs its workers have.
    pub fn waiting_job_count(&self) -> usize {
        let jobs =
            |iothread: &Rc<RefCell<Iothread>>| iothread.borrow_mut().io().waiting_job_count();
        self.iothreads.iter().map(jobs).sum()
    }

    /// A worker does the job with this number, or fails.
    pub fn run_or_fail_job(&self, mut index: usize, fails: Option<Errno>) {
        for iothread in &self.iothreads {
            let mut iothread = iothread.borrow_mut();
            let jobs = iothread.io().waiting_job_count();
            if index < jobs {
                return iothread.io().run_or_fail_job(index, fails);
            }
            index -= jobs;
        }
    }

    /// Starts a queue and waits for that. Its kick descriptor is made here.
    pub fn start(&mut self, index: usize, mut start: QueueSetup) {
        let kick = descriptor();
        let fd = kick.as_raw_fd();
        // As `iothread-vq-mapping` divides queues that are not named.
        let (iothread, cell) = self.iothread(index);
        cell.borrow().wakeups.state().new_kick(fd);
        start.descriptors.kick = Some(kick);
        let queue = u16::try_from(index).expect("few");
        let setup = VringSetup {
            name: QueueName::new("sim", queue),
            device: DeviceSetup::Blk {
                device: self.device.clone(),
                node: self.nodes.shown(index).clone(),
            },
            queue: start,
            fixed_buffers: false,
            stats: Arc::new(QueueStats::new()),
            reports: Some(QueueReporter {
                export: self.reports.clone(),
                queue,
            }),
        };
        let (reply, answer) = channel();
        cell.borrow().send(Message::Start(Box::new(setup), reply));
        let number = run_until(&cell, &answer).unwrap_or_else(|error| {
            panic!("queue {index} does not start: {error}");
        });
        let place = Place { iothread, number };
        self.queues[index] = Some(Running { place, kick: fd });
    }

    /// Starts the device of a client and waits for that.
    pub fn start_client(&mut self, device: Box<dyn SocketDevice>) {
        let node = self.nodes.shown(self.queues.len()).clone();
        let place = self.start_device(self.iothreads.len() - 1, device, node);
        self.client = Some(place);
    }

    /// Starts a device without a ring on an iothread and waits for that.
    pub fn start_device(
        &self,
        iothread: usize,
        device: Box<dyn SocketDevice>,
        node: Arc<Node>,
    ) -> Place {
        let (iothread, cell) = self.iothread(iothread);
        let (reply, answer) = channel();
        let message = Message::StartSocketDevice(device, vec![node], reply);
        cell.borrow().send(message);
        let number = run_until(&cell, &answer);
        Place { iothread, number }
    }

    /// Another eventfd for kicks; those on the old one are lost.
    pub fn set_kick(&mut self, index: usize) {
        if let Some(mut running) = self.queues[index] {
            let kick = descriptor();
            running.kick = kick.as_raw_fd();
            self.queues[index] = Some(running);
            self.wakeups(running.place.iothread)
                .state()
                .new_kick(running.kick);
            self.tell_queue(running, QueueCommand::SetKick(Some(kick), channel().0));
        }
    }

    /// Requests that wait after an error.
    pub fn waiting(&self) -> u64 {
        self.reports.queues().parked_count()
    }
}

/// Runs an iothread until it answers.
fn run_until<T>(iothread: &RefCell<Iothread>, answer: &Receiver<T>) -> T {
    loop {
        iothread.borrow_mut().iterate();
        match answer.try_recv() {
            Ok(answer) => return answer,
            Err(error) => assert_eq!(error, TryRecvError::Empty, "it is not answered"),
        }
    }
}
