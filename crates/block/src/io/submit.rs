//! Room for requests, and their submission to a file's backend or through a route's lookup, gate, mark or async task; polls
//! woken tasks and submits their I/O.

use std::rc::Rc;
use std::sync::Arc;

use engine::{Full, IoBackend, Op, Request, fair_room};

use super::guarded_requests::RequestGuard;
use super::{CALL_COST_BYTES, COPIED_BYTE_FACTOR, IoContext, LinuxAio, WORKER_COST_BYTES};
use crate::disk_file::DiskFile;
use crate::disk_file::clone::CloneRange;
use crate::disk_file::transfer::IOV_MAX;
use crate::null_disk::{CAPACITY, fill_with_zeroes};
use crate::route::mark::MarkedRoute;
use crate::route::task::{BackendRequest, RingRequest, SharedResource, TaskNode};
use crate::route::{Carrier, FileTarget, LookupResult, MappedNode, OpHandler, Route};
use crate::token;

/// Largest transfer whose data the kernel may copy on an iothread with several files, in bytes. It takes about 30 us.
const MAX_COPIED_BYTES: u64 = 128 << 10;

impl IoContext {
    /// How many requests on a route are certain to be taken before the next reap.
    #[inline]
    pub(crate) fn room_on_route(&self, route: &Route) -> usize {
        // A discard or flush that needs nothing done takes a place in the null queue, on any route.
        self.room_of_handler(&route.read)
            .min(self.null_queue.room())
    }

    /// The same for a source that has so many requests in flight already: sources share the places of a backend
    /// [fairly](engine::fair_room), so that one with a slow disk does not take all of them.
    #[inline]
    pub(crate) fn fair_room_on_route(&self, route: &Route, in_flight: usize) -> usize {
        let room = self.room_on_route(route);
        let Some(places) = self.shared_places_of_handler(&route.read) else {
            return room;
        };
        // Some of the source's requests may be elsewhere. While nothing occupies a place, it gets some.
        fair_room(room, in_flight.min(places.saturating_sub(room)))
    }

    /// How many places the backend of a handler has, if sources share them until their requests have completed.
    #[inline]
    fn shared_places_of_handler(&self, handler: &OpHandler) -> Option<usize> {
        let carrier = match handler {
            OpHandler::File(target) => target.carrier,
            OpHandler::Lookup(node) => node.target().carrier,
            OpHandler::Gated(gated) => return self.shared_places_of_handler(&gated.below.read),
            OpHandler::Filtered(filter) => {
                return self.shared_places_of_handler(&filter.below().read);
            }
            OpHandler::Marked(marked) => return self.shared_places_of_handler(&marked.below.read),
            OpHandler::Null(options) if options.latency_ns > 0 => return Some(CAPACITY),
            OpHandler::Null(_)
            | OpHandler::Network(_)
            | OpHandler::Task(_)
            | OpHandler::Nothing => {
                return None;
            }
        };
        let events = match carrier {
            Carrier::Native => self.aio.get()?.max_events(),
            Carrier::Ring(_) => self.ring.get()?.max_events(),
            Carrier::Workers => return None,
        };
        Some(events as usize)
    }

    /// How many requests a handler is certain to take before the next reap.
    #[inline]
    fn room_of_handler(&self, handler: &OpHandler) -> usize {
        match handler {
            OpHandler::File(target) => self.room_for_sources(target.carrier),
            OpHandler::Null(options) => self.null_queue.room_for(options),
            OpHandler::Network(target) => target.queue.borrow().room_for_sources(),
            OpHandler::Lookup(node) => self.room_for_sources(node.target().carrier),
            OpHandler::Task(_) | OpHandler::Nothing => usize::MAX,
            OpHandler::Gated(gated) => self.room_of_handler(&gated.below.read),
            OpHandler::Filtered(filter) => self.room_of_handler(&filter.below().read),
            OpHandler::Marked(marked) => self.room_of_handler(&marked.below.read),
        }
    }

    /// How many requests a backend takes from sources: its room, without the part that is reserved for tasks.
    #[inline]
    fn room_for_sources(&self, carrier: Carrier) -> usize {
        let reserved = match carrier {
            Carrier::Native => self.aio_share.reserved_room(),
            Carrier::Ring(_) => self.ring_share.reserved_room(),
            Carrier::Workers => 0,
        };
        self.room_of_carrier(carrier).saturating_sub(reserved)
    }

    /// How many requests a backend takes.
    #[inline]
    fn room_of_carrier(&self, carrier: Carrier) -> usize {
        let room = match carrier {
            Carrier::Native => self.aio.get().map(LinuxAio::room),
            Carrier::Ring(_) => self.ring.get().map(|ring| ring.room()),
            Carrier::Workers => Some(self.workers.room()),
        };
        room.unwrap_or(0)
    }

    /// Submits a request with the handler that its route has for its operation. Where a gate does not let it pass, starts a
    /// task that waits there.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    #[inline]
    pub(crate) unsafe fn submit_to_handler(
        &mut self,
        mut handler: &OpHandler,
        request: Request,
    ) -> Result<(), Full> {
        loop {
            handler = match handler {
                OpHandler::Gated(gated) if !gated.try_pass(&request) => {
                    return self.spawn_task(gated.clone(), request);
                }
                OpHandler::Filtered(filter) if !filter.lets_pass(&request) => {
                    return self.spawn_task(filter.clone(), request);
                }
                OpHandler::Gated(gated) => gated.below.handler(request.op),
                OpHandler::Filtered(filter) => filter.below().handler(request.op),
                _ => break,
            }
        }
        // SAFETY: our caller promises the same.
        unsafe {
            match handler {
                OpHandler::File(target) => self.submit_to_carrier_or_worker(target, &request),
                OpHandler::Null(options) => self.null_queue.start_or_queue(*options, &request),
                OpHandler::Nothing => self.null_queue.complete_at_next_reap(request.token),
                OpHandler::Network(target) => {
                    let source_token = self.guarded.source_token(request.token);
                    target.submit(&request, token::source_index(source_token))
                }
                OpHandler::Lookup(node) => self.submit_to_lookup(node, request),
                OpHandler::Task(node) => self.spawn_task(node.clone(), request),
                OpHandler::Gated(_) | OpHandler::Filtered(_) => {
                    unreachable!("the request has passed all of them")
                }
                OpHandler::Marked(marked) => self.submit_with_mark(marked, request),
            }
        }
    }

    /// Starts a task that carries out a request.
    fn spawn_task(&mut self, node: Rc<dyn TaskNode>, request: Request) -> Result<(), Full> {
        let source_token = self.guarded.source_token(request.token);
        self.tasks.spawn(node, request, source_token);
        Ok(())
    }

    /// Submits a request under a token of its own, which keeps its mark until it has completed.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    #[inline(never)]
    unsafe fn submit_with_mark(
        &mut self,
        marked: &MarkedRoute,
        request: Request,
    ) -> Result<(), Full> {
        let mark = RequestGuard::Mark(marked.make_pending_mark(&request));
        let token = self.guarded.add_guard(request.token, mark);
        let handler = marked.below.handler(request.op);
        // SAFETY: our caller promises the same.
        let taken = unsafe { self.submit_to_handler(handler, Request { token, ..request }) };
        if taken.is_err() {
            self.guarded.drop_guard_of_refused(token);
        }
        taken
    }

    /// Submits a request to the place that the lookup finds, with a lease on it; starts the node's task if it finds none.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    #[inline(never)]
    unsafe fn submit_to_lookup(
        &mut self,
        node: &Rc<dyn MappedNode>,
        request: Request,
    ) -> Result<(), Full> {
        match node.lookup(&request) {
            Some(LookupResult::At(offset, lease)) => {
                let token = self
                    .guarded
                    .add_guard(request.token, RequestGuard::Lease(lease));
                let mapped = Request {
                    offset,
                    token,
                    ..request
                };
                // SAFETY: our caller promises the same.
                let taken = unsafe { self.submit_to_carrier_or_worker(node.target(), &mapped) };
                if taken.is_err() {
                    self.guarded.drop_guard_of_refused(token);
                }
                taken
            }
            Some(LookupResult::Zeroes) => {
                self.null_queue.complete_at_next_reap(request.token)?;
                // SAFETY: our caller promises that the segments are valid.
                unsafe { fill_with_zeroes(request.iov, request.iov_count) };
                Ok(())
            }
            None => self.spawn_task(node.clone(), request),
        }
    }

    /// Submits a request to the backend that carries the file, or to a worker if that cannot carry the request.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    #[inline]
    unsafe fn submit_to_carrier_or_worker(
        &mut self,
        target: &FileTarget,
        request: &Request,
    ) -> Result<(), Full> {
        let request = &target.to_file_request(request);
        let carrier = self.choose_carrier(target, request);
        if self.has_other_files() {
            let copied = match self.is_copied_within_the_call(&target.file, carrier) {
                true => COPIED_BYTE_FACTOR * request.len,
                false => 0,
            };
            self.count_cost(CALL_COST_BYTES + copied);
        }
        // SAFETY: our caller promises the same, and that the target keeps the file open.
        unsafe { self.submit_to_chosen_carrier(carrier, &target.file, request) }
    }

    /// Submits a request at its offset in the file to the carrier that [was chosen](Self::choose_carrier) for it.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit), and the file stays open until the completion.
    #[inline]
    unsafe fn submit_to_chosen_carrier(
        &mut self,
        carrier: Carrier,
        file: &Arc<DiskFile>,
        request: &Request,
    ) -> Result<(), Full> {
        match (carrier, self.aio.get_mut(), self.ring.get_mut()) {
            (Carrier::Native, Some(aio), _) => {
                // SAFETY: our caller promises the same.
                unsafe { aio.start_or_queue(file.raw_fd(), request) }?;
                if is_full_batch(file, aio.pending_count()) {
                    aio.submit();
                }
                Ok(())
            }
            (Carrier::Ring(name), _, Some(ring))
                if request.op != Op::Flush || ring.free_workers() > 0 =>
            {
                // SAFETY: as above.
                unsafe { ring.start_or_queue(name, request) }?;
                if is_full_batch(file, ring.pending_count()) {
                    ring.submit();
                }
                Ok(())
            }
            // SAFETY: our caller promises the same.
            _ => unsafe { self.submit_to_worker(file, request) },
        }
    }

    /// The carrier of a request, which is at its offset in the file.
    #[inline]
    fn choose_carrier(&self, target: &FileTarget, request: &Request) -> Carrier {
        let (file, carrier) = (&target.file, target.carrier);
        match needs_no_worker(file, request) {
            true if !self.holds_up_other_files(file, carrier, request) => carrier,
            _ => Carrier::Workers,
        }
    }

    /// Submits a task's request, unless its file has its [share](fair_room) of the places of the backend.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    unsafe fn submit_task_request(
        &mut self,
        target: &FileTarget,
        request: &Request,
    ) -> Result<(), Full> {
        let request = &target.to_file_request(request);
        let carrier = self.choose_carrier(target, request);
        let (file_index, resource) = (target.file.id.as_index(), SharedResource::Places);
        let used = self.tasks.occupied_count(resource, file_index);
        if fair_room(self.room_of_carrier(carrier), used) == 0 {
            return Err(Full);
        }
        // SAFETY: our caller promises the same, and that the target keeps the file open.
        unsafe { self.submit_to_chosen_carrier(carrier, &target.file, request) }?;
        if carrier != Carrier::Workers {
            self.tasks
                .count_occupied(resource, file_index, request.token);
        }
        Ok(())
    }

    /// Whether the submission of a transfer would take so long that the other files of this iothread had to wait: it is large,
    /// and the kernel copies its data before the call returns.
    #[inline]
    fn holds_up_other_files(&self, file: &DiskFile, carrier: Carrier, request: &Request) -> bool {
        request.len > MAX_COPIED_BYTES
            && self.has_other_files()
            && self.is_copied_within_the_call(file, carrier)
    }

    /// Whether the iothread has more than one file, so that one waits for the submissions of another.
    #[inline]
    fn has_other_files(&self) -> bool {
        self.files.count() > 1
    }

    /// Whether the kernel copies the data of transfers before the call returns.
    #[inline]
    fn is_copied_within_the_call(&self, file: &DiskFile, carrier: Carrier) -> bool {
        match carrier {
            Carrier::Native => {
                let aio = self.aio.get();
                aio.is_some_and(|aio| aio.transfers_synchronously(file.raw_fd()))
            }
            Carrier::Ring(_) => file.direct.is_none(),
            Carrier::Workers => false,
        }
    }

    /// Submits a task's request without data to the ring, if its file has not its [share](fair_room) of the kernel's worker
    /// threads yet: the kernel would have it wait for them, and those of other files behind it.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    unsafe fn submit_to_ring_worker(&mut self, request: &RingRequest) -> Result<(), Full> {
        let Some(ring) = self.ring.get_mut() else {
            unreachable!("a ring that carries a file exists");
        };
        let (file_index, resource) = (request.file_index, SharedResource::KernelThreads);
        let used = self.tasks.occupied_count(resource, file_index);
        if fair_room(ring.free_workers(), used) == 0 {
            return Err(Full);
        }
        // SAFETY: our caller promises the same.
        unsafe { ring.start_or_queue(request.name, &request.request) }?;
        let token = request.request.token;
        self.tasks.count_occupied(resource, file_index, token);
        Ok(())
    }

    /// Adds bytes to [`submission_cost`](Self::submission_cost).
    #[inline]
    pub(crate) fn count_cost(&mut self, bytes: u64) {
        self.submission_cost = self.submission_cost.wrapping_add(bytes);
    }

    /// Submits a request to a worker thread.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    unsafe fn submit_to_worker(
        &mut self,
        file: &Arc<DiskFile>,
        request: &Request,
    ) -> Result<(), Full> {
        self.count_cost(WORKER_COST_BYTES);
        // SAFETY: our caller promises the same.
        unsafe { self.workers.start_or_queue(file.clone(), request) }
    }

    /// Submits the cloning of a range to a worker thread.
    fn submit_clone(&mut self, range: CloneRange, token: u64) {
        self.count_cost(WORKER_COST_BYTES);
        let disk = range.target.disk_number();
        self.submit_blocking_call(disk, Box::new(move || range.run()), token);
    }

    /// Polls tasks that were woken, and submits their I/O. Requests that a full backend refuses wait, in order.
    #[inline(never)]
    pub(super) fn poll_tasks_and_submit_io(&mut self) {
        self.tasks.poll_due_and_woken();
        self.aio_share.release_room_reserved_for_tasks();
        self.ring_share.release_room_reserved_for_tasks();
        self.network.release_room_reserved_for_tasks();
        for _ in 0..self.tasks.outgoing_count() {
            let Some(outgoing) = self.tasks.pop_outgoing() else {
                return;
            };
            // SAFETY: a task completes only when this has been reaped; until then its source keeps the segments, and the
            // route of the task keeps the file.
            let taken = unsafe {
                match &outgoing {
                    BackendRequest::Request(target, request) => {
                        self.submit_task_request(target, request)
                    }
                    BackendRequest::Ring(request) => self.submit_to_ring_worker(request),
                    BackendRequest::Network(target, request, source_index) => {
                        target.submit_for_task(request, *source_index)
                    }
                    BackendRequest::Worker(file, request) => self.submit_to_worker(file, request),
                    BackendRequest::Clone(range, token) => {
                        self.submit_clone(range.clone(), *token);
                        Ok(())
                    }
                }
            };
            if taken.is_err() {
                match outgoing.carrier() {
                    // What was missing is not room: its file has its share.
                    Some(carrier) if self.room_of_carrier(carrier) > 0 => {}
                    Some(Carrier::Native) => self.aio_share.record_refusal(),
                    Some(Carrier::Ring(_)) => self.ring_share.record_refusal(),
                    Some(Carrier::Workers) => unreachable!("workers take everything"),
                    // A disk behind a network: `submit_for_task` has counted it.
                    None => {}
                }
                self.tasks.push_back_outgoing(outgoing);
            }
        }
    }
}

/// Whether as many requests are pending as the node's own batch limit (`aio-max-batch`) allows.
#[inline]
fn is_full_batch(file: &DiskFile, pending: usize) -> bool {
    let max_batch = file.aio_max_batch as usize;
    max_batch != 0 && pending >= max_batch
}

/// Whether Linux AIO or the ring can carry a request, which is at its offset in the file. Otherwise a worker carries it,
/// since it might block.
#[inline]
fn needs_no_worker(file: &DiskFile, request: &Request) -> bool {
    match request.op {
        Op::Read => kernel_accepts_alignment_and_count(file, request),
        // While there are writes of partial blocks, a worker does every write, under the range lock.
        Op::Write => {
            !file.block_mode.has_partial_blocks()
                && kernel_accepts_alignment_and_count(file, request)
        }
        Op::Flush => true,
        Op::Discard | Op::WriteZeroes { .. } => false,
    }
}

/// Whether the kernel accepts the alignment and the number of a transfer's segments.
#[inline]
fn kernel_accepts_alignment_and_count(file: &DiskFile, request: &Request) -> bool {
    if !(1..=IOV_MAX).contains(&(request.iov_count as usize)) {
        return false;
    }
    // Through the page cache, which only the ring uses, any alignment fits.
    let Some(direct) = file.direct else {
        return true;
    };
    // SAFETY: the caller of `IoContext::submit` promises that the list is valid.
    let iov = unsafe { std::slice::from_raw_parts(request.iov, request.iov_count as usize) };
    direct.fits(request.offset, request.len, iov)
}
