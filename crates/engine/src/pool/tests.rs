//! Tests of the pool, with jobs that wait for each other instead of for time.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};

use super::*;

enum Task {
    /// Returns this.
    Return(Result<(), Errno>),
    /// Blocks until the test sends, or drops the channel.
    Wait(Receiver<()>),
    /// Needs as many threads at once as the barrier has.
    Meet(Arc<Barrier>),
    /// Records its token.
    Note(Arc<Mutex<Vec<u64>>>),
    Panic,
}

struct TestJob(u64, Task);

impl Job for TestJob {
    fn token(&self) -> u64 {
        self.0
    }

    /// Tokens of a thousand belong to the same disk.
    fn disk(&self) -> u64 {
        self.0 / 1000
    }

    fn run(self) -> Completion {
        let result = match self.1 {
            Task::Return(result) => result,
            Task::Wait(until) => {
                let _ = until.recv();
                Ok(())
            }
            Task::Meet(barrier) => {
                barrier.wait();
                Ok(())
            }
            Task::Note(list) => {
                list.lock().unwrap().push(self.0);
                Ok(())
            }
            Task::Panic => panic!("this job panics, as the test wants"),
        };
        Completion {
            token: self.0,
            result,
        }
    }
}

/// A pool, and the wake-ups that it has sent.
struct Fixture {
    pool: Pool<TestJob>,
    woken: Receiver<()>,
    wakes: Arc<AtomicUsize>,
}

/// A pool whose wake-ups are counted.
fn fixture(min_threads: u32, max_threads: u32, idle_time: Duration) -> Fixture {
    let (sender, woken) = channel();
    let sender: Mutex<Sender<()>> = Mutex::new(sender);
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let wake: Wake = Arc::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        let _ = sender.lock().unwrap().send(());
    });
    let settings = PoolSettings {
        min_threads,
        max_threads,
        ..PoolSettings::default()
    };
    Fixture {
        pool: Pool::start_with_idle_time(settings, wake, idle_time).unwrap(),
        woken,
        wakes,
    }
}

fn pool(max_threads: u32) -> Fixture {
    fixture(0, max_threads, IDLE_TIME)
}

impl Fixture {
    fn add(&mut self, token: u64, task: Task) {
        self.pool.add_job(TestJob(token, task));
    }

    /// Adds jobs that wait until what is returned is dropped.
    fn add_waiting(&mut self, tokens: std::ops::Range<u64>) -> Vec<Sender<()>> {
        let add = |token| {
            let (release, until) = channel();
            self.add(token, Task::Wait(until));
            release
        };
        tokens.map(add).collect()
    }

    /// Sleeps until a wake-up, like a loop does, until `count` completions are there.
    fn wait_for(&mut self, count: usize) -> Vec<Completion> {
        let mut out = Vec::new();
        while out.len() < count {
            self.woken.recv().unwrap();
            self.pool.take_completions(&mut out);
        }
        out
    }

    fn threads(&self) -> u32 {
        self.pool.thread_count()
    }

    /// Waits until the pool has this many threads; hangs if it never does.
    fn wait_for_threads(&self, count: u32) {
        while self.pool.thread_count() != count {
            thread::yield_now();
        }
    }
}

#[test]
fn every_job_completes_once_with_its_result() {
    let mut fixture = pool(4);
    let result = |token: u64| {
        if token.is_multiple_of(3) {
            Err(Errno::NOSPC)
        } else {
            Ok(())
        }
    };
    for token in 0..500 {
        fixture.add(token, Task::Return(result(token)));
    }
    assert_eq!(fixture.pool.in_flight_count(), 500);
    let mut done = fixture.wait_for(500);
    done.sort_by_key(|completion| completion.token);
    let expected: Vec<_> = (0..500)
        .map(|token| Completion {
            token,
            result: result(token),
        })
        .collect();
    assert_eq!(done, expected);
    assert_eq!(fixture.pool.in_flight_count(), 0);
    assert!(!fixture.pool.has_finished());
    assert_eq!(fixture.pool.take_completions(&mut done), 0);
}

#[test]
fn threads_are_started_up_to_the_maximum_when_none_is_idle() {
    let mut fixture = pool(4);
    assert_eq!(fixture.threads(), 0);
    let barrier = Arc::new(Barrier::new(4));
    // Ends only if four of them run at the same time; the rest waits its turn.
    for token in 0..8 {
        fixture.add(token, Task::Meet(Arc::clone(&barrier)));
        assert!(fixture.threads() <= 4);
    }
    assert_eq!(fixture.wait_for(8).len(), 8);
}

#[test]
fn jobs_of_one_disk_that_never_end_leave_threads_to_other_disks() {
    let mut fixture = pool(DEFAULT_MAX_THREADS);
    let releases = fixture.add_waiting(0..200);
    assert_eq!(
        fixture.threads(),
        56,
        "seven eighths, and no thread is started in vain"
    );
    for token in (1000..100_000).step_by(1000) {
        fixture.add(token, Task::Return(Ok(())));
        assert_eq!(fixture.wait_for(1)[0].token, token);
    }
    drop(releases);
    assert_eq!(fixture.wait_for(200).len(), 200);
}

#[test]
fn an_idle_thread_is_used_before_another_is_started() {
    let mut fixture = pool(4);
    for token in 0..20 {
        fixture.add(token, Task::Return(Ok(())));
        fixture.wait_for(1);
        // The worker may still be on its way from the completion to its wait.
        while !fixture.pool.shared.all_idle() {
            thread::yield_now();
        }
    }
    assert_eq!(fixture.threads(), 1);
}

#[test]
fn the_owner_is_woken_once_per_list() {
    let mut fixture = pool(1);
    for token in 0..10 {
        fixture.add(token, Task::Return(Ok(())));
    }
    // The only thread reaches this job after the ten, and the list was not taken meanwhile.
    let release = fixture.add_waiting(10..11);
    fixture.woken.recv().unwrap();
    let (list, started) = (Arc::new(Mutex::new(Vec::new())), fixture.wakes.clone());
    fixture.add(11, Task::Note(list));
    drop(release);
    while fixture.pool.shared.finished_len() < 12 {
        thread::yield_now();
    }
    assert_eq!(started.load(Ordering::SeqCst), 1);
    let mut out = Vec::new();
    assert!(fixture.pool.has_finished());
    assert_eq!(fixture.pool.take_completions(&mut out), 12);
    fixture.add(12, Task::Return(Ok(())));
    fixture.wait_for(1);
    assert_eq!(
        started.load(Ordering::SeqCst),
        2,
        "woken again after the list was taken"
    );
}

#[test]
fn a_panic_is_eio_and_the_thread_goes_on() {
    let mut fixture = pool(1);
    fixture.add(1, Task::Panic);
    fixture.add(2, Task::Return(Ok(())));
    let expected = [
        Completion {
            token: 1,
            result: Err(Errno::IO),
        },
        Completion {
            token: 2,
            result: Ok(()),
        },
    ];
    assert_eq!(fixture.wait_for(2), expected);
}

#[test]
fn idle_threads_over_the_minimum_end() {
    let mut fixture = fixture(1, 3, Duration::from_millis(1));
    assert_eq!(fixture.threads(), 1, "the minimum is there from the start");
    for _ in 0..3 {
        let barrier = Arc::new(Barrier::new(3));
        for token in 0..3 {
            fixture.add(token, Task::Meet(Arc::clone(&barrier)));
        }
        fixture.wait_for(3);
        fixture.wait_for_threads(1);
    }
    fixture.pool.set_limits(0, 3).unwrap();
    fixture.wait_for_threads(0);
    // And from nothing it works again.
    fixture.add(9, Task::Return(Ok(())));
    fixture.wait_for(1);
}

#[test]
fn limits_can_be_changed_while_jobs_run() {
    let mut fixture = pool(1);
    let release = fixture.add_waiting(0..1);
    fixture.add(1, Task::Return(Ok(())));
    assert_eq!(fixture.threads(), 1);
    fixture.pool.set_limits(0, 2).unwrap();
    assert_eq!(fixture.threads(), 2, "one for the job that waits");
    fixture.pool.set_limits(3, 8).unwrap();
    assert_eq!(fixture.threads(), 3);
    // The second job no longer waits for the first.
    assert_eq!(fixture.wait_for(1)[0].token, 1);
    fixture.pool.set_limits(0, 1).unwrap();
    drop(release);
    assert_eq!(fixture.wait_for(1)[0].token, 0);
    fixture.wait_for_threads(1);
    fixture.add(2, Task::Return(Ok(())));
    assert_eq!(fixture.wait_for(1)[0].token, 2);
}

#[test]
fn invalid_limits_are_refused_and_change_nothing() {
    let make = |min_threads, max_threads| {
        let settings = PoolSettings {
            min_threads,
            max_threads,
            name: "x".to_owned(),
            ..PoolSettings::default()
        };
        Pool::<TestJob>::start(settings, Arc::new(|| ())).err()
    };
    assert_eq!(make(0, 0), Some(PoolError::MaxThreads { max_threads: 0 }));
    assert_eq!(
        make(3, 2),
        Some(PoolError::MinOverMax {
            min_threads: 3,
            max_threads: 2
        })
    );
    let over = MAX_THREADS_LIMIT + 1;
    assert_eq!(
        make(0, over),
        Some(PoolError::MaxThreads { max_threads: over })
    );
    assert_eq!(make(0, 1), None);
    let mut fixture = pool(2);
    assert!(fixture.pool.set_limits(9, 3).is_err());
    assert_eq!(fixture.threads(), 0, "the minimum of 9 did not come true");
}

#[test]
fn without_any_thread_a_job_completes_with_eagain() {
    let mut fixture = pool(4);
    // No machine has room for such a stack, so no thread can be started.
    fixture.pool.stack_bytes = 1 << 56;
    fixture.add(5, Task::Return(Ok(())));
    assert_eq!(
        fixture.wait_for(1),
        [Completion {
            token: 5,
            result: Err(Errno::AGAIN)
        }]
    );
    assert_eq!(fixture.threads(), 0);
    assert!(matches!(
        fixture.pool.set_limits(1, 4),
        Err(PoolError::Start { .. })
    ));
    // With one thread there, the job waits for it instead.
    fixture.pool.stack_bytes = STACK_BYTES;
    let release = fixture.add_waiting(6..7);
    fixture.pool.stack_bytes = 1 << 56;
    fixture.add(7, Task::Return(Ok(())));
    drop(release);
    let done: Vec<_> = fixture
        .wait_for(2)
        .iter()
        .map(|c| (c.token, c.result))
        .collect();
    assert_eq!(done, [(6, Ok(())), (7, Ok(()))]);
}

#[test]
fn drop_runs_all_jobs() {
    let mut fixture = pool(2);
    let list = Arc::new(Mutex::new(Vec::new()));
    let release = fixture.add_waiting(0..1);
    for token in 1..50 {
        fixture.add(token, Task::Note(Arc::clone(&list)));
    }
    drop(release);
    drop(fixture.pool);
    let ran: BTreeSet<u64> = list.lock().unwrap().iter().copied().collect();
    assert_eq!(ran, (1..50).collect());
    assert_eq!(Arc::strong_count(&list), 1, "no worker is left");
}
