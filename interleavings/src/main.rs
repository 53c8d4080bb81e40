//! Models of code that several threads run: loom runs each again and again, until it has tried the interleavings of its
//! threads and, for each load, the values that the memory model of the language allows.
//!
//! What runs in them are the product's own files. They take mutexes and atomics from `crate::sync`, which is `std::sync`
//! there and loom's here.

#[path = "../../crates/eventfd/src/call_count.rs"]
#[allow(dead_code, reason = "the guard uses all of it")]
mod call_count;
mod iothread;
#[path = "../../crates/block/src/lease.rs"]
mod lease;
#[path = "../../crates/block/src/range_lock.rs"]
#[allow(unfulfilled_lint_expectations, reason = "the models use all of it")]
mod range_lock;
mod sync;
#[path = "../../crates/iothread/src/event_loop/wake.rs"]
mod wake;
#[path = "../../crates/block/src/route/task/woken.rs"]
mod woken;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;

use call_count::{CallCount, GuardSleep};
use iothread::Iothread;
use lease::PlaceLeases;
use range_lock::RangeLock;

/// As in `block::route::task`.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// A model's name says what it shows.
const MODELS: [(&str, fn()); 7] = [
    ("tasks of one word are polled once woken", || {
        woken_tasks_are_polled([1, 2], &[], 2);
    }),
    ("tasks of two words are polled once woken", || {
        woken_tasks_are_polled([1, 65], &[], 2);
    }),
    ("a task that two threads wake is polled after both", || {
        woken_tasks_are_polled([1, 1], &[], 2);
    }),
    ("woken tasks beyond the budget are polled later", || {
        woken_tasks_are_polled([1, 65], &[2, 3], 1);
    }),
    ("a range goes from worker to tasks", a_range_is_handed_over),
    ("a settle ends with the last lease", a_settle_ends),
    (
        "a guarded call wakes the guard",
        guarded_calls_wake_the_guard,
    ),
];

/// How often a thread may be interrupted where it could go on: loom advises 2 or 3. With 4 it takes minutes.
const PREEMPTIONS: usize = 3;

/// Runs the models whose names contain the first argument, or all.
fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    for (name, model) in MODELS.iter().filter(|(name, _)| name.contains(&part)) {
        eprintln!("{name}");
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(PREEMPTIONS);
        builder.check(move || {
            counted.fetch_add(1, SeqCst);
            model();
        });
        eprintln!("    {} interleavings", runs.load(SeqCst));
    }
}

/// Two threads prepare something and wake a task, each another one or both the same. Each task finds what was prepared for
/// it, while others were `started` by the iothread itself.
fn woken_tasks_are_polled(tasks: [u32; 2], started: &[u32], budget: usize) {
    let mut iothread = Iothread::new(66);
    for task in started {
        iothread.start(*task);
    }
    let prepared = Arc::new([(); 2].map(|()| AtomicBool::new(false)));
    for (index, task) in tasks.into_iter().enumerate() {
        let (waker, prepared) = (iothread.waker(task), prepared.clone());
        thread::spawn(move || {
            prepared[index].store(true, Relaxed);
            waker.wake();
        });
    }
    let mut found = [false; 2];
    iothread.run(budget, |polled| {
        for (index, task) in tasks.into_iter().enumerate() {
            found[index] |= task == polled && prepared[index].load(Relaxed);
        }
        found == [true; 2]
    });
}

/// A worker and tasks of two iothreads hold ranges that overlap, one after the other.
fn a_range_is_handed_over() {
    let shared = Arc::new((RangeLock::default(), AtomicBool::new(false)));
    let enter = |inside: &AtomicBool| {
        assert!(!inside.load(Relaxed));
        inside.store(true, Relaxed);
        inside.store(false, Relaxed);
    };
    let task = move |shared: Arc<(RangeLock, AtomicBool)>| {
        Iothread::block_on(async {
            let _guard = shared.0.lock_async(1..3).await;
            enter(&shared.1);
        });
    };
    let (of_worker, of_task) = (shared.clone(), shared.clone());
    thread::spawn(move || {
        let _guard = of_worker.0.lock_blocking(0..2);
        enter(&of_worker.1);
    });
    thread::spawn(move || task(of_task));
    task(shared);
}

/// Two threads make a call each, while the guard begins to sleep. It ends its sleep in any case.
fn guarded_calls_wake_the_guard() {
    let guard = Arc::new((GuardSleep::new(), Notify::new()));
    let calls = [(); 2].map(|()| Arc::new(CallCount::new()));
    for calls in calls.clone() {
        let guard = guard.clone();
        thread::spawn(move || {
            if guard.0.begin_call(&calls) {
                guard.1.notify();
            }
            calls.end_call();
        });
    }
    let (sleep, woken) = &*guard;
    if sleep.try_begin_sleep(|| calls.iter().any(|calls| calls.get() != 0)) {
        woken.wait();
    }
}

fn a_settle_ends() {
    let leases = PlaceLeases::default();
    let in_use = Arc::new(AtomicUsize::new(2));
    for _ in 0..2 {
        let (lease, in_use) = (leases.take_lease(), in_use.clone());
        thread::spawn(move || {
            in_use.fetch_sub(1, SeqCst);
            drop(lease);
        });
    }
    Iothread::block_on(leases.wait_for_current_leases_async());
    assert_eq!(in_use.load(SeqCst), 0);
}
