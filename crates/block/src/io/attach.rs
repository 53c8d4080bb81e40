//! Attaches a source to an iothread's backends, and detaches it: chooses the backend of each file, and registers files and guest
//! memory there.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use engine::uring::File;

use super::{IoContext, LinuxAio, Uring};
use crate::aio::Aio;
use crate::aio::nowait_probe::probe_lacks_nowait;
use crate::disk_file::DiskFile;
use crate::network::{NetworkDisk, NetworkQueueWithTaskShare};
use crate::route::{AttachedStorage, Carrier, Route};

/// Watches the descriptor of an engine, see [`IoContext::attach`].
pub(crate) type Watch<'a> = &'a mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>;

impl IoContext {
    /// Counts one more source of a file, and returns the backend that carries the file on this iothread.
    pub(crate) fn attach_file(&mut self, file: &Arc<DiskFile>, watch: Watch<'_>) -> Carrier {
        if let Some(carrier) = self.files.add_source_if_attached(file) {
            return carrier;
        }
        let carrier = self.choose_and_set_up_carrier(file, watch);
        self.files.insert_with_first_source(file, carrier);
        carrier
    }

    /// Counts one more source of a disk behind a network, and returns the disk's queue on this iothread.
    pub(crate) fn attach_network_disk(
        &mut self,
        disk: &Arc<dyn NetworkDisk>,
        watch: Watch<'_>,
    ) -> Rc<RefCell<NetworkQueueWithTaskShare>> {
        self.network.add_source(disk, &self.wake, watch)
    }

    /// The backend that carries the flushes of a file: Linux AIO has none before Linux 4.18.
    pub(crate) fn carrier_of_flushes(&self, carrier: Carrier) -> Carrier {
        match carrier {
            Carrier::Native if !self.aio.get().is_some_and(LinuxAio::supports_fdsync) => {
                Carrier::Workers
            }
            carrier => carrier,
        }
    }

    /// Chooses the backend of a file that has no source on this iothread yet.
    fn choose_and_set_up_carrier(&mut self, file: &DiskFile, watch: Watch<'_>) -> Carrier {
        let carrier = match file.aio {
            Aio::IoUring if self.has_or_makes_ring(watch) => {
                Carrier::Ring(self.register_file_or_use_fd(file))
            }
            Aio::IoUring if file.direct.is_some() && self.has_or_makes_aio(watch) => {
                Carrier::Native
            }
            Aio::Native if self.has_or_makes_aio(watch) => Carrier::Native,
            _ => Carrier::Workers,
        };
        if carrier == Carrier::Native
            && let Some(aio) = self.aio.get_mut()
            && probe_lacks_nowait(file.fd.as_fd())
        {
            aio.start_detecting_synchronous(file.raw_fd());
        }
        carrier
    }

    /// Ends a route, none of whose requests are in flight.
    pub(crate) fn detach_route(&mut self, route: &Route) {
        for storage in &route.storage {
            let file = match storage {
                AttachedStorage::File(file) => file,
                AttachedStorage::Network(disk) => {
                    self.network.remove_source(disk);
                    continue;
                }
            };
            match self.files.remove_source(file) {
                Some(Carrier::Native) => {
                    if let Some(aio) = self.aio.get_mut() {
                        aio.stop_detecting_synchronous(file.raw_fd());
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

    /// Counts a user of guest memory whose source has this route, see
    /// [`register_memory_or_count_user`](Self::register_memory_or_count_user).
    ///
    /// # Safety
    /// The `ranges` (address, length) stay mapped until as many users have left.
    pub(crate) unsafe fn count_user_and_register_if_on_ring(
        &mut self,
        route: &Route,
        key: usize,
        ranges: impl Iterator<Item = (usize, usize)>,
    ) {
        let carrier = route.disk.as_ref().map(|disk| disk.carrier);
        let ring_carries = matches!(carrier, Some(Carrier::Ring(_)));
        let ring = self.ring.get_mut().filter(|_| ring_carries);
        // SAFETY: our caller promises the same.
        unsafe { self.registered_memory.add_user(ring, key, ranges) };
    }

    /// Ends a use of guest memory. The source has no requests in flight in it, and will have none.
    pub fn remove_memory_user(&mut self, key: usize) {
        self.registered_memory.remove_user(self.ring.get_mut(), key);
    }

    /// Stops the delays of the source with this index, because it is about to end, and bounds its waits for disks behind a network. This
    /// holds until [`forget_ended_source`](Self::forget_ended_source).
    pub fn end_unbounded_waits(&mut self, source_index: u32) {
        self.tasks.end_unbounded_waits(source_index);
        self.network.end_unbounded_waits(source_index);
    }

    /// Lets these requests of a source, and no others, bypass their gates, because the source waits for them. `request_numbers` are the
    /// lower halves of their tokens.
    pub fn let_requests_bypass_gates(
        &mut self,
        source_index: u32,
        request_numbers: impl IntoIterator<Item = u32>,
    ) {
        let request_numbers = request_numbers.into_iter().collect();
        self.tasks
            .let_requests_bypass_gates(source_index, request_numbers);
    }

    /// Notes that the source with this index has ended.
    pub fn forget_ended_source(&mut self, source_index: u32) {
        self.tasks.forget_ended_source(source_index);
        self.network.forget_ended_source(source_index);
    }

    /// Makes Linux AIO when the first file needs it, and returns whether it exists.
    fn has_or_makes_aio(&mut self, watch: Watch<'_>) -> bool {
        let settings = self.aio_settings;
        // Only if there is none: the kernel takes many milliseconds to end a context, and this thread waits for it.
        let make = || {
            #[cfg(feature = "simulation")]
            let engine = LinuxAio::with_kernel(
                super::simulated::take_simulated_kernel(&mut self.kernel),
                settings,
            );
            #[cfg(not(feature = "simulation"))]
            let engine = LinuxAio::new(settings);
            engine.map_err(|error| error.to_string())
        };
        let watch = |aio: &LinuxAio| watch(aio.eventfd());
        let without = "no Linux AIO: worker threads do all I/O";
        self.aio.make_and_watch_once(make, watch, without)
    }

    /// Makes the ring when the first file needs it, and returns whether it exists.
    fn has_or_makes_ring(&mut self, watch: Watch<'_>) -> bool {
        let settings = self.ring_settings;
        let make = || {
            #[cfg(feature = "simulation")]
            let engine =
                super::simulated::make_engine_on_simulated_ring(&mut self.simulated_ring, settings);
            #[cfg(not(feature = "simulation"))]
            let engine = Uring::new(settings);
            engine.map_err(|error| error.to_string())
        };
        let watch = |ring: &Uring| watch(ring.eventfd());
        let without = "no io_uring: another backend does its I/O";
        self.ring.make_and_watch_once(make, watch, without)
    }

    /// Registers a file with the ring, and returns the ring's name for it: its place in the table, if there is one.
    fn register_file_or_use_fd(&mut self, file: &DiskFile) -> File {
        let (place, fd) = (file.id.as_u32(), file.raw_fd());
        let ring = self.ring.get_mut();
        if ring.is_some_and(|ring| ring.try_register_file(place, fd)) {
            File::Registered(place)
        } else {
            File::Descriptor(fd)
        }
    }
}
