//! Changes of the guest's memory table and of the driver's write cache, while queues run, are disabled, or have stopped.

use virtqueue::queue_setup::QueueCommand;

use super::{Waits, World};

/// Where the cache mode is in the configuration space.
const WCE_OFFSET: usize = 32;

impl World {
    /// The same memory at other host addresses.
    pub(super) fn remap(&mut self) {
        if self.waits.is_none() {
            self.send_table();
        }
    }

    /// A region is added to the table, or removed.
    pub(super) fn hotplug(&mut self, present: bool) {
        if self.waits.is_none() && self.guest.borrow_mut().hotplug(present) {
            self.send_table();
        }
    }

    /// All queues that run get the table, also those that are disabled. Others start with it.
    fn send_table(&mut self) {
        self.seen.add("tables", 1);
        let table = self.guest.borrow_mut().remap();
        let Some(daemon) = &self.daemon else {
            return self.guest.borrow_mut().table_is_in_force();
        };
        let answers = daemon.ask(|reply| QueueCommand::SetMemory(table.clone(), reply));
        self.begin_wait(Waits::Mapped(answers));
    }

    /// The driver writes the cache mode to the configuration space.
    pub(super) fn set_cache_mode(&mut self, write_back: bool) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        let mut guest = self.guest.borrow_mut();
        if !guest.cache.driver.config_wce {
            return;
        }
        let turns_off = guest.set_cache_mode(write_back);
        let written = daemon
            .device
            .write_config(WCE_OFFSET, &[u8::from(write_back)]);
        assert!(written, "the cache mode can be set");
        if turns_off {
            let answers = daemon.settle();
            drop(guest);
            self.begin_wait(Waits::CacheSettled(answers));
        }
    }

    /// The driver's features are negotiated. No queue runs. As exports do it, what was written before is stable from now on if there
    /// is no write cache.
    pub(super) fn negotiate(&mut self) {
        const FLUSH: u64 = 1 << 9;
        const CONFIG_WCE: u64 = 1 << 11;
        let Some(daemon) = &self.daemon else {
            return;
        };
        let cache = self.guest.borrow().cache;
        let bits = [
            (cache.driver.flush, FLUSH),
            (cache.driver.config_wce, CONFIG_WCE),
        ];
        let features = bits.iter().filter(|(has, _)| *has).map(|(_, bit)| bit);
        daemon.device.set_features(features.sum());
        if !cache.is_on() {
            self.flush();
        }
    }

    /// The disk is flushed, as exports do it where the write cache is turned off.
    pub(super) fn flush(&mut self) {
        self.kernel.state().disk().flush_all();
        self.guest.borrow_mut().cache_is_off();
    }
}
