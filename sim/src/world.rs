//! One run: the events of a plan, one after the other, and what is checked on the way and in the end.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use data_plane::{Message, Resume};
use engine::Errno;
use virtqueue::steps::{kill, watched};

use crate::daemon::{Daemon, Start};
use crate::disk::{Disk, Does};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::model::SECTOR;
use crate::plan::{Config, End, Event, Leave, Plan, Then};
use crate::poller::Wakeups;
use crate::random::Random;
use crate::record::Record;
use crate::trace::Trace;

/// So many rounds without an end are one too many.
const ROUNDS: u32 = 20_000;

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests that were answered.
    pub answered: u64,
    /// Processes that were killed.
    pub kills: u64,
    /// Power failures.
    pub power_failures: u64,
    /// Queues that stopped.
    pub stops: u64,
    /// Requests that the disk has failed.
    pub faults: u64,
}

impl Seen {
    /// Together with another run's.
    pub fn add(&mut self, other: Seen) {
        self.answered += other.answered;
        self.kills += other.kills;
        self.power_failures += other.power_failures;
        self.stops += other.stops;
        self.faults += other.faults;
    }
}

/// What the front-end knows of one queue.
struct Known {
    /// Where it stood when it last stopped.
    base: Option<u32>,
    /// It has stopped, and was not started since.
    clean: bool,
    record: Option<Record>,
    disabled: bool,
}

/// What a front-end or an operator waits for.
enum Waits {
    Stopped(Leave, Vec<(usize, Receiver<u32>)>),
    Settled(u16, Vec<Receiver<()>>),
}

/// The world.
pub struct World {
    config: Config,
    guest: Rc<RefCell<Guest>>,
    kernel: Kernel,
    daemon: Option<Daemon>,
    known: Vec<Known>,
    waits: Option<Waits>,
    trace: Trace,
    seen: Seen,
}

fn deliver(guest: &mut Guest, wakeups: &Wakeups, kicks: &[Option<i32>]) {
    for (queue, kick) in guest.queues.iter_mut().zip(kicks) {
        for _ in 0..std::mem::take(&mut queue.kicks) {
            if let Some(kick) = kick {
                wakeups.state().kick(*kick);
            }
        }
    }
}

fn act(guest: &mut Guest, event: &Event) {
    match *event {
        Event::Publish { queue, kicks } => guest.publish(queue.into(), kicks),
        Event::Look { queue, then } => {
            guest.look(queue.into(), then);
        }
        _ => {}
    }
}

impl World {
    /// As it is at first: a daemon that serves a disk of zeroes.
    fn new(plan: &Plan, trace: Trace) -> Self {
        let config = plan.config.clone();
        let kernel = Kernel::new(Disk::new(config.sectors.into()));
        let guest = Guest::new(&config, trace.clone());
        let mut world = World {
            guest: Rc::new(RefCell::new(guest)),
            kernel,
            daemon: None,
            known: Vec::new(),
            waits: None,
            trace,
            seen: Seen::default(),
            config,
        };
        world.new_queues();
        world
    }

    /// Runs a plan.
    ///
    /// # Errors
    /// What was found.
    pub fn run(plan: &Plan, trace: Trace) -> Result<Seen, String> {
        let mut world = World::new(plan, trace);
        world.connect();
        for event in &plan.events {
            world.event(event);
            world.look_around()?;
        }
        world.finish(plan.salt)?;
        world.seen.answered = world.guest.borrow().answered;
        Ok(world.seen)
    }

    fn new_queues(&mut self) {
        let features = self.guest.borrow().features();
        let record = || {
            self.config
                .inflight
                .then(|| Record::new(features.packed, self.config.size))
        };
        self.known = (0..self.config.queues)
            .map(|_| Known {
                base: None,
                clean: false,
                record: record(),
                disabled: false,
            })
            .collect();
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
            Event::Publish { .. } | Event::Look { .. } => {
                act(&mut self.guest.borrow_mut(), event);
                self.deliver_kicks();
            }
            Event::Kicks => self.late_kicks(),
            Event::Run { times } => (0..times).for_each(|_| self.iterate()),
            Event::Between { store, ref event } => self.between(store, event),
            Event::Kill { store, salt } => self.kill(store, salt),
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
            Event::Leave(how) => self.leave(how),
            Event::Connect => self.connect(),
            Event::Remap => self.remap(),
            Event::SetCall { queue } => self.set_call(queue.into()),
            Event::SetKick { queue } => {
                if let Some(daemon) = self.daemon.as_mut().filter(|_| self.waits.is_none()) {
                    daemon.set_kick(queue.into());
                }
            }
            Event::Enable { queue, enabled } => self.enable(queue.into(), enabled),
            Event::Resize { sectors } => self.resize(sectors),
            Event::Resume { report } => {
                let how = if report {
                    Resume::Report
                } else {
                    Resume::Retry
                };
                self.resume(how);
            }
            Event::Time => {
                if let Some(daemon) = &self.daemon {
                    daemon.wakeups.state().pass();
                }
            }
        }
    }

    /// What somebody waits for may have come, and something may have gone wrong.
    fn look_around(&mut self) -> Result<(), String> {
        self.look_for_answers();
        let came = std::mem::take(&mut self.kernel.state().came);
        for host in came {
            self.guest.borrow_mut().came(host);
        }
        if let Some(wrong) = self.kernel.state().disk.wrong.take() {
            return Err(wrong);
        }
        match self.guest.borrow_mut().wrong.take() {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    fn kicks(&self) -> Vec<Option<i32>> {
        let queues = self.daemon.iter().flat_map(|daemon| &daemon.queues);
        queues
            .map(|queue| queue.map(|running| running.kick))
            .collect()
    }

    fn deliver_kicks(&mut self) {
        if let Some(daemon) = &self.daemon {
            deliver(&mut self.guest.borrow_mut(), &daemon.wakeups, &self.kicks());
        }
        // Without a daemon they are lost.
        for queue in &mut self.guest.borrow_mut().queues {
            queue.kicks = 0;
        }
    }

    fn late_kicks(&mut self) {
        for queue in &mut self.guest.borrow_mut().queues {
            queue.kicks += u8::from(std::mem::take(&mut queue.late_kick));
        }
        self.deliver_kicks();
    }

    fn iterate(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.iterate();
        }
    }

    /// One iteration, in which the guest does something before a certain store.
    fn between(&mut self, store: u8, event: &Event) {
        let kicks = self.kicks();
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let (guest, wakeups, event) = (self.guest.clone(), daemon.wakeups.clone(), event.clone());
        let mut left = Some(store);
        let watcher = move || {
            left = left.and_then(|left| match left.checked_sub(1) {
                None => {
                    let mut guest = guest.borrow_mut();
                    guest
                        .trace
                        .say(|| "  (while the iothread runs:)".to_owned());
                    act(&mut guest, &event);
                    deliver(&mut guest, &wakeups, &kicks);
                    None
                }
                less => less,
            });
        };
        watched(Box::new(watcher), || daemon.iterate());
    }

    /// The process ends before a certain store.
    fn kill(&mut self, store: u16, salt: u32) {
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let mut left = store;
        let watcher = move || match left.checked_sub(1) {
            None => kill(),
            Some(less) => left = less,
        };
        let ended = watched(Box::new(watcher), || (0..2).for_each(|_| daemon.iterate()));
        self.trace.say(|| match ended {
            None => format!("the process is killed before store {store}"),
            Some(()) => "the process is killed".to_owned(),
        });
        self.seen.kills += 1;
        self.ended(salt);
        if !self.config.inflight {
            self.trace
                .say(|| "guest: nobody knows what was in flight: resets its device".to_owned());
            self.guest.borrow_mut().new_queues();
            self.new_queues();
        }
    }

    /// The process is gone.
    fn ended(&mut self, salt: u32) {
        let mut random = Random::new(salt.into());
        // SAFETY: the memory is mapped as long as the daemon, which is dropped behind this, and the guest.
        unsafe { self.kernel.state().disk.abandon(&mut random) };
        self.waits = None;
        self.daemon = None;
        self.kernel.state().answers.clear();
        for known in &mut self.known {
            // What it has said before it stopped still holds.
            known.clean &= known.base.is_some();
        }
    }

    fn power_fail(&mut self, salt: u32) {
        self.trace.say(|| "power fails".to_owned());
        self.seen.power_failures += 1;
        let mut random = Random::new(salt.into());
        // SAFETY: as for `ended`.
        unsafe { self.kernel.state().disk.fail(&mut random) };
        self.ended(salt);
        let mut guest = self.guest.borrow_mut();
        guest.power_failed();
        if let Err(wrong) = guest.check_disk(self.kernel.state().disk.bytes()) {
            guest.wrong = Some(format!("after a power failure: {wrong}"));
        }
        drop(guest);
        self.new_queues();
    }

    fn complete(&mut self, pick: usize, how: End) {
        let mut state = self.kernel.state();
        let count = state.disk.held.len();
        let Some(daemon) = self.daemon.as_ref().filter(|_| count > 0) else {
            return;
        };
        let index = pick % count;
        let (does, offset) = (state.disk.held[index].does, state.disk.held[index].offset);
        let len = state.disk.held[index].len();
        let sectors = (offset / SECTOR) as u64..(offset + len).div_ceil(SECTOR) as u64;
        self.trace.say(|| {
            let what = match does {
                Does::Flush => "flush".to_owned(),
                Does::Read => format!("read of {sectors:?}"),
                Does::Write { .. } => format!("write of {sectors:?}"),
            };
            format!("kernel: ends a {what}: {how:?}")
        });
        let errno = match how {
            End::Error => Errno::IO,
            End::NoSpace => Errno::NOSPC,
            End::Whole | End::Short(_) => {
                let max = match how {
                    End::Short(words) => (usize::from(words) + 1) * 8,
                    _ => usize::MAX,
                };
                // SAFETY: who asked for it keeps the buffers until it is done.
                let (held, moved) = unsafe { state.disk.carry_out(index, max) };
                state.post(held.cookie, i64::try_from(moved).expect("small"));
                daemon.wakeups.state().completed();
                return;
            }
        };
        self.seen.faults += 1;
        self.guest
            .borrow_mut()
            .failed(does == Does::Read, does == Does::Flush, sectors);
        let held = state.disk.held.remove(index);
        state.post(held.cookie, -i64::from(errno.raw_os_error()));
        daemon.wakeups.state().completed();
    }

    fn work(&mut self, pick: usize, fails: bool) {
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let engines = daemon.engines();
        let count = engines.jobs();
        if count == 0 {
            return;
        }
        self.trace.say(|| {
            format!(
                "a worker does a job{}",
                if fails { ", which fails" } else { "" }
            )
        });
        if fails {
            self.seen.faults += 1;
            let mut guest = self.guest.borrow_mut();
            guest.failed(true, false, 0..u64::MAX);
            guest.failed(false, true, 0..u64::MAX);
        }
        engines.run_job(pick % count, fails.then_some(Errno::IO));
    }

    fn connect(&mut self) {
        if self.waits.is_some() {
            return;
        }
        if self.daemon.is_none() {
            let sectors = self.kernel.state().disk.bytes().len() / SECTOR;
            self.trace
                .say(|| format!("a daemon starts, for {sectors} sectors"));
            self.daemon = Some(Daemon::new(&self.config, &self.kernel, sectors));
            let mut guest = self.guest.borrow_mut();
            guest.resized(sectors as u64);
            guest.restarted();
        }
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let guest = self.guest.borrow();
        for (index, known) in self.known.iter_mut().enumerate() {
            if daemon.queues[index].is_some() {
                continue;
            }
            let queue = &guest.queues[index];
            let after_crash = queue.driver.base_after_crash();
            let base = match (known.clean, self.config.packed) {
                (true, _) | (false, true) => known.base.unwrap_or(after_crash),
                (false, false) => after_crash,
            };
            known.clean = false;
            known.disabled = false;
            self.trace
                .say(|| format!("queue {index} starts at {base:#x}"));
            daemon.start(
                index,
                Start {
                    layout: queue.driver.layout(),
                    features: guest.features(),
                    base,
                    inflight: known.record.as_ref().map(Record::region),
                    call: queue.call.try_clone().expect("a descriptor"),
                    memory: guest.memory.guest_memory(),
                },
            );
            // As the front-end's side of the daemon does: one that was meant for the connection before may be lost.
            rustix::io::write(&queue.call, &1_u64.to_ne_bytes()).expect("an eventfd takes it");
        }
    }

    fn leave(&mut self, how: Leave) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        self.trace
            .say(|| format!("the front-end stops the queues: {how:?}"));
        if how == Leave::Vanish && self.config.inflight {
            daemon.tell(Message::LeaveWaiting);
        }
        let running = (0..daemon.queues.len()).filter(|index| daemon.queues[*index].is_some());
        let answers = running.zip(daemon.ask(Message::Stop)).collect();
        self.waits = Some(Waits::Stopped(how, answers));
    }

    fn look_for_answers(&mut self) {
        match &mut self.waits {
            None => {}
            Some(Waits::Stopped(how, answers)) => {
                let told = *how != Leave::Vanish || !self.config.inflight;
                answers.retain(|(index, answer)| match answer.try_recv() {
                    Ok(base) => {
                        self.trace
                            .say(|| format!("queue {index} has stopped at {base:#x}"));
                        self.seen.stops += 1;
                        let known = &mut self.known[*index];
                        if told {
                            (known.base, known.clean) = (Some(base), true);
                            if let Some(record) = &known.record {
                                record.region().forget();
                            }
                        }
                        if let Some(daemon) = &mut self.daemon {
                            daemon.queues[*index] = None;
                        }
                        false
                    }
                    Err(error) => {
                        assert_eq!(error, TryRecvError::Empty, "a queue that stops says where");
                        true
                    }
                });
                if answers.is_empty() {
                    self.left();
                }
            }
            Some(Waits::Settled(sectors, answers)) => {
                answers.retain(|answer| answer.try_recv() == Err(TryRecvError::Empty));
                if answers.is_empty() {
                    let sectors = *sectors;
                    self.waits = None;
                    self.trace
                        .say(|| format!("all have settled: the disk is cut to {sectors} sectors"));
                    self.kernel.state().disk.resize(sectors.into());
                    self.guest.borrow_mut().cut(sectors.into());
                }
            }
        }
    }

    fn left(&mut self) {
        let Some(Waits::Stopped(how, _)) = self.waits.take() else {
            return;
        };
        match how {
            Leave::Disconnect | Leave::Vanish => {}
            Leave::Reset => {
                self.guest.borrow_mut().new_queues();
                self.new_queues();
            }
            Leave::Migrate => self.daemon = None,
        }
    }

    fn remap(&mut self) {
        if let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) {
            self.trace
                .say(|| "the guest's memory is mapped anew".to_owned());
            let memory = self.guest.borrow().memory.remap();
            daemon.tell(|place| Message::SetMemory(place, memory.clone(), channel().0));
        }
    }

    fn set_call(&mut self, index: usize) {
        let daemon = self.daemon.as_ref().filter(|_| self.waits.is_none());
        let Some((daemon, running)) =
            daemon.and_then(|daemon| Some((daemon, daemon.queues[index]?)))
        else {
            return;
        };
        let queue = &mut self.guest.borrow_mut().queues[index];
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        queue.call = rustix::event::eventfd(0, flags).expect("an eventfd");
        let call = queue.call.try_clone().expect("a descriptor");
        daemon.send(Message::SetCall(running.place, Some(call)));
    }

    fn enable(&mut self, index: usize, enabled: bool) {
        if let Some(daemon) = &self.daemon
            && let Some(running) = daemon.queues[index]
        {
            self.trace
                .say(|| format!("queue {index}: enabled: {enabled}"));
            daemon.send(Message::Enable(running.place, enabled));
            self.known[index].disabled = !enabled;
        }
    }

    fn resize(&mut self, sectors: u16) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        let now = self.kernel.state().disk.bytes().len() / SECTOR;
        let bytes = usize::from(sectors) * SECTOR;
        self.trace
            .say(|| format!("the disk of {now} sectors is to have {sectors}"));
        if usize::from(sectors) >= now {
            self.kernel.state().disk.resize(sectors.into());
            daemon.device.resize(bytes as u64);
            self.guest.borrow_mut().resized(sectors.into());
        } else {
            daemon.device.resize(bytes as u64);
            self.guest.borrow_mut().resized(sectors.into());
            self.waits = Some(Waits::Settled(sectors, daemon.ask(Message::Settle)));
        }
    }

    fn resume(&mut self, how: Resume) {
        if let Some(daemon) = &self.daemon
            && daemon.waiting() > 0
        {
            self.trace
                .say(|| format!("what waits after an error goes on: {how:?}"));
            daemon.tell(|place| Message::Resume(place, how));
        }
    }

    /// Nothing else is done to the world: all comes to an end, which is looked at.
    fn finish(&mut self, salt: u64) -> Result<(), String> {
        self.trace.say(|| "-- the end begins".to_owned());
        self.kernel.state().answers.clear();
        self.guest.borrow_mut().shows_all();
        self.late_kicks();
        for queue in 0..self.config.queues {
            // Only what is not: it would look at its ring.
            if self.known[queue].disabled {
                self.enable(queue, true);
            }
        }
        let mut rounds = 0;
        while self.goes_on() {
            self.look_around()?;
            rounds += 1;
            if rounds > ROUNDS {
                return Err("it never ends".to_owned());
            }
        }
        self.look_around()?;
        let guest = self.guest.borrow();
        if let Some((id, asked)) = guest.asked.first_key_value() {
            let queue = guest.queue_of(*id);
            return Err(format!(
                "#{id} ({}) on queue {queue} is never answered; nothing moves any more",
                crate::guest::told(asked)
            ));
        }
        guest.check_memory()?;
        guest.check_disk(self.kernel.state().disk.bytes())?;
        drop(guest);
        let salt = u32::try_from(salt & 0xffff_ffff).expect("32 bits");
        self.power_fail(salt);
        self.look_around()
    }

    /// One round of what happens by itself; false when nothing does.
    fn goes_on(&mut self) -> bool {
        if self.waits.is_none() {
            let missing = self
                .daemon
                .as_ref()
                .is_none_or(|daemon| daemon.queues.contains(&None));
            if missing {
                self.connect();
                return true;
            }
        }
        if self.daemon.as_ref().is_some_and(Daemon::is_awake) {
            self.iterate();
            return true;
        }
        if !self.kernel.state().disk.held.is_empty() {
            self.complete(0, End::Whole);
            return true;
        }
        if self
            .daemon
            .as_mut()
            .is_some_and(|daemon| daemon.engines().jobs() > 0)
        {
            self.work(0, false);
            return true;
        }
        let mut looked = false;
        for queue in 0..self.config.queues {
            let mut guest = self.guest.borrow_mut();
            looked |= guest.look(queue, Then::Sleeps);
        }
        looked || self.helped()
    }

    /// Nothing moves. What somebody else has to do is done: a queue is enabled, what waits goes on, time passes.
    fn helped(&mut self) -> bool {
        let Some(daemon) = &self.daemon else {
            return false;
        };
        if daemon.waiting() > 0 {
            self.resume(Resume::Retry);
            return true;
        }
        daemon.wakeups.state().pass()
    }
}
