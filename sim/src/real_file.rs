//! Power failures of a real file: the daemon writes to it through the kernel, and what it issued is put together again in
//! every way that a disk may have, at every moment.
//!
//! A write that was under way, or not flushed, is on the disk or is not; and what is has come there in any order. What was
//! done when a flush came to the disk is there once that flush is done. For each image that can be, the [model](crate::model)
//! says whether a guest may find it.

use std::path::Path;
use std::time::{Duration, Instant};

use block::{Aio, FileOptions, Locking, Node, NodeOptions};
use iothread::OnError;
use virtqueue::queue_setup::{QueueFds, QueueSetup};

use crate::daemon::Daemon;
use crate::disk::DiskOp;
use crate::guest::Guest;
use crate::model::{Model, SECTOR};
use crate::nodes::Nodes;
use crate::plan::{Config, DriverFeatures, Filters, Kind, Then};
use crate::random::Random;
use crate::recorder::{RecordedRequest, Recorder};
use crate::trace::Trace;

/// Sectors of the file: as few as 4 KiB blocks allow for some overlap.
const SECTORS: u16 = 32;
/// Of a request: a block of any disk.
const BLOCK: u64 = 8;
/// Writes that are not flushed, at most: all orders of so many are gone through.
const MAX_LOOSE: usize = 4;
/// How long a disk may take. It is only there so that something says so.
const PATIENCE: Duration = Duration::from_secs(120);

/// What was gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// Moments at which power failed.
    pub moments: u64,
    /// What the disk may have held then.
    pub images: u64,
}

/// DeviceSetup a file in this folder to a guest that does as the seed says. `None`: its file system has no direct I/O
/// of sectors.
///
/// # Errors
/// What a guest would find and must not.
pub fn power_failures(folder: &Path, seed: u64) -> Result<Option<Images>, String> {
    let path = folder.join("disk");
    let file = std::fs::File::create(&path).map_err(|error| error.to_string())?;
    let bytes = usize::from(SECTORS) * SECTOR;
    let zeroes = vec![0; bytes];
    std::fs::write(&path, zeroes).map_err(|error| error.to_string())?;
    drop(file);
    let options = NodeOptions::File(FileOptions {
        path,
        direct: true,
        no_flush: false,
        unmap: false,
        aio: Aio::Native,
        aio_max_batch: 0,
        locking: Locking::Off,
        force_share: false,
    });
    let Ok(node) = Node::open("disk", false, &options) else {
        return Ok(None);
    };
    let mut random = Random::new(seed);
    let config = config(&mut random);
    let recorder = Recorder::default();
    let kernels = std::iter::once(Box::new(recorder.clone()) as Box<_>);
    let mut load = Load {
        guest: Guest::new(&config, Trace::default()),
        daemon: Daemon::of(&config, Nodes::of(node), kernels),
        recorder,
        moments: Vec::new(),
        unfit: false,
    };
    load.start();
    for _ in 0..random.pick(&[4, 8, 16]) {
        load.step(&mut random)?;
    }
    load.drain()?;
    match load.unfit {
        true => Ok(None),
        false => load.check().map(Some),
    }
}

fn config(random: &mut Random) -> Config {
    Config {
        packed: random.one_in(2),
        event_idx: true,
        indirect: false,
        iothreads: 1,
        client: false,
        queues: 1,
        size: 16,
        base: 0,
        inflight: false,
        write_through: random.one_in(3),
        merging: random.one_in(2),
        sectors: SECTORS,
        io_uring: false,
        filters: Filters::default(),
        throttling: None,
        max_events: 16,
        memory_alignment: 512,
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

struct Load {
    guest: Guest,
    daemon: Daemon,
    recorder: Recorder,
    /// What the guest knew at each time of the recorder's clock.
    moments: Vec<Model>,
    /// Direct I/O wants memory to be aligned to more than a sector here: workers do it, past the recorder.
    unfit: bool,
}

impl Load {
    fn start(&mut self) {
        let queue = &self.guest.queues[0];
        let start = QueueSetup {
            layout: queue.driver.layout(),
            features: self.guest.features(),
            base: queue.driver.base_after_crash(),
            inflight: None,
            log: None,
            descriptors: QueueFds {
                call: Some(queue.call.try_clone().expect("a descriptor")),
                ..QueueFds::default()
            },
            memory: self.guest.memory.guest_memory(),
            enabled: true,
        };
        self.daemon.start(0, start);
    }

    /// The guest asks for a few, and looks.
    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        // What is under way and what is not flushed stays little.
        if self.loose() >= MAX_LOOSE - 1 {
            self.guest.ask(0, Kind::Flush, (0, 1), 0);
            self.guest.shows_all();
            return self.drain();
        }
        let kind = random.pick(&[
            Kind::Write,
            Kind::Write,
            Kind::Write,
            Kind::Flush,
            Kind::Read,
        ]);
        let first = random.below(u64::from(SECTORS) / BLOCK) * BLOCK;
        self.guest.ask(0, kind, (first, BLOCK), 0);
        if !random.one_in(3) {
            self.guest.shows_all();
            self.turn()?;
        }
        match random.below(3) {
            0 => self.drain(),
            _ => Ok(()),
        }
    }

    /// Writes that are not known to be stable.
    fn loose(&self) -> usize {
        let log = self.recorder.log();
        let asked = self.guest.asked.values();
        let to_come = asked.filter(|asked| asked.kind == Kind::Write).count();
        loose(&log.requests, log.clock).len() + to_come
    }

    /// The iothread runs once, and the guest looks.
    fn turn(&mut self) -> Result<(), String> {
        self.remember();
        let kicked = std::mem::take(&mut self.guest.queues[0].kicks) > 0;
        if let Some(running) = self.daemon.queues[0].filter(|_| kicked) {
            self.daemon.wakeups(0).state().kick(running.kick);
        }
        // The kernel's completions are not signalled; the iothread polls for them.
        self.daemon.wakeups(0).state().wake();
        self.daemon.iothread(0).1.borrow_mut().iterate();
        self.remember();
        self.guest.look(0, Then::Polls);
        self.guest.wrong.take().map_or(Ok(()), Err)
    }

    /// Until all is answered.
    fn drain(&mut self) -> Result<(), String> {
        self.guest.shows_all();
        let begun = Instant::now();
        while !self.guest.asked.is_empty() {
            self.turn()?;
            while self.daemon.waiting_job_count() > 0 {
                self.unfit = true;
                self.daemon.run_or_fail_job(0, None);
            }
            if begun.elapsed() > PATIENCE {
                return Err("the disk does not answer".to_owned());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// The guest knew this at all times since it was last remembered.
    fn remember(&mut self) {
        let clock = usize::try_from(self.recorder.log().clock).expect("small");
        let model = &self.guest.model;
        self.moments.resize_with(clock + 1, || model.clone());
        // What it has heard meanwhile counts from here.
        self.moments[clock].clone_from(model);
    }

    fn check(&self) -> Result<Images, String> {
        let log = self.recorder.log();
        let mut images = Images::default();
        for (clock, model) in (0..).zip(&self.moments) {
            let loose = loose(&log.requests, clock);
            assert!(loose.len() <= MAX_LOOSE + 1, "too much to go through");
            let mut image = vec![0; usize::from(SECTORS) * SECTOR];
            for stable in stable(&log.requests, clock) {
                put(&mut image, stable);
            }
            let mut model = model.clone();
            let end = u64::MAX - 1;
            model.power_failed(end);
            images.moments += 1;
            let mut look = |image: &[u8]| {
                images.images += 1;
                for (sector, bytes) in (0..).zip(image.chunks(SECTOR)) {
                    model.check(sector, bytes, end)?;
                }
                Ok(())
            };
            each_order(&image, &loose, &mut look).map_err(|wrong: String| {
                format!("power failed behind step {clock} of {}: {wrong}", log.clock)
            })?;
        }
        Ok(images)
    }
}

fn put(image: &mut [u8], write: &RecordedRequest) {
    image[write.offset..][..write.bytes.len()].copy_from_slice(&write.bytes);
}

/// Whether a write is on the disk for sure at that time.
fn is_stable(write: &RecordedRequest, all: &[RecordedRequest], clock: u64) -> bool {
    let by = |done: Option<u64>| done.is_some_and(|done| done <= clock);
    let flushes = all
        .iter()
        .filter(|request| request.does == DiskOp::Flush && by(request.done));
    let mut covers = flushes.filter(|flush| write.done.is_some_and(|done| done < flush.taken));
    write.does == DiskOp::Write { stable: true } && by(write.done) || covers.next().is_some()
}

fn writes(all: &[RecordedRequest], clock: u64) -> impl Iterator<Item = &RecordedRequest> {
    all.iter().filter(move |request| {
        matches!(request.does, DiskOp::Write { .. }) && request.taken <= clock
    })
}

fn stable(all: &[RecordedRequest], clock: u64) -> impl Iterator<Item = &RecordedRequest> {
    writes(all, clock).filter(move |write| is_stable(write, all, clock))
}

fn loose(all: &[RecordedRequest], clock: u64) -> Vec<&RecordedRequest> {
    writes(all, clock)
        .filter(|write| !is_stable(write, all, clock))
        .collect()
}

/// Each image that some of these make, in some order, on top of this one.
fn each_order(
    image: &[u8],
    left: &[&RecordedRequest],
    look: &mut impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    look(image)?;
    for index in 0..left.len() {
        let mut rest = left.to_vec();
        let mut image = image.to_vec();
        put(&mut image, rest.remove(index));
        each_order(&image, &rest, look)?;
    }
    Ok(())
}
