//! Findings of the simulator, as short plans that are run again.

use block::{LimitKind, RateLimit, ThrottleLimits};
use iothread::OnError;
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

fn ask(kind: Kind, sector: u16) -> Event {
    Event::Ask {
        queue: 0,
        kind,
        sector,
        sectors: 1,
        shape: 0,
    }
}

fn found(config: Config, events: &[Event]) -> Result<(), String> {
    let plan = Plan {
        config,
        events: events.to_vec(),
        salt: 1,
    };
    run(&plan, Trace::default()).map(|_| ())
}

fn enable(enabled: bool) -> Event {
    Event::Enable { queue: 0, enabled }
}

fn iterations(times: u8) -> Event {
    let iothread = 0;
    Event::Run { iothread, times }
}

const SHOW: Event = Event::Publish { queue: 0, kicks: 1 };
const WHOLE: Event = Event::Complete {
    pick: 0,
    how: End::Whole,
};

/// A request is answered without the disk, others that wait are given up before the guest sees that, and then several complete
/// together: those were not entered into the statistics before the next ones were taken.
#[test]
fn completions_behind_cancelled_requests_count() {
    let config = Config {
        policy: [OnError::Report, OnError::Stop],
        ..config()
    };
    let error = Event::Complete {
        pick: 0,
        how: End::Error,
    };
    for times in 0..4 {
        for reads in 1..4 {
            let mut events = vec![
                ask(Kind::Write, 0),
                SHOW,
                iterations(3),
                error.clone(),
                iterations(3),
            ];
            events.extend((0..reads).map(|sector| ask(Kind::Read, 2 + sector)));
            events.extend([
                SHOW,
                iterations(3),
                ask(Kind::Unknown, 0),
                SHOW,
                iterations(times),
            ]);
            events.extend((0..reads).map(|_| WHOLE));
            events.push(Event::Resume { report: true });
            events.extend([ask(Kind::Read, 8), SHOW]);
            let found = found(config.clone(), &events);
            assert_eq!(found, Ok(()), "{times}, {reads}");
        }
    }
}

/// A daemon is killed while it shows two answers of a packed queue: the second one is written over its request, and is lost.
/// The next daemon's request waits after an error, and may not go back to a ring that does not say any more what it was.
#[test]
fn a_request_that_an_unseen_answer_lies_over_is_not_lost() {
    let config = Config {
        packed: true,
        indirect: true,
        size: 8,
        inflight: true,
        policy: [OnError::Ignore, OnError::NoSpace],
        ..config()
    };
    let asked = |kind, shape| Event::Ask {
        queue: 0,
        kind,
        sector: 1,
        sectors: 1,
        shape,
    };
    const INDIRECT: u32 = 1 << 20;
    for (write, flush) in [(0, 0), (0, INDIRECT), (INDIRECT, 0), (INDIRECT, INDIRECT)] {
        for store in 0..8 {
            let run = iterations(3);
            let events = [
                asked(Kind::Write, write),
                asked(Kind::Flush, flush),
                SHOW,
                run.clone(),
                WHOLE,
                WHOLE,
                Event::Kill {
                    iothread: 0,
                    store,
                    salt: 0,
                },
                Event::Connect,
                run.clone(),
                Event::Complete {
                    pick: 1,
                    how: End::NoSpace,
                },
                run,
                Event::DisconnectReason(DisconnectReason::Migrate),
            ];
            let found = found(config.clone(), &events);
            assert_eq!(found, Ok(()), "{write}, {flush}, {store}");
        }
    }
}

/// A read is done in part, fails, and is parked; its queue stops during a migration and leaves it in the in-flight region. The device is
/// reset then, and the request is not carried out any more: what it had read was not in the dirty log.
#[test]
fn data_read_for_a_parked_request_is_in_the_dirty_log_when_its_queue_stops() {
    let run = iterations(3);
    let ends = |how| Event::Complete { pick: 0, how };
    let driver = config().driver;
    for packed in [false, true] {
        let config = Config {
            packed,
            inflight: true,
            suspends: true,
            policy: [OnError::Stop, OnError::Report],
            ..config()
        };
        let read = Event::Ask {
            queue: 0,
            kind: Kind::Read,
            sector: 2,
            sectors: 6,
            shape: 0,
        };
        let events = [
            Event::Log,
            run.clone(),
            read,
            Event::Copy {
                pages: 1000,
                pick: 0,
            },
            SHOW,
            run.clone(),
            ends(End::Short(200)),
            run.clone(),
            ends(End::Error),
            run.clone(),
            Event::DisconnectReason(DisconnectReason::Reset(driver)),
            run.clone(),
            Event::Connect,
            run.clone(),
            Event::DisconnectReason(DisconnectReason::Migrate),
            run.clone(),
        ];
        assert_eq!(found(config, &events), Ok(()), "{packed}");
    }
}

/// The operator resumes a request whose queue is disabled, once: it is tried again when the queue is enabled.
#[test]
fn a_request_that_is_resumed_while_its_queue_is_disabled_goes_on_when_it_is_enabled() {
    let run = iterations(3);
    for [to, back] in [
        [enable(false), enable(true)],
        // The queues of a daemon that is handed over are disabled, too.
        [Event::Upgrade(Handover::Refused), iterations(0)],
    ] {
        let events = [
            ask(Kind::Write, 10),
            SHOW,
            run.clone(),
            Event::Complete {
                pick: 0,
                how: End::NoSpace,
            },
            run.clone(),
            to,
            Event::Resume { report: false },
            run.clone(),
            back,
            run.clone(),
        ];
        let config = Config {
            policy: [OnError::Report, OnError::NoSpace],
            ..config()
        };
        assert_eq!(found(config, &events), Ok(()));
    }
}

/// A queue that is disabled gets a new table of the guest's memory as well.
#[test]
fn a_disabled_queue_has_the_new_table_when_it_is_enabled() {
    let run = iterations(3);
    let hotplug = |present| Event::Hotplug { present };
    for tables in [
        vec![Event::Remap],
        vec![hotplug(false)],
        vec![hotplug(false), run.clone(), hotplug(true)],
    ] {
        let mut events = vec![ask(Kind::Read, 1), SHOW, run.clone(), WHOLE, run.clone()];
        events.push(enable(false));
        events.push(run.clone());
        events.extend(tables);
        events.extend([
            ask(Kind::Write, 2),
            SHOW,
            run.clone(),
            enable(true),
            run.clone(),
        ]);
        assert_eq!(found(config(), &events), Ok(()));
    }
}

/// A driver that cannot flush follows one that can: what it writes survives a power failure, also after requests that waited.
#[test]
fn writes_of_a_driver_without_flush_are_stable() {
    let run = iterations(3);
    let look = Event::Look {
        queue: 0,
        then: Then::Polls,
    };
    for (write_through, config_wce) in [(false, false), (false, true), (true, true)] {
        for salt in 0..10 {
            let next = DriverFeatures {
                flush: false,
                config_wce,
            };
            let write = [
                ask(Kind::Write, 3),
                SHOW,
                run.clone(),
                WHOLE,
                run.clone(),
                look.clone(),
            ];
            let mut events = write.to_vec();
            events.extend([
                Event::DisconnectReason(DisconnectReason::Reset(next)),
                run.clone(),
                Event::Connect,
                run.clone(),
            ]);
            events.extend(write);
            events.push(Event::PowerFail { salt });
            let config = Config {
                write_through,
                ..config()
            };
            assert_eq!(
                found(config, &events),
                Ok(()),
                "{write_through}, {config_wce}, {salt}"
            );
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
    let run = iterations(3);
    let events = [
        ask(Kind::Write, 1),
        ask(Kind::Write, 5),
        SHOW,
        run.clone(),
        WHOLE,
        Event::Exchange(Exchange::Filtered { present: true }),
        run.clone(),
        Event::Complete {
            pick: 0,
            how: End::NoSpace,
        },
        run.clone(),
        Event::Exchange(Exchange::Reopened { rewrites: false }),
        run.clone(),
        run,
    ];
    assert_eq!(found(config, &events), Ok(()));
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
    let run = iterations(3);
    let look = Event::Look {
        queue: 0,
        then: Then::Polls,
    };
    let events = [
        ask(Kind::Write, 4),
        SHOW,
        run.clone(),
        Event::Exchange(Exchange::Filtered { present: true }),
        run.clone(),
        WHOLE,
        run.clone(),
        look,
        ask(Kind::Write, 2),
        SHOW,
        run,
    ];
    assert_eq!(found(config, &events), Ok(()));
}
