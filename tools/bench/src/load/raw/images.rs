//! The same load on images of Ceph RBD without a server: one thread that does nothing but call librbd.

use std::sync::Arc;
use std::time::Duration;

use ceph::{Connections, Image, MAX_IN_FLIGHT};

use super::engine::Engine;
use super::image_queues::ImageQueues;
use super::{Buffers, submitting};
use crate::cpus::{Pinned, pin};
use crate::error::{Error, Result};
use crate::load::driver::Waiting;
use crate::load::phases::{Phases, Worker, conduct};
use crate::load::usage::UsageSampler;
use crate::load::{Load, Measured, Walk};
use crate::rbd_image::RbdImage;

/// For the cluster to let a client go.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Puts `load` on each of the images, which are open only meanwhile. Queues of an image become one, and all requests are
/// of one thread. It sleeps until librbd wakes it, whatever the load says: a thread that polled would take the processor
/// from librbd's threads, which run on `cpus` too. Processor time is that of this process, librbd's threads included.
///
/// # Errors
/// [`Error::Unsuitable`] when librbd is missing, an image cannot be opened or is too small, or for too many requests in
/// flight; [`Error::Requests`] when a request fails or is not answered.
pub fn measure(
    images: &[RbdImage],
    load: &Load,
    cpus: &[usize],
    warm_up: Duration,
    time: Duration,
) -> Result<Measured> {
    let slots = usize::from(load.depth) * usize::from(load.queues);
    if slots > MAX_IN_FLIGHT {
        return Err(Error::Unsuitable(format!(
            "{slots} requests in flight on an image are more than the {MAX_IN_FLIGHT} that are possible without a server: \
             lower --depth or --queues, or leave raw out of --servers"
        )));
    }
    let measured = open(images, load, cpus)
        .and_then(|images| on_open_images(&images, slots, load, cpus, warm_up, time));
    // The images are dropped; what is left of the connection would run beside the next contender.
    if !ceph::wait_for_connections(CLOSE_LIMIT) {
        return measured.and(Err(Error::Requests(format!(
            "the cluster has not closed its connection within {CLOSE_LIMIT:?}"
        ))));
    }
    measured
}

fn open(images: &[RbdImage], load: &Load, cpus: &[usize]) -> Result<Vec<Arc<Image>>> {
    // librbd's threads run where the one does that opens the connection.
    let _pinned = Pinned::to(cpus)?;
    let unsuitable = |error: String| Error::Unsuitable(error);
    let one = |image: &RbdImage| {
        let connection = Connections::of_process()
            .get(&image.cluster_options())
            .map_err(|error| unsuitable(error.to_string()))?;
        let options = image.image_options(!load.pattern.writes());
        Image::open(&connection, &options, Arc::new(|| ()))
            .map_err(|error| unsuitable(error.to_string()))
    };
    images.iter().map(one).collect()
}

fn on_open_images(
    images: &[Arc<Image>],
    slots: usize,
    load: &Load,
    cpus: &[usize],
    warm_up: Duration,
    time: Duration,
) -> Result<Measured> {
    let walks = (0..).zip(images).map(|(index, image)| {
        let blocks = load.blocks_of(image.geometry().size)?;
        Ok(Walk::new(load.pattern, blocks, index, 1))
    });
    let walks = walks.collect::<Result<Vec<_>>>()?;
    let buffers = Arc::new(Buffers::new(slots * images.len(), load)?);
    let queues = ImageQueues::new(images, slots)?;
    let cpu = cpus.first().copied();
    let worker = move |phases: &Phases| {
        if let Some(cpu) = cpu {
            pin(cpu)?;
        }
        let engine = Engine::Images(queues);
        submitting(buffers, engine, walks, load, Waiting::Blocking, phases)
    };
    let mut usage = UsageSampler::new(Some(std::process::id()));
    let threads = conduct(
        vec![Box::new(worker) as Worker<'_>],
        warm_up,
        time,
        |phase| {
            usage.look(phase);
            Ok(())
        },
    )?;
    Ok(Measured {
        block_bytes: load.block_bytes,
        threads,
        server: usage.used(),
    })
}
