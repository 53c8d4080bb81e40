//! Handlers of the front-end's messages, one function each, which the `vhost` crate calls with the decoded message.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtqueue::MAX_QUEUE_SIZE;
use virtqueue::queue_setup::StartError;

use super::{
    Connection, GET_VRING_BASE_INFLIGHT, LOG_ALL, MAX_CONFIG_BYTES, offered_protocol_features,
    refusal_error,
};
use crate::inflight::InflightBuffer;
use crate::memory::MAX_SLOTS;
use crate::vring::{RingAddresses, StartContext, Vring};
use crate::{dirty_log, inflight};

/// How long a queue takes to stop whose requests wait for nothing but the disk, in most cases.
const STOPS_SOON: Duration = Duration::from_millis(10);

impl VhostUserBackendReqHandlerMut for Connection {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        // Deprecated; QEMU sends it to stop the queues.
        self.stop_queues_and_clear_inflight();
        Ok(())
    }

    /// Resets the queues and the device.
    fn reset_device(&mut self) -> Result<()> {
        self.stop_and_reset_all_queues();
        self.device.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered_features())
    }

    /// Sets the acknowledged features; begins or ends logging for a migration.
    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.offered_features();
        if unknown != 0 {
            tracing::warn!(
                export = self.device.name(),
                "the front-end acknowledges features that were not offered: {unknown:#x}"
            );
            return Err(Error::InvalidParam);
        }
        let changed = features ^ self.acked_features;
        self.acked_features = features;
        if changed & LOG_ALL != 0 {
            self.log_is_of_last_migration |= !self.is_dirty_logging_on();
            self.update_queue_logs();
        }
        // If only this bit has changed, a migration begins or ends, which does not concern the device.
        if changed != LOG_ALL {
            let device_features = features & !LOG_ALL;
            self.device
                .set_features(device_features, &|| self.settle_queues());
        }
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            // Without it there is no message to enable a queue: queues start enabled.
            for vring in &mut self.vrings {
                vring.set_enabled(true);
            }
        }
        Ok(())
    }

    /// Replaces all of the guest's memory.
    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let changed = self.memory_table.replace_all(regions, files);
        self.set_guest_memory(changed)?;
        Ok(None)
    }

    /// Sets the number of entries of a queue that does not run.
    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let export = self.device.name();
        let (max, wanted) = (MAX_QUEUE_SIZE, self.device.max_queue_size());
        let size = u16::try_from(num).ok().filter(|size| *size <= max).ok_or_else(|| {
            tracing::warn!(
                export, index, size = num, max,
                "the front-end wants more entries in a queue than there may be: lower its queue-size"
            );
            Error::InvalidParam
        })?;
        // There is no message by which a front-end could know of the limit.
        if size > wanted && !std::mem::replace(&mut self.logged_warnings.ring_size, true) {
            tracing::warn!(
                export,
                index,
                size,
                queue_size = wanted,
                "the front-end's rings have more entries than queue-size: the guest may have as many requests in flight"
            );
        }
        // Whether a split queue's size is a power of two is checked when the queue starts.
        if self.vring(index)?.size != size {
            self.stopped_vring(index)?.size = size;
        }
        Ok(())
    }

    /// Sets the addresses of a queue's rings, and whether writes to its used ring are logged.
    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        log: u64,
    ) -> Result<()> {
        let vring = self.vring(index)?;
        let addresses = Some(RingAddresses { desc, avail, used });
        // Front-ends repeat the addresses while the queue runs, to set a flag.
        if vring.is_running() && vring.addresses != addresses {
            return Err(Error::InvalidOperation(
                "the queue is running: its rings cannot move",
            ));
        }
        vring.addresses = addresses;
        let logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        vring.used_ring_log_address = logged.then_some(log);
        // The queue may run already when logging begins.
        self.vrings[index as usize].set_dirty_log_if_running(self.active_dirty_log());
        Ok(())
    }

    /// Sets the ring index at which a queue starts.
    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        // A packed queue's base is 32 bits of indices and wrap counters.
        if base > u32::from(u16::MAX) && !self.ring_features().packed {
            return Err(Error::InvalidParam);
        }
        self.stopped_vring(index)?.base = base;
        Ok(())
    }

    /// Stops a queue, and replies its ring index. Only a front-end without an in-flight region waits for the requests.
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let suspends = self.acked_protocol_features & GET_VRING_BASE_INFLIGHT != 0;
        let timeout = self.device.stop_timeout_with_inflight_region();
        let vring = self.vring(index)?;
        let timeout = if suspends {
            // Requests that are not done stay in the in-flight region.
            vring.begin_stop_leaving_parked();
            timeout.filter(|_| vring.has_inflight_region())
        } else {
            vring.begin_stop();
            None
        };
        if vring.wait_for_stop(Some(STOPS_SOON)).is_none() {
            self.let_requests_of_other_queues_pass_limits(index);
        }
        let vring = self.vring(index)?;
        let Some(base) = vring.wait_for_stop(timeout) else {
            return Err(self.record_and_log_stop_timeout(index, timeout));
        };
        vring.clear_and_drop_inflight_region();
        self.report_if_no_queue_runs(self.is_dirty_logging_on());
        Ok(VhostUserVringState::new(index, base))
    }

    /// Starts a queue whose set-up is complete, or gives a running queue another kick descriptor.
    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let features = self.ring_features();
        let device = self.device.clone();
        let inflight = self.inflight_region(u16::from(index));
        let memory = self.memory.clone().ok_or_else(|| {
            tracing::warn!(
                export = device.name(),
                "a queue is started before there is guest memory: is it shared (share=on)?"
            );
            Error::InvalidParam
        })?;
        let kick = self.check_eventfd_and_set_nonblocking("kick", fd)?;
        let log = self.active_dirty_log().cloned();
        let signaller = self.signaller.clone();
        self.vring(u32::from(index))?;
        self.prepare_first_queue()?;
        let vring = self.vring(u32::from(index))?;
        let context = StartContext {
            memory: &memory,
            features,
            inflight,
            log: log.as_ref(),
            device: &*device,
            signaller: &signaller,
        };
        match vring.start_or_set_kick(u16::from(index), kick, context) {
            Ok(()) => Ok(()),
            Err(error @ StartError::Ring(_)) => {
                if vring.signal_and_note_start_failure(&signaller) {
                    tracing::error!(
                        export = device.name(), queue = index, %error,
                        "the guest's driver broke this queue: it is not started"
                    );
                }
                Ok(())
            }
            Err(error) => {
                tracing::warn!(export = device.name(), queue = index, %error, "cannot start a queue");
                Err(Error::InvalidParam)
            }
        }
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = self.check_eventfd_and_set_nonblocking("call", fd)?;
        self.vring(u32::from(index))?.set_call(call);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let err = self.check_eventfd_and_set_nonblocking("err", fd)?;
        self.vring(u32::from(index))?.set_err(err);
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(offered_protocol_features())
    }

    /// Sets the acknowledged protocol features.
    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !offered_protocol_features().bits();
        if unknown != 0 {
            tracing::warn!(
                export = self.device.name(),
                "the front-end acknowledges protocol features that were not offered: {unknown:#x}"
            );
            return Err(Error::InvalidParam);
        }
        self.acked_protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.set_enabled(enable);
        Ok(())
    }

    /// Reads bytes of the configuration space.
    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        if offset
            .checked_add(size)
            .is_none_or(|end| end > MAX_CONFIG_BYTES)
        {
            return Err(refusal_error("beyond the configuration space"));
        }
        let mut config = self.device.config_space();
        config.resize(MAX_CONFIG_BYTES as usize, 0);
        Ok(config[offset as usize..(offset + size) as usize].to_vec())
    }

    /// Writes bytes of the configuration space, where the driver may.
    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        let settle = || self.settle_queues();
        if self
            .device
            .write_config_space(offset as usize, bytes, &settle)
        {
            Ok(())
        } else {
            Err(refusal_error(format!(
                "the {} bytes at {offset} of the configuration space cannot be written",
                bytes.len()
            )))
        }
    }

    fn set_backend_req_fd(&mut self, _: Backend) {
        // The library has checked that it is a stream socket, but has no function for the message that we send on it.
        self.channel = self.peeked_channel.take();
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_SLOTS as u64)
    }

    /// Adds a region of the guest's memory.
    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let changed = self.memory_table.add_region(region, fd);
        self.set_guest_memory(changed)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let changed = self.memory_table.remove_region(region);
        self.set_guest_memory(changed)
    }

    /// Makes a buffer for requests in flight, which the front-end keeps while it is disconnected.
    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        // For packed queues, which take more room, if they are offered: the driver may not have chosen yet.
        let packed = self.device.offers_packed_queues();
        let queues = wanted.num_queues.min(self.device.num_queues());
        inflight::make_inflight_file(queues, packed).map_err(|error| {
            tracing::warn!(
                export = self.device.name(), %error, queues,
                advice = "see `ulimit -n` and the memory that the daemon may have",
                "cannot make the buffer that records requests in flight"
            );
            Error::ReqHandlerError(error)
        })
    }

    /// Uses the buffer for requests in flight that the front-end has kept.
    fn set_inflight_fd(&mut self, buffer: &VhostUserInflight, file: File) -> Result<()> {
        if self.vrings.iter().any(Vring::is_running) {
            return Err(Error::InvalidOperation(
                "queues are running: GET_VRING_BASE stops them",
            ));
        }
        let mapped = InflightBuffer::map(buffer, file, self.device.num_queues());
        let mapped = mapped.map_err(|error| {
            tracing::warn!(
                export = self.device.name(), %error,
                advice = "the front-end has to pass the buffer on as GET_INFLIGHT_FD made it",
                "bad buffer for requests in flight"
            );
            Error::InvalidParam
        })?;
        self.inflight = Some(mapped);
        Ok(())
    }

    /// Uses a log of dirty pages. Marks all pages in it if queues may have written without it.
    fn set_log_base(&mut self, description: &VhostUserLog, file: File) -> Result<()> {
        let log = dirty_log::map_log(description, file, self.memory.as_deref())
            .map_err(|error| self.warn_of_bad_log_and_make_error(&error))?;
        let is_first = self.log.replace(Arc::new(log)).is_none();
        let has_logged_before = !std::mem::take(&mut self.log_is_of_last_migration) && !is_first;
        self.update_queue_logs();
        // Queues that ran since logging was turned on have logged nothing, or to a log that is not read any more.
        if !has_logged_before
            && let (Some(log), Some(memory)) = (self.active_dirty_log(), &self.memory)
        {
            log.mark_all(memory);
        }
        Ok(())
    }

    // The following messages belong to features that are not offered: the `vhost` crate refuses them
    // before they come here, or they have no meaning for a disk.

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no display"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no shared objects"))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("DEVICE_STATE was not offered"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("DEVICE_STATE was not offered"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("SHMEM was not offered"))
    }
}
