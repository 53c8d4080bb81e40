//! The event loop alone: what it costs to add, delete and dispatch a handler while many others are registered.
//!
//! Over the kernel's epoll, and over a poller that does nothing, which leaves the loop and its slab.

use std::cell::RefCell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use bench::random::Random;
use bench::stats::{Summary, count, number};
use bench::table::Table;
use bench::{Error, Result};
use iothread::event_loop::iteration::RunnerContext;
use iothread::event_loop::poller::Event;
use iothread::event_loop::{
    Context, Epoll, EventLoop, HandlerId, IdleEnd, Interest, PollSettings, Poller, Readiness,
    Runner,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::limits::{descriptors_left, raise_descriptor_limit};

/// Handlers that become ready in turn, and those that are deleted and added together.
const BATCH: usize = 50;
const OPERATIONS: usize = 20_000;

/// A row for each operation, a column for each number of registered handlers.
pub(crate) fn table(repetitions: u32) -> Result<Table> {
    let most = descriptors_left(raise_descriptor_limit()).saturating_sub(BATCH);
    let numbers = [100, 1000, most.min(100_000)];
    let mut columns = vec!["ns per handler: median (lowest-highest)".to_owned()];
    columns.extend(numbers.map(|number| count(number as u64)));
    let mut table = Table::new(
        "The event loop while so many handlers are registered",
        &columns,
    );
    for is_real in [true, false] {
        let mut rows = [
            ("add", vec![]),
            ("delete", vec![]),
            ("dispatch one", vec![]),
        ];
        for registered in numbers {
            let mut costs = [(); 3].map(|()| Vec::new());
            for _ in 0..repetitions {
                let (add, delete) = add_and_delete(is_real, registered)?;
                let dispatch = Dispatch::new(is_real, registered)?.measure()?;
                for (costs, cost) in costs.iter_mut().zip([add, delete, dispatch]) {
                    costs.push(cost);
                }
            }
            for ((_, cells), costs) in rows.iter_mut().zip(costs) {
                cells.extend(Summary::of(&costs).map(
                    |Summary {
                         median, min, max, ..
                     }| {
                        format!("{} ({}-{})", number(median), number(min), number(max))
                    },
                ));
            }
        }
        for (operation, cells) in rows {
            let poller = if is_real { "epoll" } else { "no kernel" };
            table.row(std::iter::once(format!("{poller}: {operation}")).chain(cells));
        }
    }
    table.note("dispatch: an iteration with its wait, and over epoll the write of an eventfd");
    table.note("epoll keeps its descriptors in a tree: what grows there and not without a kernel is the kernel's");
    Ok(table)
}

/// A descriptor that is not ready.
fn descriptor() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn ns_per_operation(since: Instant, operations: usize) -> f64 {
    since.elapsed().as_secs_f64() * 1e9 / operations as f64
}

fn poller(is_real: bool, ready: &Ready) -> Result<Box<dyn Poller>> {
    Ok(match is_real {
        true => Box::new(Epoll::new().map_err(Error::io("create an epoll"))?),
        false => Box::new(ready.clone()),
    })
}

/// Costs of adding and of deleting handlers, picked at random among all.
fn add_and_delete(is_real: bool, registered: usize) -> Result<(f64, f64)> {
    let mut cx: Context<(), ()> = Context::new(poller(is_real, &Ready::default())?);
    let add = |cx: &mut Context<(), ()>, fd| cx.add(fd, Interest::ReadableEdge, ());
    let mut ids = Vec::new();
    for _ in 0..registered {
        let id = descriptor().and_then(|fd| add(&mut cx, fd));
        ids.push(id.map_err(Error::io("add a handler"))?);
    }
    let mut random = Random::new(registered as u64);
    let (mut adding, mut deleting) = (0.0, 0.0);
    let rounds = OPERATIONS / BATCH;
    for _ in 0..rounds {
        let victims: Vec<HandlerId> = (0..BATCH)
            .map(|_| ids.swap_remove(random.index(ids.len())))
            .collect();
        let since = Instant::now();
        let fds: Vec<OwnedFd> = victims.into_iter().filter_map(|id| cx.delete(id)).collect();
        deleting += ns_per_operation(since, OPERATIONS);
        let since = Instant::now();
        for fd in fds {
            ids.push(add(&mut cx, fd).map_err(Error::io("add a handler"))?);
        }
        adding += ns_per_operation(since, OPERATIONS);
    }
    Ok((adding, deleting))
}

/// A loop with registered handlers, some of which become ready.
struct Dispatch {
    event_loop: EventLoop<Counter>,
    /// Of those that become ready.
    fds: Vec<OwnedFd>,
    cookies: Vec<u64>,
    ready: Ready,
    is_real: bool,
}

impl Dispatch {
    fn new(is_real: bool, registered: usize) -> Result<Self> {
        let ready = Ready::default();
        let (mut fds, mut cookies) = (Vec::new(), Vec::new());
        let polling = PollSettings {
            max_ns: 0,
            ..PollSettings::default()
        };
        let mut register = |cx: &mut RunnerContext<Counter>| {
            for index in 0..registered {
                let fd = descriptor()?;
                let becomes_ready = index % (registered / BATCH) == 0;
                if becomes_ready {
                    fds.push(fd.try_clone()?);
                }
                let id = cx.add(fd, Interest::ReadableEdge, ())?;
                if becomes_ready {
                    cookies.push(id.cookie());
                }
            }
            Ok(Counter(0))
        };
        let event_loop = EventLoop::new(poller(is_real, &ready)?, polling, |cx, _| register(cx));
        let event_loop = event_loop.map_err(Error::io::<io::Error>("register handlers"))?;
        Ok(Dispatch {
            event_loop,
            fds,
            cookies,
            ready,
            is_real,
        })
    }

    fn measure(&mut self) -> Result<f64> {
        let since = Instant::now();
        for round in 0..OPERATIONS {
            if self.is_real {
                let fd = &self.fds[round % self.fds.len()];
                let written = rustix::io::write(fd, &1u64.to_ne_bytes());
                written.map_err(Error::io("write an eventfd"))?;
            } else {
                let cookie = self.cookies[round % self.cookies.len()];
                self.ready.0.borrow_mut().push(cookie);
            }
            let iterated = self.event_loop.iterate();
            iterated.map_err(Error::io("run an iteration"))?;
        }
        let cost = ns_per_operation(since, OPERATIONS);
        match self.event_loop.runner().0 {
            OPERATIONS => Ok(cost),
            ran => Err(Error::Unsuitable(format!(
                "{ran} handlers ran where {OPERATIONS} were ready: the event loop is broken"
            ))),
        }
    }
}

/// A poller without a kernel: cookies of what is ready at the next wait.
#[derive(Clone, Default)]
struct Ready(Rc<RefCell<Vec<u64>>>);

impl Poller for Ready {
    fn add(&mut self, _: BorrowedFd<'_>, _: Interest, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn modify(&mut self, _: BorrowedFd<'_>, _: Interest, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn delete(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }
    fn wait(&mut self, events: &mut Vec<Event>, _: Option<u64>) -> io::Result<()> {
        events.clear();
        events.extend(self.0.borrow_mut().drain(..).map(|cookie| Event {
            cookie,
            readiness: Readiness {
                readable: true,
                ..Readiness::default()
            },
        }));
        Ok(())
    }
    fn now_ns(&self) -> u64 {
        0
    }
}

/// Counts the handlers that ran.
struct Counter(usize);

impl Runner for Counter {
    type Handler = ();
    type Timer = ();
    type Message = ();

    fn on_ready(&mut self, _: &mut RunnerContext<Self>, _: HandlerId, (): (), _: Readiness) {
        self.0 += 1;
    }
    fn on_timer(&mut self, _: &mut RunnerContext<Self>, (): ()) {}
    fn on_message(&mut self, _: &mut RunnerContext<Self>, (): ()) {}
    fn reap(&mut self, _: &mut RunnerContext<Self>) {}
    fn complete_reaped(&mut self, _: &mut RunnerContext<Self>) {}
    fn publish_and_notify(&mut self, _: &mut RunnerContext<Self>) {}
    fn admit(&mut self, _: &mut RunnerContext<Self>) {}
    fn submit(&mut self, _: &mut RunnerContext<Self>) {}
    fn has_work_for_next_iteration(&self) -> bool {
        false
    }
    fn poll_sources_once(&mut self) -> bool {
        false
    }
    fn predict_poll_deadline_ns(&mut self, _: &PollSettings, _: u64) -> u64 {
        0
    }
    fn learn_from_idle(&mut self, _: &PollSettings, _: IdleEnd) {}
    fn prepare_to_block_or_find_work(&mut self, _: &mut RunnerContext<Self>) -> bool {
        false
    }
    fn on_stop(&mut self, _: &mut RunnerContext<Self>) {}
}
