//! `blockplane-bench handlers`: does the event loop's cost grow with the number of registered handlers?
//!
//! Each operation is measured over the kernel's epoll and over a poller that does nothing, which
//! leaves the loop and its slab. Since every handler of a loop owns a descriptor, and those are
//! limited, the slab is measured by itself as well. Whether a row is flat within its noise is the reader's conclusion.

mod dispatch;
mod no_kernel;
mod registry;
mod report;
mod slab;

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use iothread::event_loop::{Epoll, Poller};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};
use crate::interrupt;
use crate::limits::{descriptors_left, raise_descriptor_limit};
use crate::progress::Progress;
use crate::stats::Summary;
use dispatch::{Dispatch, Kernel, MAX_READY, Reaction};
use no_kernel::NoKernel;
use registry::Registry;
pub use report::{Cell, Report};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Numbers of registered handlers, smallest first
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "10,1000,100000",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub registered: Vec<u32>,
    /// How often each figure of the loop is measured; the median is shown
    #[arg(long, value_name = "N", default_value = "15", value_parser = clap::value_parser!(u32).range(1..))]
    pub loop_repetitions: u32,
    /// Operations per repetition
    #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..))]
    pub operations: u32,
}

/// Measures.
///
/// # Errors
/// [`Error::Io`] when descriptors run out all the same; [`Error::Interrupted`].
pub fn run(options: &Options) -> Result<Report> {
    let (registered, note) = registered_that_fit(options);
    let clock_ns = clock_ns();
    let asked = options
        .registered
        .iter()
        .map(|&registered| registered as usize);
    let mut columns: Vec<usize> = asked.clone().chain(registered.iter().copied()).collect();
    columns.sort_unstable();
    columns.dedup();
    let mut report = Report::new(columns);
    if let Some(note) = note {
        report.note(note);
    }
    let progress = Progress::start("handlers", 2 * registered.len());
    for kernel in [Kernel::Epoll, Kernel::None] {
        for &registered in &registered {
            progress.now(format!("{registered} registered, {}", name(kernel)));
            measure(kernel, registered, options, clock_ns, &mut report)?;
            progress.step();
        }
    }
    for registered in asked {
        slab::measure(registered, options, clock_ns, &mut report)?;
    }
    Ok(report)
}

fn measure(
    kernel: Kernel,
    registered: usize,
    options: &Options,
    clock_ns: f64,
    report: &mut Report,
) -> Result<()> {
    let operations = options.operations as usize;
    let mut record = |operation: &str, values: &[f64]| {
        report.record(name(kernel), operation, registered, Summary::of(values));
    };
    let (mut adding, mut deleting) = (Vec::new(), Vec::new());
    let mut registry = Registry::new(poller(kernel)?, registered)?;
    for _ in 0..options.loop_repetitions {
        interrupt::check()?;
        let (add_ns, delete_ns) = registry.measure(operations, clock_ns)?;
        adding.push(add_ns);
        deleting.push(delete_ns);
    }
    // Its descriptors are needed below.
    drop(registry);
    record("add", &adding);
    record("delete", &deleting);
    let loads = [
        ("dispatch, 1 ready", 1, Reaction::Count),
        ("dispatch, 100 ready", MAX_READY, Reaction::Count),
        (
            "dispatch, 1 ready, deletes itself + new one",
            1,
            Reaction::Renew,
        ),
        (
            "dispatch, 100 ready, delete themselves + new ones",
            MAX_READY,
            Reaction::Renew,
        ),
    ];
    for (operation, ready, reaction) in loads {
        let mut values = Vec::new();
        if ready <= registered {
            let mut dispatch = Dispatch::new(kernel, registered, reaction)?;
            for _ in 0..options.loop_repetitions {
                interrupt::check()?;
                values.push(dispatch.measure(ready, operations, clock_ns)?);
            }
        }
        record(operation, &values);
    }
    Ok(())
}

fn name(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Epoll => "epoll",
        Kernel::None => "no kernel",
    }
}

fn poller(kernel: Kernel) -> Result<Box<dyn Poller>> {
    Ok(match kernel {
        Kernel::Epoll => Box::new(Epoll::new().map_err(Error::io("create an epoll"))?),
        Kernel::None => Box::new(NoKernel::default()),
    })
}

/// The numbers of handlers that this process may have descriptors for, and what to say about it.
fn registered_that_fit(options: &Options) -> (Vec<usize>, Option<String>) {
    let limit = raise_descriptor_limit();
    // Those that become ready have two descriptors.
    let most = descriptors_left(limit).saturating_sub(MAX_READY).max(1);
    let mut registered: Vec<usize> = options
        .registered
        .iter()
        .map(|&registered| (registered as usize).min(most))
        .collect();
    registered.sort_unstable();
    registered.dedup();
    let wanted = options.registered.iter().copied().max().unwrap_or(0);
    let note = (wanted as usize > most).then(|| {
        format!(
            "{wanted} handlers need as many descriptors, and this process may have {limit} (raise \
             the hard limit as an administrator: `ulimit -Hn`, `LimitNOFILE=`): {most} were \
             registered instead"
        )
    });
    (registered, note)
}

/// A descriptor that epoll takes and that is not ready.
fn descriptor() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// What reading the clock twice costs: subtracted, since the cheapest operations are cheaper.
fn clock_ns() -> f64 {
    let once = |_| {
        let start = Instant::now();
        start.elapsed().as_secs_f64() * 1e9
    };
    let values: Vec<f64> = (0..1001).map(once).collect();
    Summary::of(&values).map_or(0.0, |summary| summary.median)
}

/// Time taken by operations.
struct Cost {
    clock_ns: f64,
    total_ns: f64,
    operations: usize,
}

impl Cost {
    fn new(clock_ns: f64) -> Self {
        Cost {
            clock_ns,
            total_ns: 0.0,
            operations: 0,
        }
    }

    /// `operations` more, between two readings of the clock.
    fn add(&mut self, elapsed: Duration, operations: usize) {
        self.total_ns += (elapsed.as_secs_f64() * 1e9 - self.clock_ns).max(0.0);
        self.operations += operations;
    }

    fn per_operation_ns(&self) -> f64 {
        self.total_ns / self.operations as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_per_operation_without_the_clock() {
        let mut cost = Cost::new(20.0);
        cost.add(Duration::from_nanos(1020), 10);
        cost.add(Duration::from_nanos(3020), 10);
        assert!((cost.per_operation_ns() - 200.0).abs() < 1e-6);
    }

    #[test]
    fn measurement_keeps_the_number_of_handlers() {
        for kernel in [Kernel::Epoll, Kernel::None] {
            for registered in [1, 2, 9] {
                let mut registry = Registry::new(poller(kernel).unwrap(), registered).unwrap();
                registry.measure(20, 0.0).unwrap();
                assert_eq!(registry.len(), registered);
            }
        }
    }

    #[test]
    fn too_many_handlers_are_reduced_with_a_note() {
        let options = |registered: Vec<u32>| Options {
            registered,
            loop_repetitions: 1,
            operations: 1,
        };
        let (fit, note) = registered_that_fit(&options(vec![100, 10]));
        assert_eq!(fit, [10, 100]);
        assert_eq!(note, None);
        let (fit, note) = registered_that_fit(&options(vec![10, u32::MAX]));
        assert!(fit[1] < u32::MAX as usize);
        assert!(note.unwrap().contains(&fit[1].to_string()));
    }
}
