//! One unit that several threads reach, each with a task and an initiator of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use block::Request;
use libc::iovec;
use scsi::{AdapterStep, NexusNumber, Resume, Status, Target, TargetView, Task, Unit, Waker};
use test_support::disk::carry_out;

use crate::rig::{BLOCK, cdb10, cdb16, geometry, options, ports};

const THREADS: u16 = 4;

const LUN: u16 = 0;

/// A bound on a hanging test.
const PATIENCE: Duration = Duration::from_secs(60);

struct Wake(Sender<()>);

impl Resume for Wake {
    fn schedule_resume(&self, _token: u64) {
        self.0.send(()).unwrap();
    }
}

/// A disk whose requests of different threads come between each other.
#[derive(Clone)]
struct Disk(Arc<Mutex<Vec<u8>>>);

impl Disk {
    fn node(&self, request: Request) {
        thread::yield_now();
        let mut disk = self.0.lock().unwrap();
        // SAFETY: requests bring valid lists, and the disk's memory is its own.
        unsafe { carry_out(&mut disk, &request) };
    }
}

struct Initiator {
    nexus: NexusNumber,
    view: TargetView,
    task: Task,
    woken: Receiver<()>,
    disk: Disk,
}

impl Initiator {
    fn new(target: &Arc<Target>, disk: &Disk, nexus: NexusNumber) -> Self {
        let (sender, woken) = channel();
        target.attach_initiator_and_start_units(nexus, &ports(nexus));
        let mut new = Initiator {
            nexus,
            view: TargetView::new(target.clone()),
            task: Task::new(Waker {
                resume: Arc::new(Wake(sender)),
                token: 0,
            }),
            woken,
            disk: disk.clone(),
        };
        assert_eq!(new.send(&[0; 6], &mut []), Status::CheckCondition);
        new
    }

    fn send(&mut self, cdb: &[u8], memory: &mut [u8]) -> Status {
        self.task.receive(&mut self.view, LUN, self.nexus, cdb);
        let mut list = [iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: memory.len(),
        }];
        // SAFETY: memory and list stay until the task is finished, below.
        let mut step = unsafe { self.task.run(list.as_mut_ptr(), 1, memory.len() as u64) };
        loop {
            step = match step {
                AdapterStep::Finished => return self.task.status(),
                AdapterStep::Submit(request) => {
                    self.disk.node(request);
                    self.task.on_step_completed(Ok(()))
                }
                AdapterStep::Wait => {
                    self.woken.recv_timeout(PATIENCE).expect("its turn");
                    self.task.on_resumed().unwrap()
                }
                other => panic!("{other:?}"),
            };
        }
    }
}

fn target() -> (Arc<Target>, Arc<Unit>, Disk) {
    let unit = Arc::new(Unit::new(options(), geometry()).unwrap());
    let target = Target::new();
    target
        .add_unit_and_raise_attentions(LUN, unit.clone())
        .unwrap();
    let disk = Disk(Arc::new(Mutex::new(vec![0; 64 * BLOCK])));
    (target, unit, disk)
}

/// COMPARE AND WRITE counts in a block while ORWRITE sets bits in the same block.
#[test]
fn compare_and_write_and_or_write_lose_no_update() {
    const COUNTS: u64 = 300;
    /// The counter's bytes; bits are behind them.
    const COUNTER: usize = 8;
    const BITS: usize = 400;
    let (target, _, disk) = target();
    let mut compare = cdb16(0x89, 0, 5, 0);
    compare[13] = 1;
    let mut threads = Vec::new();
    for nexus in 0..2 {
        let mut initiator = Initiator::new(&target, &disk, NexusNumber(nexus));
        threads.push(thread::spawn(move || {
            let mut counted = 0;
            while counted < COUNTS {
                let mut both = vec![0; 2 * BLOCK];
                let read = initiator.send(&cdb10(0x28, 0, 5, 1), &mut both[..BLOCK]);
                assert_eq!(read, Status::Good);
                both.copy_within(..BLOCK, BLOCK);
                let now = u64::from_le_bytes(both[..COUNTER].try_into().unwrap());
                both[BLOCK..BLOCK + COUNTER].copy_from_slice(&(now + 1).to_le_bytes());
                if initiator.send(&compare, &mut both) == Status::Good {
                    counted += 1;
                }
            }
        }));
    }
    for nexus in 2..4 {
        let mut initiator = Initiator::new(&target, &disk, NexusNumber(nexus));
        threads.push(thread::spawn(move || {
            for at in 0..BITS {
                let mut bits = vec![0; BLOCK];
                bits[COUNTER + at] = 1 << nexus;
                let set = initiator.send(&cdb16(0x8b, 0, 5, 1), &mut bits);
                assert_eq!(set, Status::Good);
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let disk = disk.0.lock().unwrap();
    let block = &disk[5 * BLOCK..6 * BLOCK];
    let count = u64::from_le_bytes(block[..COUNTER].try_into().unwrap());
    assert_eq!(count, 2 * COUNTS);
    let lost = block[COUNTER..COUNTER + BITS]
        .iter()
        .position(|bits| *bits != 0b1100);
    assert_eq!(lost, None, "a bit");
}

#[test]
fn every_change_is_reported_once_to_each_initiator_during_reads() {
    const CHANGES: u64 = 50;
    let (target, unit, disk) = target();
    let over = Arc::new(AtomicBool::new(false));
    let reading = (0..THREADS).map(|nexus| {
        let mut initiator = Initiator::new(&target, &disk, NexusNumber(nexus));
        let over = over.clone();
        thread::spawn(move || {
            let mut heard = 0;
            loop {
                let last = over.load(Ordering::Acquire);
                match initiator.send(&cdb10(0x28, 0, 0, 1), &mut [0; BLOCK]) {
                    Status::Good if last => return heard,
                    Status::Good => {}
                    Status::CheckCondition => heard += 1,
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    let reading: Vec<_> = reading.collect();
    for change in 0..CHANGES {
        assert!(unit.resize((100 + change) * BLOCK as u64));
        thread::yield_now();
    }
    over.store(true, Ordering::Release);
    for thread in reading {
        let heard: u64 = thread.join().unwrap();
        assert!((1..=CHANGES).contains(&heard), "{heard}");
    }
}
