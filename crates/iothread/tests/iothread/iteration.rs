//! The loop over a fake kernel: order of phases, dispatch while handlers come and go, fairness,
//! timers, polling, blocking.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};

use iothread::event_loop::iteration::RunnerContext;
use iothread::event_loop::testing::FakePoller;
use iothread::event_loop::{
    AwaitedSide, EventLoop, HandlerId, IdleEnd, Interest, PollPredictor, PollSettings, Readiness,
    Runner,
};

use crate::queue_driver::event;

#[derive(Default)]
struct Recorder {
    log: Vec<String>,
    ids: HashMap<u32, HandlerId>,
    /// When the key's handler runs, delete these.
    deletes: HashMap<u32, Vec<u32>>,
    /// When the first's handler runs, the second's is deleted, and its descriptor and its slot become the third's.
    replaces: Option<(u32, u32, u32)>,
    busy: bool,
    poll_hits_after: Option<u32>,
    polls: u32,
    park_finds: bool,
    /// A timer that expires is set again, for a time that has passed.
    always_due: bool,
    predictor: PollPredictor,
    progress: u64,
}

impl Runner for Recorder {
    type Handler = u32;
    type Timer = u32;
    type Message = u32;

    fn on_ready(&mut self, cx: &mut RunnerContext<Self>, id: HandlerId, tag: u32, _: Readiness) {
        assert_eq!(self.ids[&tag], id);
        self.log.push(format!("ready {tag}"));
        for victim in self.deletes.remove(&tag).unwrap_or_default() {
            assert!(cx.delete(self.ids[&victim]).is_some());
        }
        if let Some((_, victim, newcomer)) = self.replaces.take_if(|(first, ..)| *first == tag) {
            let fd = cx.delete(self.ids[&victim]).unwrap();
            let id = cx.add(fd, Interest::ReadableEdge, newcomer).unwrap();
            assert_ne!(id, self.ids[&victim]);
            self.ids.insert(newcomer, id);
        }
    }
    fn on_timer(&mut self, cx: &mut RunnerContext<Self>, timer: u32) {
        self.log.push(format!("timer {timer}"));
        if self.always_due {
            cx.add_timer(0, timer);
        }
    }
    fn on_message(&mut self, cx: &mut RunnerContext<Self>, message: u32) {
        if let Some(delay_ns) = message.checked_sub(SET_TIMER) {
            cx.add_timer(cx.now_ns() + u64::from(delay_ns), delay_ns);
            return;
        }
        self.log.push(format!("message {message}"));
    }
    fn reap(&mut self, _: &mut RunnerContext<Self>) {
        self.log.push("reap".into());
    }
    fn complete_reaped(&mut self, _: &mut RunnerContext<Self>) {
        self.log.push("complete".into());
    }
    fn publish_and_notify(&mut self, _: &mut RunnerContext<Self>) {
        self.log.push("notify".into());
    }
    fn admit(&mut self, _: &mut RunnerContext<Self>) {
        self.log.push("admit".into());
    }
    fn submit(&mut self, _: &mut RunnerContext<Self>) {
        self.log.push("submit".into());
    }
    fn has_work_for_next_iteration(&self) -> bool {
        self.busy
    }
    fn poll_sources_once(&mut self) -> bool {
        self.polls += 1;
        self.poll_hits_after.is_some_and(|after| self.polls > after)
    }
    fn predict_poll_deadline_ns(&mut self, settings: &PollSettings, now_ns: u64) -> u64 {
        self.predictor
            .predict_poll_deadline_ns(settings, now_ns, self.progress, AwaitedSide::Guest)
    }
    fn learn_from_idle(&mut self, settings: &PollSettings, idle: IdleEnd) {
        self.progress += 1;
        self.predictor
            .learn_from_idle(settings, idle, self.progress);
    }
    fn prepare_to_block_or_find_work(&mut self, _: &mut RunnerContext<Self>) -> bool {
        self.log.push("park".into());
        self.park_finds
    }
    fn on_stop(&mut self, _: &mut RunnerContext<Self>) {
        self.log.push("stopped".into());
    }
}

/// A message of this and more sets a timer for what is over it, in nanoseconds.
const SET_TIMER: u32 = 1_000_000;

const PHASES: [&str; 5] = ["reap", "complete", "notify", "admit", "submit"];

struct Bench {
    kernel: FakePoller,
    iothread: EventLoop<Recorder>,
    raw: HashMap<u32, RawFd>,
}

impl Bench {
    /// A loop on a fake kernel, with a recorder that watches one eventfd for each of `handlers` tags.
    fn new(polling: PollSettings, handlers: u32) -> Self {
        let kernel = FakePoller::default();
        let mut raw = HashMap::new();
        let raw_ref = &mut raw;
        let iothread = EventLoop::new(Box::new(kernel.clone()), polling, |cx, _| {
            let mut runner = Recorder::default();
            for tag in 0..handlers {
                let fd = event();
                raw_ref.insert(tag, fd.as_raw_fd());
                let id = cx.add(fd, Interest::ReadableEdge, tag)?;
                runner.ids.insert(tag, id);
            }
            Ok::<_, std::io::Error>(runner)
        });
        Bench {
            kernel,
            iothread: iothread.unwrap(),
            raw,
        }
    }

    fn no_polling(handlers: u32) -> Self {
        let polling = PollSettings {
            max_ns: 0,
            ..PollSettings::default()
        };
        Bench::new(polling, handlers)
    }

    fn ready(&self, tags: &[u32]) {
        let fds = tags.iter().map(|tag| self.raw[tag]);
        self.kernel.state().ready.extend(fds);
    }

    /// The tag's descriptor becomes ready after a while; returns when.
    fn arrives(&self, tag: u32, after_ns: u64) -> u64 {
        let mut state = self.kernel.state();
        let at_ns = state.now_ns + after_ns;
        state.arrivals.push_back((at_ns, self.raw[&tag]));
        at_ns
    }

    fn iterate(&mut self) -> Vec<String> {
        self.iothread.iterate().unwrap();
        std::mem::take(&mut self.iothread.runner().log)
    }
}

fn has(log: &[String], entry: &str) -> bool {
    log.iter().any(|logged| logged == entry)
}

#[test]
fn phases_run_in_order_before_the_runner_parks_and_the_loop_blocks() {
    let mut bench = Bench::no_polling(1);
    bench.ready(&[0]);
    let log = bench.iterate();
    assert_eq!(log[..5], PHASES);
    assert_eq!(log[5..], ["park", "ready 0"]);
    assert_eq!(bench.kernel.state().waits, [None]);
}

#[test]
fn a_deleted_handler_is_not_called_though_it_was_ready_in_the_same_iteration() {
    let mut bench = Bench::no_polling(4);
    // 0 deletes itself and 2, which stands behind it; 3 deletes 1, which ran before.
    bench.iothread.runner().deletes.insert(0, vec![0, 2]);
    bench.iothread.runner().deletes.insert(3, vec![1]);
    bench.ready(&[0, 1, 2, 3]);
    let log = bench.iterate();
    assert_eq!(log[6..], ["ready 0", "ready 1", "ready 3"]);
    let watched = bench.kernel.state().watched.len();
    assert_eq!(watched, 2, "the wake-up and handler 3 are left");
    bench.ready(&[0, 1, 2, 3]);
    assert_eq!(bench.iterate()[6..], ["ready 3"]);
}

#[test]
fn a_slot_reused_within_an_iteration_does_not_get_the_old_handlers_event() {
    let mut bench = Bench::no_polling(2);
    bench.iothread.runner().replaces = Some((0, 1, 2));
    bench.ready(&[0, 1]);
    assert_eq!(bench.iterate()[6..], ["ready 0"]);
    bench.ready(&[1]);
    assert_eq!(bench.iterate()[6..], ["ready 2"]);
}

#[test]
fn a_loop_with_work_does_not_wait_and_checks_descriptors_now_and_then() {
    for found_while_parking in [false, true] {
        let mut bench = Bench::no_polling(1);
        bench.iothread.runner().busy = !found_while_parking;
        bench.iothread.runner().park_finds = found_while_parking;
        bench.ready(&[0]);
        let heard = (0..100).any(|_| {
            let log = bench.iterate();
            assert_eq!(has(&log, "park"), found_while_parking);
            has(&log, "ready 0")
        });
        assert!(heard, "the descriptor was starved");
        // Descriptors are looked at, and not waited for.
        let waits = &bench.kernel.state().waits;
        assert!(waits.iter().all(|wait| *wait == Some(0)), "{waits:?}");
    }
}

#[test]
fn a_thousand_ready_descriptors_are_taken_in_bounded_batches() {
    test_support::fds::raise_limit();
    let mut bench = Bench::no_polling(1000);
    bench.ready(&(0..1000).collect::<Vec<_>>());
    let batches = [(); 8].map(|()| {
        let log = bench.iterate();
        assert_eq!(log[..5], PHASES, "phases run between batches");
        log.iter()
            .filter(|entry| entry.starts_with("ready"))
            .count()
    });
    assert_eq!(batches, [128, 128, 128, 128, 128, 128, 128, 104]);
}

#[test]
fn timers_bound_the_wait_and_expire_before_the_phases() {
    let mut bench = Bench::no_polling(0);
    bench.iothread.remote().send(SET_TIMER + 5_000).unwrap();
    bench.iterate();
    assert_eq!(bench.kernel.state().waits, [Some(5_000)]);
    let log = bench.iterate();
    assert_eq!(log[0], "timer 5000");
    assert_eq!(log[1..6], PHASES);
    // No timer is left.
    assert_eq!(bench.kernel.state().waits, [Some(5_000), None]);
}

/// Others have their turn between two expirations of a timer that is due whenever it is set.
#[test]
fn timer_that_is_due_when_it_is_set_expires_in_the_next_iteration() {
    let mut bench = Bench::no_polling(0);
    bench.iothread.runner().always_due = true;
    bench.iothread.remote().send(SET_TIMER + 5_000).unwrap();
    bench.iterate();
    for _ in 0..3 {
        let log = bench.iterate();
        assert_eq!(log[0], "timer 5000");
        assert_eq!(log[1..6], PHASES);
    }
}

#[test]
fn iterations_sleeps_and_polls_are_counted_by_their_results() {
    let mut bench = Bench::new(PollSettings::default(), 1);
    bench.kernel.state().tick_ns = 100;
    let totals = bench.iothread.context().totals();
    let figures = || {
        let polls = (totals.polls(), totals.poll_hits());
        (totals.iterations(), totals.sleeps(), polls)
    };
    bench.ready(&[0]);
    bench.iterate();
    assert_eq!(figures(), (1, 1, (0, 0)), "blocked");
    bench.iothread.runner().poll_hits_after = Some(3);
    bench.iterate();
    assert_eq!(figures(), (2, 1, (1, 1)), "found something in its window");
    bench.iterate();
    assert_eq!(figures(), (3, 1, (2, 2)), "found something at first sight");
    assert!(totals.poll_time_ns() > 0);
    bench.iothread.runner().busy = true;
    bench.iterate();
    assert_eq!(figures(), (4, 1, (2, 2)), "had work left");
    bench.iothread.runner().busy = false;
    bench.iothread.runner().poll_hits_after = None;
    bench.iothread.runner().park_finds = true;
    bench.iterate();
    assert_eq!(
        figures(),
        (5, 1, (3, 2)),
        "found something at the last moment"
    );
    bench.iothread.runner().park_finds = false;
    bench.iterate();
    let (iterations, sleeps, (_, hits)) = figures();
    assert_eq!((iterations, sleeps, hits), (6, 2, 2), "blocked again");
}

/// A loop whose window is open for about 70 us, and polls in vain.
fn polling_in_vain() -> Bench {
    let mut bench = Bench::new(PollSettings::default(), 2);
    bench.kernel.state().tick_ns = 100;
    bench.kernel.state().now_ns = 1;
    for _ in 0..20 {
        bench.arrives(0, 60_000);
        bench.iterate();
    }
    bench.iterate();
    bench
}

#[test]
fn while_it_polls_a_descriptor_waits_ten_microseconds_and_gets_an_iteration() {
    let mut bench = polling_in_vain();
    for after_ns in [5_000, 20_000, 35_000] {
        let at_ns = bench.arrives(1, after_ns);
        let log = bench.iterate();
        assert_eq!(log.last().unwrap(), "ready 1");
        assert!(!has(&log, "park"), "its event would be lost");
        let late_ns = bench.kernel.state().now_ns - at_ns;
        assert!(late_ns <= 11_000, "{late_ns}");
    }
}

#[test]
fn while_it_polls_a_timer_expires_in_time() {
    let mut bench = polling_in_vain();
    let remote = bench.iothread.remote();
    remote.send(SET_TIMER + 20_000).unwrap();
    let begin_ns = bench.kernel.state().now_ns;
    let log = bench.iterate();
    assert!(!has(&log, "park"));
    assert!(has(&bench.iterate(), "timer 20000"));
    assert!(bench.kernel.state().now_ns - begin_ns < 60_000 * 2);
}

#[test]
fn mail_is_read_between_iterations_and_keeps_the_loop_from_sleeping() {
    let mut bench = Bench::no_polling(0);
    let remote = bench.iothread.remote();
    remote.send(1).unwrap();
    remote.send(2).unwrap();
    let log = bench.iterate();
    assert_eq!(log[..2], ["message 1", "message 2"]);
    remote.stop().unwrap();
    assert!(!bench.iothread.iterate().unwrap());
    assert_eq!(bench.iothread.runner().log.last().unwrap(), "stopped");
    assert!(remote.send(3).is_err(), "a stopped loop takes no mail");
}
