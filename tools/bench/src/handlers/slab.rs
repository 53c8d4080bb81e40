//! The slab of handlers by itself, without descriptors, which no process has 100,000 of by default.

use std::hint::black_box;
use std::time::Instant;

use iothread::event_loop::HandlerId;
use iothread::event_loop::handlers::Handlers;

use super::{Cost, Options};
use crate::error::Result;
use crate::handlers::Report;
use crate::interrupt;
use crate::random::Random;
use crate::stats::Summary;

pub(crate) fn measure(
    registered: usize,
    options: &Options,
    clock_ns: f64,
    report: &mut Report,
) -> Result<()> {
    let mut slab = Slab::new(registered);
    let mut costs = [const { Vec::new() }; 2];
    for _ in 0..options.loop_repetitions {
        interrupt::check()?;
        let figures = slab.measure(options.operations as usize, clock_ns);
        for (costs, figure) in costs.iter_mut().zip(figures) {
            costs.push(figure);
        }
    }
    for (operation, costs) in ["delete one and add one", "find the handler of an event"]
        .iter()
        .zip(&costs)
    {
        report.record("slab", operation, registered, Summary::of(costs));
    }
    Ok(())
}

struct Slab {
    handlers: Handlers<u32, ()>,
    ids: Vec<HandlerId>,
    random: Random,
}

impl Slab {
    fn new(registered: usize) -> Self {
        let mut handlers = Handlers::default();
        let ids = (0..registered).map(|_| handlers.insert((), 0)).collect();
        Slab {
            handlers,
            ids,
            random: Random::new(registered as u64),
        }
    }

    /// Costs of replacing and of finding one, in nanoseconds.
    fn measure(&mut self, operations: usize, clock_ns: f64) -> [f64; 2] {
        let places: Vec<usize> = (0..operations)
            .map(|_| self.random.index(self.ids.len()))
            .collect();
        let time = |operation: &mut dyn FnMut(usize)| {
            let mut cost = Cost::new(clock_ns);
            let start = Instant::now();
            for &place in &places {
                operation(place);
            }
            cost.add(start.elapsed(), operations);
            cost.per_operation_ns()
        };
        let Slab { handlers, ids, .. } = self;
        let replace_ns = time(&mut |place| {
            handlers.remove(ids[place]);
            ids[place] = handlers.insert((), 0);
        });
        let find_ns = time(&mut |place| {
            black_box(handlers.get(HandlerId::from_cookie(ids[place].cookie())));
        });
        [replace_ns, find_ns]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_measurement_keeps_the_number_of_handlers() {
        for registered in [1, 2, 5000] {
            let mut slab = Slab::new(registered);
            slab.measure(100, 0.0);
            assert_eq!(
                (slab.handlers.len(), slab.ids.len()),
                (registered, registered)
            );
        }
    }
}
