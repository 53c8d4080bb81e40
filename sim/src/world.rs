//! One run: the events of a plan, one after the other, and what is checked on the way and in the end.

mod bitmaps;
mod connection;
mod control;
mod coverage;
mod end;
mod exchange;
mod jobs;
mod machine;
mod memory;
mod migration;
mod mirror;
mod throttle;
mod upgrade;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::mpsc::Receiver;

use block::ThrottleLimits;
use engine::Errno;
use iothread::ResumeAction;

use crate::client::Client;
use crate::clock;
use crate::daemon::Daemon;
use crate::disk::Disk;
use crate::guest::Guest;
use crate::inflight_memory::InflightMemory;
use crate::kernel::Kernel;
use crate::nodes::ClosedNodes;
use crate::plan::{Config, DisconnectReason, Event, Exchange, Filters, Handover, Plan};
use crate::trace::Trace;

use jobs::{Job, JobStep};
use machine::act;

pub use coverage::Coverage;

/// The front-end's knowledge of a queue.
struct KnownQueue {
    /// Where it stood when it last stopped.
    base: Option<u32>,
    /// It has stopped, and was not started since.
    clean: bool,
    record: Option<InflightMemory>,
    /// The front-end has disabled it, also if it does not run.
    disabled: bool,
    /// The message that disables it was sent, and the iothread has not run since.
    disabling: bool,
}

impl KnownQueue {
    fn new(record: Option<InflightMemory>) -> Self {
        KnownQueue {
            base: None,
            clean: false,
            record,
            disabled: false,
            disabling: false,
        }
    }
}

/// An event that a front-end or an operator waits for.
enum Waits {
    Stopped(DisconnectReason, Vec<(usize, Receiver<u32>)>),
    /// One queue, and whether it is reset.
    QueueStopped(bool, usize, Vec<(usize, Receiver<u32>)>),
    ClientStopped,
    Settled(u16, Vec<Receiver<()>>),
    Logged(Vec<Receiver<()>>),
    Mapped(Vec<Receiver<()>>),
    CacheSettled(Vec<Receiver<()>>),
    /// And whether the next opening rewrites blocks.
    ExchangeSettled(bool, Vec<Receiver<()>>),
    /// And what was used before.
    Exchanged(Exchange, ClosedNodes, Vec<Receiver<()>>),
    /// And what the job does then.
    Job(JobStep, Vec<Receiver<()>>),
    CopierStopped(Receiver<u32>),
    HandoverSettled(Handover, Vec<Receiver<()>>),
    /// And the queues that ran.
    HandoverStopped(Handover, Vec<usize>, Vec<(usize, Receiver<u32>)>),
}

/// The world.
pub struct World {
    config: Config,
    guest: Rc<RefCell<Guest>>,
    kernel: Kernel,
    daemon: Option<Daemon>,
    /// What daemons have in front of the disk.
    filters: Filters,
    /// Limits that daemons begin with.
    limits: ThrottleLimits,
    client: Client,
    job: Option<Job>,
    /// The target of jobs holds all but what is dirty in the bitmap that records: the period of that.
    base: Option<u64>,
    known: Vec<KnownQueue>,
    waits: Option<Waits>,
    /// Iothreads that have not run since the latest wait began: they do not know what is waited for.
    untold: BTreeSet<usize>,
    /// The client's device is to stop.
    client_stops: Option<Receiver<u32>>,
    /// A request has failed since the last `Resume`: it may be parked.
    may_be_parked: bool,
    /// One has failed, and not all iothreads have slept since: one may not know.
    has_just_failed: bool,
    /// A process was killed since the migration began: it may have written what it did not log.
    has_lost_log: bool,
    trace: Trace,
    seen: Coverage,
}

impl World {
    /// As it is at first: a daemon that serves a disk of zeroes.
    fn new(plan: &Plan, trace: Trace) -> Self {
        let config = plan.config.clone();
        let kernel = Kernel::new(
            Disk::new(config.sectors.into()),
            Disk::new(config.sectors.into()),
            config.iothreads,
        );
        let mut guest = Guest::new(&config, trace.clone());
        if config.filters.marks {
            guest.marks = Some(kernel.state().disk().marks.clone());
        }
        let mut world = World {
            guest: Rc::new(RefCell::new(guest)),
            kernel,
            daemon: None,
            filters: config.filters,
            limits: config
                .throttling
                .map_or_else(ThrottleLimits::default, |throttling| throttling.limits),
            client: Client::default(),
            job: None,
            base: None,
            known: Vec::new(),
            waits: None,
            untold: BTreeSet::new(),
            client_stops: None,
            may_be_parked: false,
            has_just_failed: false,
            has_lost_log: false,
            trace,
            seen: Coverage::default(),
            config,
        };
        world.new_queues();
        world
    }

    /// Runs a plan.
    ///
    /// # Errors
    /// What was found.
    pub fn run(plan: &Plan, trace: Trace) -> Result<Coverage, String> {
        clock::begin();
        let mut world = World::new(plan, trace);
        world.connect();
        for event in &plan.events {
            world.trace.say(|| format!("{event:?}"));
            world.event(event);
            world.look_around()?;
        }
        world.finish(plan.salt)?;
        let (guest, mut seen) = (world.guest.borrow(), world.seen);
        seen.add("answered", guest.answered);
        seen.add("sent", world.client.answered);
        seen.add("waited", guest.throttles.waited);
        seen.add("let-go", guest.throttles.let_go);
        Ok(seen)
    }

    fn new_record(&self) -> Option<InflightMemory> {
        let Config { packed, size, .. } = self.config;
        self.config
            .inflight
            .then(|| InflightMemory::new(packed, size))
    }

    fn new_queues(&mut self) {
        let queues = 0..self.config.queues;
        self.known = queues.map(|_| KnownQueue::new(self.new_record())).collect();
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::Ask {
                queue,
                kind,
                sector,
                sectors,
                shape,
            } => {
                let range = (sector.into(), sectors.into());
                self.guest
                    .borrow_mut()
                    .ask(queue.into(), kind, range, shape);
            }
            Event::Send {
                kind,
                sector,
                sectors,
                stable,
            } => self.send(kind, sector.into(), sectors.into(), stable),
            Event::HangUp => self.hang_up(),
            Event::Publish { .. } | Event::Look { .. } | Event::Copy { .. } => {
                act(&mut self.guest.borrow_mut(), event);
                self.deliver_kicks();
            }
            Event::Kicks => self.late_kicks(),
            Event::Run { iothread, times } => {
                (0..times).for_each(|_| self.iterate(iothread.into()));
            }
            Event::Between {
                iothread,
                store,
                ref event,
            } => self.between(iothread.into(), store, event),
            Event::Kill {
                iothread,
                store,
                salt,
            } => self.kill(iothread.into(), store, salt),
            Event::Complete { pick, how } => self.complete(pick.into(), how),
            Event::Work { pick, fails } => self.work(pick.into(), fails),
            Event::Busy { takes } => {
                let answer = match takes {
                    0 => Err(Errno::AGAIN),
                    takes => Ok(takes.into()),
                };
                self.kernel.state().answers = [answer].into();
            }
            Event::PowerFail { salt } => self.power_fail(salt),
            Event::DisconnectReason(how) => self.leave(how),
            Event::Log => self.log(),
            Event::LogNoMore => self.log_no_more(),
            Event::Connect => self.connect(),
            Event::Remap => self.remap(),
            Event::SetCall { queue } => self.set_call(queue.into()),
            Event::SetKick { queue } => {
                if let Some(daemon) = self.daemon.as_mut().filter(|_| self.waits.is_none()) {
                    daemon.set_kick(queue.into());
                }
            }
            Event::Enable { queue, enabled } => self.enable(queue.into(), enabled),
            Event::Hotplug { present } => self.hotplug(present),
            Event::StopQueue { queue, reset } => self.stop_queue(queue.into(), reset),
            Event::CacheMode { write_back } => self.set_cache_mode(write_back),
            Event::Upgrade(how) => self.upgrade(how),
            Event::Exchange(how) => self.exchange(how),
            Event::Job(event) => self.job_event(event),
            Event::Bitmaps(how) => self.switch_bitmaps(how),
            Event::Resize { sectors } => self.resize(sectors),
            Event::Resume { report } => {
                let how = if report {
                    ResumeAction::Report
                } else {
                    ResumeAction::Retry
                };
                self.resume(how);
            }
            Event::Limits(limits) => self.change_limits(limits),
            Event::Time => {
                if let Some(daemon) = &self.daemon {
                    daemon.pass();
                }
            }
            Event::Wait { ms } => clock::advance(u64::from(ms) * 1_000_000),
        }
    }

    /// A front-end or an operator waits from now on.
    fn begin_wait(&mut self, waits: Waits) {
        self.waits = Some(waits);
        self.untold = (0..self.config.iothreads).collect();
    }

    /// Advances waiting parties.
    fn advance(&mut self) {
        self.note_what_waits();
        self.client.look(&mut self.guest.borrow_mut());
        self.look_for_answers();
        self.look_at_job();
    }

    /// Advances waiting parties, and checks for failures.
    fn look_around(&mut self) -> Result<(), String> {
        self.advance();
        let came = std::mem::take(&mut self.kernel.state().came);
        for host in came {
            self.guest.borrow_mut().came(host);
        }
        for disk in self.kernel.state().disks() {
            if let Some(wrong) = disk.wrong.take() {
                return Err(wrong);
            }
        }
        match self.guest.borrow_mut().wrong.take() {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }
}
