//! The connection of one front-end: its state, and the effects of its messages.
//!
//! An error of the kind `ReqHandlerError` is a refusal that is reported to the front-end, if it asked for replies;
//! any other ends the connection.

mod messages;
mod replay;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use eventfd::Signaller;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Error, Result};
use virtio_bindings::virtio_config::{
    VIRTIO_F_RING_PACKED, VIRTIO_F_RING_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtqueue::queue_setup::QueueCommand;
use virtqueue::{DirtyLog, GuestMemory, InflightRegion, RingFeatures};

use crate::backend_channel::{BackendChannel, SendOutcome};
use crate::device::VirtioDevice;
use crate::dirty_log::{self, DirtyLogError};
use crate::inflight::InflightBuffer;
use crate::memory::{MemoryTable, MemoryTableError};
use crate::vring::Vring;

/// `VIRTIO_F_RING_RESET` needs nothing more than what `GET_VRING_BASE` does to a single queue.
const RING_FEATURES: u64 = 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_RING_F_INDIRECT_DESC
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_F_RING_RESET;

/// Set while writes to the guest's memory are to be logged.
const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();

/// A queue may stop before its requests are done: they stay in the in-flight region, which the front-end keeps.
const GET_VRING_BASE_INFLIGHT: u64 = VhostUserProtocolFeatures::GET_VRING_BASE_INFLIGHT.bits();

/// The configuration space of any virtio device, in vhost-user.
const MAX_CONFIG_BYTES: u32 = 256;

/// Warnings that a connection logs once.
#[derive(Default)]
struct LoggedWarnings {
    no_inflight_region: bool,
    ring_size: bool,
}

/// The state of a connection.
pub(crate) struct Connection {
    pub(crate) device: Arc<dyn VirtioDevice>,
    pub(crate) acked_features: u64,
    pub(crate) acked_protocol_features: u64,
    pub(crate) memory_table: MemoryTable,
    pub(crate) memory: Option<Arc<GuestMemory>>,
    pub(crate) vrings: Vec<Vring>,
    /// The in-flight regions of the queues, if the front-end keeps them for us.
    pub(crate) inflight: Option<InflightBuffer>,
    /// For signals by the control thread; those of running queues are sent by their iothreads.
    pub(crate) signaller: Signaller,
    logged_warnings: LoggedWarnings,
    /// The dirty log, used while `LOG_ALL` is acknowledged.
    log: Option<Arc<DirtyLog>>,
    /// The log was passed before logging was turned off, and the next migration may bring another.
    log_is_of_last_migration: bool,
    /// A queue did not stop in time: the connection is to end.
    stop_timed_out: bool,
    /// The device cannot be used, which is logged: the connection is to end.
    start_refused: bool,
    /// For messages to the front-end.
    pub(crate) channel: Option<BackendChannel>,
    /// The channel that the next message brings.
    peeked_channel: Option<BackendChannel>,
}

impl Connection {
    /// The connection of a front-end that has sent nothing yet.
    pub fn new(device: Arc<dyn VirtioDevice>) -> Self {
        let vrings = (0..device.num_queues()).map(|_| Vring::default()).collect();
        Connection {
            signaller: Signaller::new(device.name()),
            device,
            acked_features: 0,
            acked_protocol_features: 0,
            memory_table: MemoryTable::default(),
            memory: None,
            vrings,
            inflight: None,
            logged_warnings: LoggedWarnings::default(),
            log: None,
            log_is_of_last_migration: false,
            stop_timed_out: false,
            start_refused: false,
            channel: None,
            peeked_channel: None,
        }
    }

    /// The features of the device, of the ring and of the transport.
    fn offered_features(&self) -> u64 {
        let packed = u64::from(self.device.offers_packed_queues()) << VIRTIO_F_RING_PACKED;
        self.device.features()
            | RING_FEATURES
            | packed
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
            | LOG_ALL
    }

    /// Whether writes to the guest's memory are logged, for a migration.
    pub(crate) fn is_dirty_logging_on(&self) -> bool {
        self.acked_features & LOG_ALL != 0
    }

    /// The log, while logging is on.
    fn active_dirty_log(&self) -> Option<&Arc<DirtyLog>> {
        self.log.as_ref().filter(|_| self.is_dirty_logging_on())
    }

    /// Passes the active log, or that there is none, to all queues.
    fn update_queue_logs(&self) {
        for vring in &self.vrings {
            vring.set_dirty_log_if_running(self.active_dirty_log());
        }
    }

    /// Drops an old log that is too small for this memory: the next migration brings another.
    fn drop_dirty_log_if_too_small(&mut self, memory: &GuestMemory) {
        let fits = |log: &Arc<DirtyLog>| dirty_log::check_log_bytes(log.len_bytes(), Some(memory));
        if self.log.as_ref().is_some_and(|log| fits(log).is_err()) {
            self.log = None;
            self.update_queue_logs();
        }
    }

    /// Logs that a dirty log cannot be used, and returns the error of its message.
    fn warn_of_bad_log_and_make_error(&self, error: &DirtyLogError) -> Error {
        tracing::warn!(
            export = self.device.name(), %error,
            advice = "the front-end has to share a log for all memory that it shares, and a larger one before there is more memory",
            "bad log of dirty pages"
        );
        Error::InvalidParam
    }

    /// The acknowledged features that concern rings.
    pub(crate) fn ring_features(&self) -> RingFeatures {
        RingFeatures {
            event_idx: self.acked_features & 1 << VIRTIO_RING_F_EVENT_IDX != 0,
            indirect: self.acked_features & 1 << VIRTIO_RING_F_INDIRECT_DESC != 0,
            packed: self.acked_features & 1 << VIRTIO_F_RING_PACKED != 0,
        }
    }

    /// The queue of this number.
    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        let (name, count) = (self.device.name(), self.vrings.len());
        if index as usize >= count {
            tracing::warn!(
                export = name,
                index,
                queues = count,
                "the front-end names a queue that is not there: give both sides the same num-queues"
            );
        }
        self.vrings
            .get_mut(index as usize)
            .ok_or(Error::InvalidParam)
    }

    /// Accepts an eventfd from the front-end, and makes it non-blocking. Any other file is an error of the front-end.
    fn check_eventfd_and_set_nonblocking(
        &self,
        what: &'static str,
        fd: Option<File>,
    ) -> Result<Option<OwnedFd>> {
        eventfd::check_eventfd_and_set_nonblocking(what, fd).map_err(|error| {
            tracing::warn!(export = self.device.name(), %error, "bad descriptor");
            Error::InvalidParam
        })
    }

    /// The in-flight region of a queue that is about to start. A queue runs without one if none fits.
    pub(crate) fn inflight_region(&mut self, index: u16) -> Option<InflightRegion> {
        let size = self.vrings.get(usize::from(index))?.size;
        let packed = self.ring_features().packed;
        let region = self.inflight.as_ref()?.queue_region(index, packed, size);
        if let Err(error) = &region
            && !std::mem::replace(&mut self.logged_warnings.no_inflight_region, true)
        {
            tracing::warn!(
                export = self.device.name(), queue = index, %error,
                advice = "the disk works; the front-end has to pass the buffer on as GET_INFLIGHT_FD made it",
                "no in-flight region fits: if a daemon is killed, requests in flight are lost or done twice"
            );
        }
        region.ok()
    }

    /// A queue whose set-up may be changed.
    fn stopped_vring(&mut self, index: u32) -> Result<&mut Vring> {
        let vring = self.vring(index)?;
        if vring.is_running() {
            return Err(Error::InvalidOperation(
                "the queue is running: GET_VRING_BASE stops it",
            ));
        }
        Ok(vring)
    }

    /// Passes changed guest memory to all queues that run.
    fn set_guest_memory(
        &mut self,
        changed: std::result::Result<Arc<GuestMemory>, MemoryTableError>,
    ) -> Result<()> {
        let memory = changed.map_err(|error| {
            tracing::warn!(
                export = self.device.name(),
                %error,
                advice = "the VMM has to share all of the guest's memory, from a memfd or hugetlbfs",
                "bad guest memory"
            );
            Error::InvalidParam
        })?;
        if self.log_is_of_last_migration {
            self.drop_dirty_log_if_too_small(&memory);
        } else if let Some(log) = self.active_dirty_log() {
            dirty_log::check_log_bytes(log.len_bytes(), Some(&memory))
                .map_err(|error| self.warn_of_bad_log_and_make_error(&error))?;
        }
        for running in self.vrings.iter().filter_map(Vring::running_queue) {
            running.send_and_wait(|reply| QueueCommand::SetMemory(memory.clone(), reply));
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Stores the back-end channel that the next message brings, if it brings one.
    pub fn set_peeked_channel(&mut self, channel: Option<BackendChannel>) {
        self.peeked_channel = channel;
    }

    /// Notifies the front-end that the configuration space has changed, if it has asked for that. The
    /// message is dropped if the front-end does not read its channel.
    pub fn notify_config_changed_if_wanted(&self) {
        let config = VhostUserProtocolFeatures::CONFIG.bits();
        let Some(channel) = self.channel.as_ref() else {
            return;
        };
        if self.acked_protocol_features & config == 0 {
            return;
        }
        let export = self.device.name();
        match channel.send_config_changed() {
            SendOutcome::Sent => {}
            SendOutcome::Full => tracing::warn!(
                export,
                "the front-end does not read its backend channel, which is full: it will see \
                 the disk's new size when it reads the configuration next"
            ),
            SendOutcome::Closed => tracing::warn!(
                export,
                "the front-end has closed its backend channel: it will see the disk's new size when it \
                 reads the configuration next"
            ),
        }
    }

    /// Lets the queues take no requests until [`Connection::resume_queues_after_node_exchange`]. They reply when the
    /// requests that they have taken are done.
    pub fn pause_queues_for_node_exchange(&mut self) -> Vec<Receiver<()>> {
        for vring in &mut self.vrings {
            vring.set_paused_for_exchange(true);
        }
        self.begin_settle()
    }

    /// Lets the queues go on after [`Connection::pause_queues_for_node_exchange`]; with the node that is behind the
    /// device now, if it was `exchanged`.
    pub fn resume_queues_after_node_exchange(&mut self, exchanged: bool) {
        for vring in &mut self.vrings {
            if let Some(running) = vring.running_queue().filter(|_| exchanged) {
                // Nothing is in flight. An error: the queue is gone.
                let _ = running.switch_node().recv();
            }
            vring.set_paused_for_exchange(false);
        }
    }

    /// Lets the queues go on with the node that is behind the device now, if it was `exchanged`. They reply when the requests are
    /// done that they had taken before. Requests that they take from now on are not waited for.
    pub fn begin_node_switch_if_exchanged(&self, exchanged: bool) -> Vec<Receiver<()>> {
        if !exchanged {
            return Vec::new();
        }
        let running = self.vrings.iter().filter_map(Vring::running_queue);
        running.map(|running| running.switch_node()).collect()
    }

    /// The queues reply when the requests are done that they have taken so far. Waits for queues that are stopping.
    pub fn begin_settle(&self) -> Vec<Receiver<()>> {
        let begin = |vring: &Vring| vring.begin_settle();
        self.vrings.iter().filter_map(begin).collect()
    }

    /// Waits until all requests are done that the queues have taken so far.
    pub fn settle_queues(&self) {
        for reply in self.begin_settle() {
            // An error: the queue is gone.
            let _ = reply.recv();
        }
    }

    /// Whether a queue was not started, since the device cannot be used.
    pub fn has_refused_start(&self) -> bool {
        self.start_refused
    }

    /// Prepares the device for the first queue that starts. Records and logs an error that ends the connection.
    fn prepare_first_queue(&mut self) -> Result<()> {
        if self.vrings.iter().any(Vring::is_running) {
            return Ok(());
        }
        self.device.before_first_queue().map_err(|error| {
            self.start_refused = true;
            tracing::error!(
                export = self.device.name(), error,
                advice = "a front-end that connects again is served as soon as the disk can be used",
                "the disk cannot be used: its queues do not start, and the front-end is disconnected"
            );
            Error::InvalidOperation("the disk cannot be used")
        })
    }

    /// Reports to the device that no queue runs any more, if so.
    fn report_if_no_queue_runs(&self, is_migrating: bool) {
        if !self.vrings.iter().any(Vring::is_running) {
            self.device.after_last_queue(is_migrating);
        }
    }

    /// Whether a queue did not stop in time.
    pub fn has_stop_timed_out(&self) -> bool {
        self.stop_timed_out
    }

    /// Records and logs that a queue does not stop in time, and returns the error that ends the connection.
    fn record_and_log_stop_timeout(&mut self, index: u32, waited: Option<Duration>) -> Error {
        self.stop_timed_out = true;
        tracing::warn!(
            export = self.device.name(), queue = index, waited = ?waited.unwrap_or_default(),
            advice = "check the disk below: when it has answered, the front-end is served again; a migration fails, and its guest goes on here",
            "a queue does not stop, since the disk does not answer: the front-end is disconnected"
        );
        Error::InvalidOperation("the disk does not answer")
    }

    /// Lets the present requests of all queues but this one pass limits: it does not stop at once, so its requests may wait for one of
    /// them.
    fn let_requests_of_other_queues_pass_limits(&self, index: u32) {
        for (other, vring) in (0..).zip(&self.vrings) {
            if other != index {
                vring.let_present_requests_pass_limits();
            }
        }
    }

    /// Lets all queues stop. A request may wait for one of another queue, which waits for a limit as long as its queue runs.
    fn begin_stop_queues(&mut self) {
        self.vrings.iter_mut().for_each(Vring::begin_stop);
    }

    /// Stops all queues, and clears their in-flight regions.
    fn stop_queues_and_clear_inflight(&mut self) {
        self.begin_stop_queues();
        for vring in &mut self.vrings {
            vring.stop();
            vring.clear_and_drop_inflight_region();
        }
        self.report_if_no_queue_runs(self.is_dirty_logging_on());
    }

    /// Stops all queues, and clears their set-up and their records of requests in flight. Those that are left there, such as parked
    /// ones of a suspended queue, are of the driver before the reset: its memory may have another use.
    fn stop_and_reset_all_queues(&mut self) {
        self.begin_stop_queues();
        for vring in &mut self.vrings {
            vring.stop_and_reset();
        }
        if let Some(inflight) = &self.inflight {
            inflight.clear_records();
        }
        self.report_if_no_queue_runs(self.is_dirty_logging_on());
    }
}

impl Connection {
    /// Stops all queues, since the front-end is gone or is to be disconnected.
    pub fn stop_queues_leaving_parked(&mut self) {
        self.begin_stop_queues_leaving_parked();
        for vring in &mut self.vrings {
            vring.wait_for_stop(None);
        }
        // Its guest may go on here when the front-end connects again.
        self.report_if_no_queue_runs(false);
    }

    /// Lets all queues stop. Recovered requests that they have not resubmitted stay in the in-flight region.
    pub fn begin_stop_queues_leaving_parked(&mut self) {
        // A disabled queue resubmits no recovered requests while it stops.
        for running in self.vrings.iter().filter_map(Vring::running_queue) {
            running.send_command(QueueCommand::Enable(false));
        }
        for vring in &mut self.vrings {
            vring.begin_stop_leaving_parked();
        }
    }

    /// Whether all queues have stopped; waits up to `timeout` for the first that has not.
    pub fn have_queues_stopped_within(&mut self, timeout: Duration) -> bool {
        let mut vrings = self.vrings.iter_mut();
        vrings.all(|vring| vring.wait_for_stop(Some(timeout)).is_some())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stop_queues_leaving_parked();
    }
}

/// The error of a message that is refused; the connection goes on.
fn refusal_error(reason: impl Into<String>) -> Error {
    Error::ReqHandlerError(io::Error::other(reason.into()))
}

/// The protocol features that this server implements.
fn offered_protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::GET_VRING_BASE_INFLIGHT
}
