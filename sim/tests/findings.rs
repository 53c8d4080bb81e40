//! What the simulator has found, as short plans that are run again.

use data_plane::OnError;
use sim::plan::{Config, End, Event, Kind, Leave, Plan};
use sim::run::run;
use sim::trace::Trace;

fn config() -> Config {
    Config {
        packed: false,
        event_idx: false,
        indirect: false,
        queues: 1,
        size: 32,
        base: 0,
        inflight: false,
        write_through: false,
        merging: false,
        sectors: 16,
        io_uring: false,
        max_events: 64,
        memory_alignment: 1,
        policy: [OnError::Report; 2],
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
    run(&plan, None, Trace::default()).map(|_| ())
}

const SHOW: Event = Event::Publish { queue: 0, kicks: 1 };
const WHOLE: Event = Event::Complete {
    pick: 0,
    how: End::Whole,
};

/// A request is answered without the disk, others that wait are given up before the guest sees that, and then several complete
/// together: those were not entered into the statistics before the next ones were taken.
#[test]
fn what_completes_behind_requests_that_were_given_up_counts() {
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
                Event::Run { times: 3 },
                error.clone(),
                Event::Run { times: 3 },
            ];
            events.extend((0..reads).map(|sector| ask(Kind::Read, 2 + sector)));
            events.extend([
                SHOW,
                Event::Run { times: 3 },
                ask(Kind::Unknown, 0),
                SHOW,
                Event::Run { times },
            ]);
            events.extend((0..reads).map(|_| WHOLE));
            events.push(Event::Resume { report: true });
            events.extend([ask(Kind::Read, 8), SHOW]);
            let found = found(config.clone(), &events);
            assert_eq!(found, Ok(()), "{times}, {reads}");
        }
    }
}

/// A daemon is killed while it shows two answers of a packed queue: the second one is written over its request, and nobody sees it.
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
            let run = Event::Run { times: 3 };
            let events = [
                asked(Kind::Write, write),
                asked(Kind::Flush, flush),
                SHOW,
                run.clone(),
                WHOLE,
                WHOLE,
                Event::Kill { store, salt: 0 },
                Event::Connect,
                run.clone(),
                Event::Complete {
                    pick: 1,
                    how: End::NoSpace,
                },
                run,
                Event::Leave(Leave::Migrate),
            ];
            let found = found(config.clone(), &events);
            assert_eq!(found, Ok(()), "{write}, {flush}, {store}");
        }
    }
}
