//! Linux AIO or io_uring on a file, or librbd on an image, each with the daemon's settings.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use ceph::{ClusterOptions, Connections, Image, ImageOptions, ImageQueue};
use engine::{
    AioSettings, Completion, Full, IoBackend, LinuxAio, Op, Request, Uring, UringSettings, uring,
};
use libc::iovec;
use rustix::event::{EventfdFlags, eventfd};

/// A disk to read from.
#[derive(Clone)]
pub enum Disk {
    File(Arc<File>, FileEngine),
    Image(Arc<Image>),
}

#[derive(Clone, Copy)]
pub enum FileEngine {
    Native,
    Uring,
}

impl Disk {
    /// A file with the engine `native` or `io_uring`, or an image `POOL/IMAGE` with `rbd`.
    pub fn open(name: &str, engine: &str) -> Result<Self, Box<dyn Error>> {
        let engine = match engine {
            "native" => FileEngine::Native,
            "io_uring" => FileEngine::Uring,
            "rbd" => return open_image(name),
            other => return Err(format!("{other}: native, io_uring or rbd is expected").into()),
        };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(name)?;
        Ok(Disk::File(Arc::new(file), engine))
    }

    /// Its size in bytes.
    pub fn size(&self) -> Result<u64, Box<dyn Error>> {
        Ok(match self {
            Disk::File(file, _) => file.metadata()?.len(),
            Disk::Image(image) => image.geometry().size,
        })
    }
}

/// Opens an image of the cluster that `CEPH_CONF` or librados' usual places name.
fn open_image(name: &str) -> Result<Disk, Box<dyn Error>> {
    let (pool, image) = name.split_once('/').ok_or("POOL/IMAGE is expected")?;
    let options = ImageOptions {
        pool: pool.to_owned(),
        namespace: None,
        image: image.to_owned(),
        snapshot: None,
        read_only: true,
    };
    let connection = Connections::of_process().get(&ClusterOptions::default())?;
    let image = Image::open(&connection, &options, Arc::new(|| ()))?;
    Ok(Disk::Image(image))
}

pub enum Engine {
    Aio(Box<LinuxAio>, Arc<File>),
    Uring(Box<Uring>, Arc<File>),
    Rbd(Box<ImageQueue>, Arc<OwnedFd>),
}

impl Engine {
    /// For one thread's reads of a disk.
    pub fn new(disk: &Disk) -> Result<Self, Box<dyn Error>> {
        Ok(match disk {
            Disk::File(file, FileEngine::Native) => {
                let aio = LinuxAio::new(AioSettings::default())?;
                Engine::Aio(Box::new(aio), file.clone())
            }
            Disk::File(file, FileEngine::Uring) => {
                let uring = Uring::new(UringSettings::default())?;
                Engine::Uring(Box::new(uring), file.clone())
            }
            Disk::Image(image) => {
                let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
                let completed = Arc::new(eventfd(0, flags)?);
                let signalled = completed.clone();
                let wake = move || crate::disk::signal(&signalled);
                let queue = ImageQueue::new(image.clone(), Arc::new(wake));
                Engine::Rbd(Box::new(queue), completed)
            }
        })
    }

    /// The eventfd that signals completions while the thread sleeps.
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        match self {
            Engine::Aio(aio, _) => aio.eventfd(),
            Engine::Uring(uring, _) => uring.eventfd(),
            Engine::Rbd(_, completed) => completed.as_fd(),
        }
    }

    /// Reads into `buffer` from `offset` on; the completion has `token`.
    ///
    /// # Safety
    /// As for [`LinuxAio::start_or_queue`].
    #[inline]
    pub unsafe fn read(
        &mut self,
        offset: u64,
        buffer: *mut iovec,
        len: u64,
        token: u64,
    ) -> Result<(), Full> {
        let request = Request {
            op: Op::Read,
            fua: false,
            offset,
            iov: buffer,
            iov_count: 1,
            len,
            token,
        };
        // SAFETY: the caller meets the requirements of all; the file stays open as long as the engine.
        unsafe {
            match self {
                Engine::Aio(aio, file) => aio.start_or_queue(file.as_raw_fd(), &request),
                Engine::Uring(uring, file) => {
                    uring.start_or_queue(uring::File::Descriptor(file.as_raw_fd()), &request)
                }
                Engine::Rbd(queue, _) => queue.start(&request),
            }
        }
    }

    #[inline]
    pub fn submit(&mut self) {
        match self {
            Engine::Aio(aio, _) => aio.submit(),
            Engine::Uring(uring, _) => uring.submit(),
            Engine::Rbd(..) => {}
        }
    }

    #[inline]
    pub fn has_completions(&self) -> bool {
        match self {
            Engine::Aio(aio, _) => aio.has_completions(),
            Engine::Uring(uring, _) => uring.has_completions(),
            Engine::Rbd(queue, _) => queue.has_completions(),
        }
    }

    #[inline]
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        match self {
            Engine::Aio(aio, _) => aio.reap(out),
            Engine::Uring(uring, _) => uring.reap(out),
            Engine::Rbd(queue, _) => queue.reap(out),
        }
    }

    /// Prepares for the thread to sleep; true if there is a completion instead.
    pub fn prepare_to_block_and_recheck(&mut self) -> bool {
        match self {
            Engine::Aio(aio, _) => aio.has_completions(),
            Engine::Uring(uring, _) => uring.prepare_to_block_and_recheck(),
            Engine::Rbd(queue, _) => queue.has_completions(),
        }
    }
}
