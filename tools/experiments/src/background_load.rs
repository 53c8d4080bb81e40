//! Threads that keep processors busy and give way to all others.
//!
//! A thread is woken within a microsecond on a processor that idles for a moment, in five to twenty where it sleeps (in a virtual
//! machine) or something runs. Two measurements, one of which leaves processors idle, cannot be compared.
//!
//! They sleep now and then: threads of the kernel that end direct writes of files waited up to 26 s for a `SCHED_IDLE` thread that
//! never slept, on a processor that a client used as well (Linux 6.18).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bench::Result;
use bench::cpus::{give_way, pin, usable};

/// Time between two sleeps of a thread. A sleep takes some fifty microseconds, the kernel's timer slack.
const SPIN: Duration = Duration::from_micros(500);

/// A thread for each processor, until this is dropped.
pub(crate) struct BackgroundLoad {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BackgroundLoad {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the kernel does not say where we may run, or the threads may not give way.
    pub fn start() -> Result<Self> {
        let mut load = BackgroundLoad {
            ends: Arc::default(),
            threads: Vec::new(),
        };
        for cpu in usable()? {
            let ends = load.ends.clone();
            let (started, result) = std::sync::mpsc::channel();
            load.threads.push(std::thread::spawn(move || {
                let ready = pin(cpu).and_then(|()| give_way());
                let is_ready = ready.is_ok();
                let _ = started.send(ready);
                while is_ready && !ends.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    while began.elapsed() < SPIN {
                        std::hint::spin_loop();
                    }
                    std::thread::sleep(Duration::from_nanos(1));
                }
            }));
            if let Ok(ready) = result.recv() {
                ready?;
            }
        }
        Ok(load)
    }
}

impl Drop for BackgroundLoad {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
