//! The copier of a job: copies a disk part by part, as a source of requests on an iothread.
//!
//! A mirror's copier goes on when everything is copied: pass by pass, as long as guests change something.
//!
//! Its requests are those of a [copier's node](block::Node::new_copier): each copies one part, with the part's range locked. So many
//! are in flight at most, which leaves guests their room. Holes are found by worker threads (`plan`); sizes and the speed
//! limit are in `pace`. Where the disks are files that can share extents, parts are cloned (`clones`).

mod clones;
mod control;
mod errors;
mod guest_speed;
mod guests;
mod pace;
mod passes;
mod plan;
mod settings;
mod speed_limit;
#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{BlockCopy, CopyFailure, CopySide, DiskCall, DiskIo, Node, Op, Request};
use iothread::event_loop::Interest;
use iothread::{Completion, ErrorAction, MAX_WATCHED_DESCRIPTORS, SocketDevice};

use self::clones::ClonePass;
pub use self::control::CopierControl;
pub use self::guests::GuestQueues;
use self::pace::CopyPace;
use self::plan::{CopyPlan, Part, PartKind, Query};
pub use self::settings::{CopierReport, CopierSettings, CopierWork};

/// Wait after an error that the policy ignores.
const RETRY_NS: u64 = 100_000_000;
/// Parts that are copied at once unless `max-workers` says less: they have half of the memory of an iothread's tasks.
const MAX_WORKERS: usize = 8;

/// A request in flight.
enum InFlight {
    Part(Part),
    Clone,
    Query(Query),
    Flush,
}

/// The progress of a copier towards its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Copying,
    /// It ends when nothing is in flight.
    Failing(CopyFailure),
    /// It has reported its end, or was stopped.
    Ended,
}

/// A copier.
pub struct Copier {
    copy: Arc<BlockCopy>,
    source: Arc<Node>,
    target: Arc<Node>,
    settings: CopierSettings,
    control: Arc<CopierControl>,
    report: Box<dyn Fn(CopierReport) + Send>,
    plan: CopyPlan,
    pace: CopyPace,
    /// The pass that clones; `None`: nothing is cloned any more.
    clones: Option<ClonePass>,
    /// By number, with the stops before it began.
    in_flight: Vec<Option<(InFlight, u64)>>,
    /// How often an error has stopped it.
    stops: u64,
    state: State,
    now_ns: u64,
    /// An error was ignored: wait before the next part.
    waits_to_retry: bool,
    retry_at_ns: u64,
    /// It has reported that.
    is_ready: bool,
}

impl Copier {
    /// A copier that has not begun.
    #[must_use]
    pub fn new(
        (source, target): (&Arc<Node>, &Arc<Node>),
        copy: &Arc<BlockCopy>,
        mut settings: CopierSettings,
        control: &Arc<CopierControl>,
        report: impl Fn(CopierReport) + Send + 'static,
    ) -> Self {
        settings.max_workers = settings.max_workers.min(MAX_WORKERS);
        Copier {
            copy: copy.clone(),
            source: source.clone(),
            target: target.clone(),
            pace: CopyPace::new(settings.max_chunk),
            clones: settings.clones.then(ClonePass::new),
            settings,
            control: control.clone(),
            report: Box::new(report),
            plan: CopyPlan::default(),
            in_flight: Vec::new(),
            stops: 0,
            state: State::Copying,
            now_ns: 0,
            waits_to_retry: false,
            retry_at_ns: 0,
            is_ready: false,
        }
    }

    fn count_in_flight(&self) -> usize {
        self.in_flight.iter().flatten().count()
    }

    fn has_query_in_flight(&self) -> bool {
        let mut all = self.in_flight.iter().flatten();
        all.any(|(one, _)| matches!(one, InFlight::Query(_)))
    }

    fn has_flush_in_flight(&self) -> bool {
        let mut all = self.in_flight.iter().flatten();
        all.any(|(one, _)| matches!(one, InFlight::Flush))
    }

    /// Whether it may begin something now. Others would only wait for the files that a clone has locked.
    fn may_begin(&self) -> bool {
        self.state == State::Copying
            && !self.has_flush_in_flight()
            && !self.has_clone_in_flight()
            && !self.control.awaits_end.load(Ordering::Acquire)
            && !self.control.is_paused()
            && self.now_ns >= self.retry_at_ns
    }

    /// A number for the next request.
    fn add_in_flight(&mut self, request: InFlight) -> u32 {
        let free = self.in_flight.iter().position(Option::is_none);
        let index = free.unwrap_or(self.in_flight.len());
        match self.in_flight.get_mut(index) {
            Some(slot) => *slot = Some((request, self.stops)),
            None => self.in_flight.push(Some((request, self.stops))),
        }
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    fn submit_part(&mut self, part: Part, io: &mut dyn DiskIo) {
        let (start, len) = (part.range.start, part.len());
        let is_cloned = part.kind == PartKind::Data && self.clones.is_some();
        let op = match part.kind {
            PartKind::Data if is_cloned => Op::Write,
            PartKind::Data => Op::Read,
            PartKind::Hole => Op::WriteZeroes { unmap: true },
            PartKind::SharedHole => Op::Discard,
        };
        match part.kind {
            PartKind::Data if is_cloned => self.on_clone_begins(len),
            PartKind::Data | PartKind::Hole => self.pace.count(len, self.now_ns),
            PartKind::SharedHole => {}
        }
        let number = self.add_in_flight(match is_cloned {
            true => InFlight::Clone,
            false => InFlight::Part(part),
        });
        // SAFETY: there is no memory.
        unsafe { io.submit(0, Request::without_data(op, start, len, number.into())) };
    }

    /// Searches holes in the next range that is to be copied. False: there is none.
    fn submit_query(&mut self, io: &mut dyn DiskIo) -> bool {
        let Some(query) = self.plan.next_query(&self.copy) else {
            return false;
        };
        let (query, found) = (query.clone(), query);
        let (source, target) = (self.source.clone(), self.target.clone());
        let number = self.add_in_flight(InFlight::Query(found));
        let call = move || {
            query.find_holes(&source, &target);
            Ok(())
        };
        io.submit_blocking_call(0, DiskCall::Other(Box::new(call)), number);
        true
    }
}

impl SocketDevice for Copier {
    fn watched_descriptors(&self) -> [Option<(BorrowedFd<'_>, Interest)>; MAX_WATCHED_DESCRIPTORS] {
        [None; MAX_WATCHED_DESCRIPTORS]
    }

    fn watched_descriptors_version(&self) -> u64 {
        0
    }

    fn on_ready(&mut self, _: usize, _: u64) {}

    fn run_turn(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        if std::mem::take(&mut self.waits_to_retry) {
            self.retry_at_ns = now_ns + RETRY_NS;
        }
        if let Some(pass) = &mut self.clones {
            pass.note_turn(now_ns);
        }
        self.end_if_failed_and_idle();
        if self.count_in_flight() == 0 {
            self.control.settle_if_paused();
        }
        false
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        if self.state != State::Copying || self.control.is_paused() {
            return None;
        }
        let next_ns = self.next_part_at_ns().max(self.retry_at_ns);
        let next_ns = next_ns.max(self.pace.rests_until_ns());
        (next_ns > self.now_ns).then_some(next_ns)
    }

    fn submit(&mut self, io: &mut dyn DiskIo) -> bool {
        if self.settings.work == CopierWork::OnlyChanges {
            return true;
        }
        self.pace
            .set_speed(self.control.speed.load(Ordering::Relaxed));
        self.end_clone_pass_if_impossible();
        let mut max_in_flight = self.look_at_guests();
        while self.may_begin() && self.count_in_flight() < max_in_flight {
            if io.room(0) == 0 {
                return false;
            }
            if self.now_ns < self.next_part_at_ns() {
                break;
            }
            let limits = self.part_limits();
            let is_mirror = self.settings.work == CopierWork::Mirror;
            let part = match is_mirror {
                true => self.plan.next_part_as_data(&self.copy, limits),
                false => self.plan.next_part(&self.copy, limits),
            };
            if let Some(part) = part {
                if !self.is_copied_later(&part) {
                    self.submit_part(part, io);
                }
            } else if !is_mirror && (self.has_query_in_flight() || self.submit_query(io)) {
                break;
            } else if self.count_in_flight() > 0 {
                // It may fail, and be copied once more.
                break;
            } else if self.clones.take().is_some() {
                self.plan.begin_again();
                max_in_flight = self.look_at_guests();
            } else if self.rests_after_pass() {
                break;
            } else if self.plan.begin_again_if_pending(&self.copy) && !self.is_almost_done() {
                // It has to copy more than guests change meanwhile.
                if is_mirror {
                    self.pace.ignore_guests();
                }
                continue;
            } else {
                let number = self.add_in_flight(InFlight::Flush);
                // SAFETY: there is no memory.
                unsafe { io.submit(0, Request::without_data(Op::Flush, 0, 0, number.into())) };
                break;
            }
        }
        true
    }

    fn complete(&mut self, done: &[Completion]) {
        for completion in done {
            let number = block::token::request_number(completion.token) as usize;
            let request = self.in_flight.get_mut(number).and_then(Option::take);
            match (request, completion.result) {
                (Some((InFlight::Query(query), _)), _) => self.plan.add_parts_of(&query),
                (Some((InFlight::Part(part), stops)), Err(errno)) => {
                    let failed = self.copy.take_failed_side(part.range.start);
                    let side = failed.unwrap_or(CopySide::Source);
                    self.on_error(CopyFailure { side, errno }, stops);
                }
                (Some((InFlight::Part(_), _)), Ok(())) => {}
                (Some((InFlight::Clone, _)), result) => self.on_clone_ended(result),
                (Some((InFlight::Flush, stops)), Ok(())) => match self.copy.check_target() {
                    Ok(()) => self.on_flushed(),
                    Err(failure) => self.on_error(failure, stops),
                },
                (Some((InFlight::Flush, stops)), Err(errno)) => {
                    // Whatever the policy: the kernel reports data that it lost once, and the next flush succeeds.
                    let side = CopySide::Target;
                    self.act_on_error(CopyFailure { side, errno }, ErrorAction::Report, stops);
                }
                (None, _) => debug_assert!(false, "a completion of no request"),
            }
        }
    }

    fn in_flight_count(&mut self) -> usize {
        self.count_in_flight()
    }

    fn is_connected(&self) -> bool {
        false
    }

    fn set_accepting_paused(&mut self, _: bool) {}

    fn disconnect(&mut self) {}

    fn disconnect_and_stop(&mut self) {
        self.state = State::Ended;
    }
}

impl Copier {
    /// The most parts that are copied at once beside guests. The pass that clones has its own pace.
    fn look_at_guests(&mut self) -> usize {
        if self.clones.is_none() {
            let in_flight = self.count_in_flight();
            self.pace.look_at_guests(self.now_ns, in_flight, || {
                let copying = self.copy.copying_writes();
                self.control.guests.requests(copying)
            });
        }
        self.pace.max_parts_in_flight(self.settings.max_workers)
    }

    /// The time before which no part may begin, on the loop's clock.
    fn next_part_at_ns(&self) -> u64 {
        let after_clone = self.clones.as_ref().map_or(0, ClonePass::next_part_at_ns);
        self.pace.next_part_at_ns().max(after_clone)
    }
}
