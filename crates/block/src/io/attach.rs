//! Sources that come and go: routes, and what the backends know of files and guest memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use engine::uring::File;

use super::{AttachedDisk, IoContext, LinuxAio, Uring};
use crate::aio::Aio;
use crate::drivers::disk_file::DiskFile;
use crate::drivers::disk_file::no_wait::lacks_nowait;
use crate::node::Node;
use crate::route::{Carrier, Route};

/// Watches the descriptor of an engine, see [`IoContext::attach`].
pub(crate) type Watch<'a> = &'a mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>;

/// What a node can do while a source attaches to it.
pub(crate) struct AttachContext<'a> {
    io: &'a mut IoContext,
    watch: Watch<'a>,
}

impl AttachContext<'_> {
    /// Attaches to a node.
    pub fn attach(&mut self, node: &Node) -> Route {
        node.driver.attach(node, self)
    }

    /// Which backend carries a file for this source, until that detaches.
    pub fn attach_file(&mut self, file: &Arc<DiskFile>) -> Carrier {
        let AttachContext { io, watch } = self;
        if let Some(carrier) = io.files.add_source(file) {
            return carrier;
        }
        let carrier = io.choose_carrier(file, watch);
        io.files.insert(file, carrier);
        carrier
    }

    /// What carries the flushes of a file: Linux AIO has none before Linux 4.18.
    pub fn carrier_of_flushes(&self, carrier: Carrier) -> Carrier {
        let aio = self.io.aio.get();
        match carrier {
            Carrier::Native if !aio.is_some_and(LinuxAio::supports_fdsync) => Carrier::Workers,
            carrier => carrier,
        }
    }
}

impl IoContext {
    /// A source of requests to `node` starts on this iothread: what its requests need is made. `watch` gets the
    /// descriptor of an engine that was made now. It becomes readable when the engine has completed something, is to be
    /// watched for edges, and never needs to be read.
    ///
    /// What cannot be had is no error: it is said once in the log, with what to do about it, and another backend carries
    /// the requests.
    pub fn attach(&mut self, node: &Arc<Node>, watch: Watch<'_>) -> AttachedDisk {
        let io = self;
        let route = AttachContext { io, watch }.attach(node);
        AttachedDisk {
            node: node.clone(),
            route,
        }
    }

    /// Which backend carries a file that has no source on this iothread yet.
    fn choose_carrier(&mut self, file: &DiskFile, watch: Watch<'_>) -> Carrier {
        let carrier = match file.aio {
            Aio::IoUring if self.make_ring(watch) => Carrier::Ring(self.register_file(file)),
            Aio::IoUring if file.direct.is_some() && self.make_aio(watch) => Carrier::Native,
            Aio::Native if self.make_aio(watch) => Carrier::Native,
            _ => Carrier::Workers,
        };
        if carrier == Carrier::Native
            && let Some(aio) = self.aio.get_mut()
            && lacks_nowait(file.fd.as_fd())
        {
            aio.watch(file.raw_fd());
        }
        carrier
    }

    /// A source, with nothing in flight any more, leaves this iothread.
    pub fn detach(&mut self, disk: AttachedDisk) {
        for file in &disk.route.files {
            match self.files.remove_source(file) {
                Some(Carrier::Native) => {
                    if let Some(aio) = self.aio.get_mut() {
                        aio.unwatch(file.raw_fd());
                    }
                }
                Some(Carrier::Ring(File::Registered(place))) => {
                    if let Some(ring) = self.ring.get_mut() {
                        ring.unregister_file(place);
                    }
                }
                Some(Carrier::Ring(File::Descriptor(_)) | Carrier::Workers) | None => {}
            }
        }
    }

    /// A source begins to use the guest memory that `key` names, which is pinned and registered with the ring from then on.
    /// What cannot be is said once in the log, and its requests go as if it were not asked for.
    ///
    /// # Safety
    /// The `ranges` (address, length) stay mapped until as many users have left.
    pub unsafe fn join_memory(
        &mut self,
        disk: &AttachedDisk,
        key: usize,
        ranges: impl Iterator<Item = (usize, usize)>,
    ) {
        let carrier = disk.route.disk.as_ref().map(|disk| disk.carrier);
        let carried = matches!(carrier, Some(Carrier::Ring(_)));
        let ring = self.ring.get_mut().filter(|_| carried);
        // SAFETY: our caller promises the same.
        unsafe { self.known_memory.join(ring, key, ranges) };
    }

    /// A source has no request under way in that memory any more, and will have none.
    pub fn leave_memory(&mut self, key: usize) {
        self.known_memory.leave(self.ring.get_mut(), key);
    }

    /// The source at this place, which is the upper half of its tokens, wants to end: nothing delays its requests any
    /// longer, until [`source_ended`](Self::source_ended).
    pub fn stop_source(&mut self, place: u32) {
        self.tasks.stop_source(place);
    }

    /// The source at this place waits for what it has asked for so far: none of that waits at a gate any longer.
    pub fn open_gates(&mut self, place: u32) {
        self.tasks.open_gates(place);
    }

    /// The source at this place has ended.
    pub fn source_ended(&mut self, place: u32) {
        self.tasks.source_ended(place);
    }

    fn make_aio(&mut self, watch: Watch<'_>) -> bool {
        let settings = self.aio_settings;
        // Only if there is none: to end a context takes the kernel many milliseconds, in which this thread waits.
        let make = || {
            #[cfg(feature = "simulation")]
            let made =
                LinuxAio::with_kernel(crate::simulation::the_only(&mut self.kernel), settings);
            #[cfg(not(feature = "simulation"))]
            let made = LinuxAio::new(settings);
            made.map_err(|error| error.to_string())
        };
        let watch = |aio: &LinuxAio| watch(aio.eventfd());
        let without = "no Linux AIO: worker threads do all I/O";
        self.aio.make(make, watch, without)
    }

    fn make_ring(&mut self, watch: Watch<'_>) -> bool {
        let settings = self.ring_settings;
        let make = || {
            #[cfg(feature = "simulation")]
            let made = crate::simulation::make_ring(&mut self.simulated_ring, settings);
            #[cfg(not(feature = "simulation"))]
            let made = Uring::new(settings);
            made.map_err(|error| error.to_string())
        };
        let watch = |ring: &Uring| watch(ring.eventfd());
        let without = "no io_uring: another backend does its I/O";
        self.ring.make(make, watch, without)
    }

    /// How the ring is to call a file: by its place in the table, if that has one for it.
    fn register_file(&mut self, file: &DiskFile) -> File {
        let (place, fd) = (file.id.number(), file.raw_fd());
        let ring = self.ring.get_mut();
        if ring.is_some_and(|ring| ring.register_file(place, fd)) {
            File::Registered(place)
        } else {
            File::Descriptor(fd)
        }
    }
}
