//! Findings of the simulator, as short plans that are run again.

use block::{LimitKind, RateLimit, ThrottleLimits};
use iothread::OnError;
use sim::plan::Event::{
    Ask, Complete, Connect, Copy, Enable, Hotplug, Kill, Log, Look, PowerFail, Publish, Remap,
    Resume, Run, Upgrade,
};
use sim::plan::{
    Config, DisconnectReason, DriverFeatures, End, Event, Exchange, Filters, Handover, Kind, Plan,
    Then, Throttling,
};
use sim::run::run;
use sim::trace::Trace;

fn config() -> Config {
    Config {
        packed: false,
        event_idx: false,
        indirect: false,
        iothreads: 1,
        client: false,
        queues: 1,
        size: 32,
        base: 0,
        inflight: false,
        write_through: false,
        merging: false,
        sectors: 16,
        io_uring: false,
        filters: Filters::default(),
        throttling: None,
        max_events: 64,
        memory_alignment: 1,
        policy: [OnError::Report; 2],
        driver: DriverFeatures {
            flush: true,
            config_wce: false,
        },
        starts_disabled: false,
        suspends: false,
        jobs: false,
    }
}

/// Runs these events in a world of this kind, in which nothing may be found.
#[track_caller]
fn check(config: &Config, events: Vec<Event>) {
    let plan = Plan {
        config: config.clone(),
        events,
        salt: 1,
    };
    let ran = run(&plan, Trace::default());
    assert_eq!(ran.map(drop), Ok(()), "{plan:#?}");
}

fn request(kind: Kind, sector: u16, sectors: u8, shape: u32) -> Event {
    Ask {
        queue: 0,
        kind,
        sector,
        sectors,
        shape,
    }
}

fn ask(kind: Kind, sector: u16) -> Event {
    request(kind, sector, 1, 0)
}

fn ends(how: End) -> Event {
    Complete { pick: 0, how }
}

fn enable(enabled: bool) -> Event {
    Enable { queue: 0, enabled }
}

fn iterations(times: u8) -> Event {
    Run { iothread: 0, times }
}

fn leaves(how: DisconnectReason) -> Event {
    Event::DisconnectReason(how)
}

const RUN: Event = Run {
    iothread: 0,
    times: 3,
};
const SHOW: Event = Publish { queue: 0, kicks: 1 };
const LOOK: Event = Look {
    queue: 0,
    then: Then::Polls,
};
const WHOLE: Event = Complete {
    pick: 0,
    how: End::Whole,
};
const RETRY: Event = Resume { report: false };

/// A request is answered without the disk, others that wait are given up before the guest sees that, and then several complete
/// together: those were not entered into the statistics before the next ones were taken.
#[test]
fn completions_behind_cancelled_requests_count() {
    let config = Config {
        policy: [OnError::Report, OnError::Stop],
        ..config()
    };
    for times in 0..4 {
        for reads in 1..4 {
            let mut events = vec![ask(Kind::Write, 0), SHOW, RUN, ends(End::Error), RUN];
            events.extend((0..reads).map(|sector| ask(Kind::Read, 2 + sector)));
            events.extend([SHOW, RUN, ask(Kind::Unknown, 0), SHOW, iterations(times)]);
            events.extend((0..reads).map(|_| WHOLE));
            events.extend([Resume { report: true }, ask(Kind::Read, 8), SHOW]);
            check(&config, events);
        }
    }
}

/// A daemon is killed while it shows two answers of a packed queue: the second one is written over its request, and is lost.
/// The next daemon's request waits after an error, and may not go back to a ring that does not say any more what it was.
#[test]
fn a_request_that_an_unseen_answer_lies_over_is_not_lost() {
    const INDIRECT: u32 = 1 << 20;
    let config = Config {
        packed: true,
        indirect: true,
        size: 8,
        inflight: true,
        policy: [OnError::Ignore, OnError::NoSpace],
        ..config()
    };
    for (write, flush) in [(0, 0), (0, INDIRECT), (INDIRECT, 0), (INDIRECT, INDIRECT)] {
        for store in 0..8 {
            let kill = Kill {
                iothread: 0,
                store,
                salt: 0,
            };
            let fails = Complete {
                pick: 1,
                how: End::NoSpace,
            };
            let mut events = vec![request(Kind::Write, 1, 1, write)];
            events.extend([request(Kind::Flush, 1, 1, flush), SHOW, RUN, WHOLE, WHOLE]);
            events.extend([kill, Connect, RUN, fails, RUN]);
            events.push(leaves(DisconnectReason::Migrate));
            check(&config, events);
        }
    }
}

/// A read is done in part, fails, and is parked; its queue stops during a migration and leaves it in the in-flight region. The device is
/// reset then, and the request is not carried out any more: what it had read was not in the dirty log.
#[test]
fn data_read_for_a_parked_request_is_in_the_dirty_log_when_its_queue_stops() {
    for packed in [false, true] {
        let config = Config {
            packed,
            inflight: true,
            suspends: true,
            policy: [OnError::Stop, OnError::Report],
            ..config()
        };
        let copy = Copy {
            pages: 1000,
            pick: 0,
        };
        let read = request(Kind::Read, 2, 6, 0);
        let mut events = vec![Log, RUN, read, copy, SHOW, RUN];
        events.extend([ends(End::Short(200)), RUN, ends(End::Error), RUN]);
        events.extend([
            leaves(DisconnectReason::Reset(config.driver)),
            RUN,
            Connect,
            RUN,
        ]);
        events.extend([leaves(DisconnectReason::Migrate), RUN]);
        check(&config, events);
    }
}

/// The operator resumes a request whose queue is disabled, once: it is tried again when the queue is enabled.
#[test]
fn a_request_that_is_resumed_while_its_queue_is_disabled_goes_on_when_it_is_enabled() {
    let config = Config {
        policy: [OnError::Report, OnError::NoSpace],
        ..config()
    };
    for [to, back] in [
        [enable(false), enable(true)],
        // The queues of a daemon that is handed over are disabled, too.
        [Upgrade(Handover::Refused), iterations(0)],
    ] {
        let mut events = vec![ask(Kind::Write, 10), SHOW, RUN, ends(End::NoSpace), RUN];
        events.extend([to, RETRY, RUN, back, RUN]);
        check(&config, events);
    }
}

/// A queue that is disabled gets a new table of the guest's memory as well.
#[test]
fn a_disabled_queue_has_the_new_table_when_it_is_enabled() {
    let hotplug = |present| Hotplug { present };
    for tables in [
        vec![Remap],
        vec![hotplug(false)],
        vec![hotplug(false), RUN, hotplug(true)],
    ] {
        let mut events = vec![
            ask(Kind::Read, 1),
            SHOW,
            RUN,
            WHOLE,
            RUN,
            enable(false),
            RUN,
        ];
        events.extend(tables);
        events.extend([ask(Kind::Write, 2), SHOW, RUN, enable(true), RUN]);
        check(&config(), events);
    }
}

/// A driver that cannot flush follows one that can: what it writes survives a power failure, also after requests that waited.
#[test]
fn writes_of_a_driver_without_flush_are_stable() {
    for (write_through, config_wce) in [(false, false), (false, true), (true, true)] {
        let config = Config {
            write_through,
            ..config()
        };
        for salt in 0..10 {
            let next = DriverFeatures {
                flush: false,
                config_wce,
            };
            let write = [ask(Kind::Write, 3), SHOW, RUN, WHOLE, RUN, LOOK];
            let mut events = write.to_vec();
            events.extend([leaves(DisconnectReason::Reset(next)), RUN, Connect, RUN]);
            events.extend(write);
            events.push(PowerFail { salt });
            check(&config, events);
        }
    }
}

/// A filter comes while a request is in flight, which is parked then; later the disk is opened anew. The request keeps its memory, and
/// not the way to the opening that was.
#[test]
fn a_parked_request_does_not_keep_an_opening_of_the_disk() {
    let config = Config {
        policy: [OnError::Report, OnError::NoSpace],
        ..config()
    };
    let filtered = Event::Exchange(Exchange::Filtered { present: true });
    let reopened = Event::Exchange(Exchange::Reopened { rewrites: false });
    let mut events = vec![ask(Kind::Write, 1), ask(Kind::Write, 5), SHOW, RUN, WHOLE];
    events.extend([filtered, RUN, ends(End::NoSpace), RUN, reopened, RUN, RUN]);
    check(&config, events);
}

/// A request is larger than what is left of a limit, and a filter comes in front of the throttled node: the next request pays
/// for it.
#[test]
fn debts_at_a_limit_stay_when_a_filter_comes() {
    let mut limits = ThrottleLimits::default();
    *limits.rate_mut(LimitKind::BpsTotal) = RateLimit::of(1000);
    let config = Config {
        filters: Filters {
            throttles: true,
            ..Filters::default()
        },
        throttling: Some(Throttling {
            limits,
            members: 1,
            tenant: None,
        }),
        ..config()
    };
    let filtered = Event::Exchange(Exchange::Filtered { present: true });
    let mut events = vec![ask(Kind::Write, 4), SHOW, RUN, filtered, RUN, WHOLE, RUN];
    events.extend([LOOK, ask(Kind::Write, 2), SHOW, RUN]);
    check(&config, events);
}
