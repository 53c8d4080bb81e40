//! A loop whose sources follow a script, on a clock that moves only when it is read or waited on.
//!
//! Each source is a closed loop, as a guest at queue depth 1 is: its next event comes a scripted
//! time after the last one was served.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use iothread::event_loop::iteration::RunnerContext;
use iothread::event_loop::testing::FakePoller;
use iothread::event_loop::{
    AwaitedSide, EventLoop, HandlerId, IdleEnd, Interest, PollPredictor, PollSettings, Readiness,
    Runner,
};

use crate::queue_driver::event;

/// How much later a thread runs that has to be woken, and how long one look takes while polling.
pub const WAKE_NS: u64 = 35_000;
pub const LOOK_NS: u64 = 100;

/// The times between the events of a source, by number, and whose turn each is.
pub type Script = Box<dyn FnMut(u64) -> (u64, AwaitedSide)>;

struct Source {
    script: Script,
    events: u64,
    next_ns: u64,
    /// On a shared CPU: time that the source needs before its next event, and has not had.
    left_ns: u64,
    awaited: AwaitedSide,
    predictor: PollPredictor,
    fd: RawFd,
}

/// What was seen of all sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub events: u64,
    /// Served without the thread having been woken for them.
    pub hits: u64,
    /// Served so much later than they came, in all.
    pub late_ns: u64,
    pub polled_ns: u64,
}

struct Scripted {
    kernel: FakePoller,
    sources: Vec<Source>,
    seen: Seen,
    /// The sources run on the loop's CPU: their time passes only while it sleeps.
    share_cpu: bool,
}

impl Scripted {
    fn now_ns(&self) -> u64 {
        self.kernel.state().now_ns
    }

    fn announce(&self) {
        let mut arrivals: Vec<_> = self.sources.iter().map(|it| (it.next_ns, it.fd)).collect();
        arrivals.sort_unstable();
        let mut state = self.kernel.state();
        state.ready.clear();
        state.arrivals = VecDeque::from(arrivals);
    }
}

impl Runner for Scripted {
    type Handler = ();
    type Timer = ();
    type Message = ();

    fn on_ready(&mut self, _: &mut RunnerContext<Self>, _: HandlerId, (): (), _: Readiness) {}
    fn on_timer(&mut self, _: &mut RunnerContext<Self>, (): ()) {}
    fn on_message(&mut self, _: &mut RunnerContext<Self>, (): ()) {}
    fn reap(&mut self, _: &mut RunnerContext<Self>) {}
    fn complete_reaped(&mut self, _: &mut RunnerContext<Self>) {}
    fn publish_and_notify(&mut self, _: &mut RunnerContext<Self>) {}
    fn submit(&mut self, _: &mut RunnerContext<Self>) {}
    fn on_stop(&mut self, _: &mut RunnerContext<Self>) {}

    /// Takes each event that is due, counts how late it is seen, and schedules the next one of its source.
    fn admit(&mut self, _: &mut RunnerContext<Self>) {
        let now_ns = self.now_ns();
        for source in &mut self.sources {
            if source.next_ns <= now_ns {
                let late_ns = now_ns - source.next_ns;
                self.seen.events += 1;
                self.seen.hits += u64::from(late_ns < WAKE_NS);
                self.seen.late_ns += late_ns;
                source.events += 1;
                let (gap_ns, awaited) = (source.script)(source.events);
                source.awaited = awaited;
                if self.share_cpu {
                    (source.next_ns, source.left_ns) = (u64::MAX, gap_ns);
                } else {
                    source.next_ns = now_ns + gap_ns;
                }
            }
        }
        self.announce();
    }

    fn has_work_for_next_iteration(&self) -> bool {
        false
    }

    fn poll_sources_once(&mut self) -> bool {
        let now_ns = self.now_ns();
        self.sources.iter().any(|source| source.next_ns <= now_ns)
    }

    /// The latest deadline of the predictors.
    fn predict_poll_deadline_ns(&mut self, settings: &PollSettings, now_ns: u64) -> u64 {
        let until_ns = self.sources.iter_mut().map(|source| {
            let (progress, awaited) = (source.events, source.awaited);
            source
                .predictor
                .predict_poll_deadline_ns(settings, now_ns, progress, awaited)
        });
        until_ns.max().unwrap_or(0)
    }

    fn learn_from_idle(&mut self, settings: &PollSettings, idle: IdleEnd) {
        for source in &mut self.sources {
            source
                .predictor
                .learn_from_idle(settings, idle, source.events);
        }
    }

    /// Sources that share the CPU continue now that the loop does not run.
    fn prepare_to_block_or_find_work(&mut self, _: &mut RunnerContext<Self>) -> bool {
        let now_ns = self.now_ns();
        for source in &mut self.sources {
            if source.next_ns == u64::MAX {
                source.next_ns = now_ns + source.left_ns;
            }
        }
        self.announce();
        self.sources.iter().any(|source| source.next_ns <= now_ns)
    }
}

/// A loop with scripted sources.
pub struct Simulation {
    iothread: EventLoop<Scripted>,
    kernel: FakePoller,
}

impl Simulation {
    /// A loop with a source for each script.
    pub fn new(settings: PollSettings, scripts: Vec<Script>) -> Self {
        let kernel = FakePoller::default();
        {
            let mut state = kernel.state();
            (state.now_ns, state.tick_ns, state.wake_ns) = (1, LOOK_NS, WAKE_NS);
        }
        let iothread = EventLoop::new(Box::new(kernel.clone()), settings, |cx, _| {
            let mut sources = Vec::new();
            for mut script in scripts {
                let bell = event();
                let fd = bell.as_raw_fd();
                cx.add(bell, Interest::ReadableEdge, ())?;
                let (gap_ns, awaited) = script(0);
                sources.push(Source {
                    script,
                    events: 0,
                    next_ns: 1 + gap_ns,
                    left_ns: 0,
                    awaited,
                    predictor: PollPredictor::default(),
                    fd,
                });
            }
            Ok::<_, std::io::Error>(Scripted {
                kernel: kernel.clone(),
                sources,
                seen: Seen::default(),
                share_cpu: false,
            })
        });
        Simulation {
            iothread: iothread.unwrap(),
            kernel,
        }
    }

    /// Runs until so many events have been served, and says what was seen of them.
    pub fn serve(&mut self, events: u64) -> Seen {
        let before = self.seen();
        while self.seen().events < before.events + events {
            assert!(self.iothread.iterate().unwrap());
        }
        let after = self.seen();
        Seen {
            events: after.events - before.events,
            hits: after.hits - before.hits,
            late_ns: after.late_ns - before.late_ns,
            polled_ns: after.polled_ns - before.polled_ns,
        }
    }

    /// Puts the sources on the loop's CPU, or on others, from their next event on.
    pub fn share_cpu(&mut self, share: bool) {
        self.iothread.runner().share_cpu = share;
    }

    /// Has the loop poll by other settings from its next iteration on.
    pub fn set_polling(&self, settings: PollSettings) {
        self.iothread.remote().set_polling(settings).unwrap();
    }

    pub fn now_ns(&self) -> u64 {
        self.kernel.state().now_ns
    }

    fn seen(&mut self) -> Seen {
        let state = self.kernel.state();
        let polled_ns = state.now_ns - state.slept_ns;
        drop(state);
        Seen {
            polled_ns,
            ..self.iothread.runner().seen
        }
    }
}

/// A guest at queue depth 1: it thinks, then its disk works.
pub fn guest(think_ns: u64, disk_ns: u64) -> Script {
    Box::new(move |event| {
        if event % 2 == 0 {
            (think_ns, AwaitedSide::Guest)
        } else {
            (disk_ns, AwaitedSide::Disk { in_flight: 1 })
        }
    })
}

/// A source with these gaps.
pub fn gaps(mut gap_ns: impl FnMut(u64) -> u64 + 'static) -> Script {
    Box::new(move |event| (gap_ns(event), AwaitedSide::Guest))
}
