//! An iothread that does nothing but run tasks.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use loom::sync::Notify;

use crate::wake::Wake;
use crate::woken::WokenTasks;

/// Runs tasks as `block`'s executor does, and sleeps as `event-loop` does.
pub struct Iothread {
    wake: Arc<Wake>,
    /// Ends the wait for the eventfd.
    signal: Arc<Notify>,
    woken: Arc<WokenTasks>,
    next: usize,
}

impl Iothread {
    /// For tasks below this number.
    pub fn new(tasks: u32) -> Self {
        let wake = Arc::new(Wake::new().unwrap());
        let signal = Arc::new(Notify::new());
        let wake_loop = {
            let (wake, signal) = (wake.clone(), signal.clone());
            move || {
                wake.wake();
                if rustix::io::read(wake.fd(), &mut [0; 8]).is_ok() {
                    signal.notify();
                }
            }
        };
        Iothread {
            wake,
            signal,
            woken: WokenTasks::new(tasks, Arc::new(wake_loop)),
            next: 0,
        }
    }

    pub fn waker(&self, task: u32) -> Waker {
        self.woken.waker(task)
    }

    /// The iothread itself marks a task, as a new one is.
    pub fn start(&self, task: u32) {
        self.woken.insert_without_waking_loop(task);
    }

    /// Iterates, with at most `budget` tasks in each iteration, until `poll` says that this was all. loom finds the
    /// deadlock if it sleeps for ever.
    pub fn run(&mut self, budget: usize, mut poll: impl FnMut(u32) -> bool) {
        let mut batch = Vec::new();
        loop {
            self.wake.take_notified_flag();
            self.next = self.woken.take_batch(self.next, budget, &mut batch);
            for task in batch.drain(..) {
                if poll(task) {
                    return;
                }
            }
            if self.woken.may_have_any() || !self.wake.try_begin_sleep() {
                continue;
            }
            self.signal.wait();
            self.wake.end_sleep();
        }
    }

    /// Runs a future as the only task.
    pub fn block_on(future: impl Future<Output = ()>) {
        let mut iothread = Iothread::new(1);
        let waker = iothread.waker(0);
        let mut future = pin!(future);
        iothread.start(0);
        iothread.run(1, |_| {
            let mut cx = Context::from_waker(&waker);
            future.as_mut().poll(&mut cx).is_ready()
        });
    }
}
