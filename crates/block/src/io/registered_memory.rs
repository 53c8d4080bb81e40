//! Guest memory that is registered with the ring of an iothread (registered buffers, `fixed-buffers=on`).
//!
//! A memory map is registered when the first queue begins to use it, and unregistered when the last queue has no request in
//! it any more; the queues report both. Where the ring refuses a range, the log says so once, and requests in it go without.

use crate::io::Uring;

/// A guest's memory map that has users on this iothread.
struct UsedMemoryMap {
    key: usize,
    users: usize,
    /// Address and length of the ranges that the ring has registered.
    ranges: Vec<(usize, usize)>,
}

/// The memory maps in use.
#[derive(Default)]
pub(crate) struct UsedMemoryMaps {
    maps: Vec<UsedMemoryMap>,
    has_warned: bool,
}

impl UsedMemoryMaps {
    /// Adds a user of the map that `key` names.
    ///
    /// # Safety
    /// Its ranges stay mapped until the last user has called [`remove_user`](Self::remove_user).
    pub unsafe fn add_user(
        &mut self,
        ring: Option<&mut Uring>,
        key: usize,
        ranges: impl Iterator<Item = (usize, usize)>,
    ) {
        if let Some(map) = self.maps.iter_mut().find(|map| map.key == key) {
            map.users += 1;
            return;
        }
        let mut registered = Vec::new();
        match ring {
            Some(ring) => {
                for (start, len) in ranges {
                    // SAFETY: our caller promises the same.
                    match unsafe { ring.register_memory(start, len) } {
                        Ok(()) => registered.push((start, len)),
                        Err(error) => self.warn_unregistered_once(&error.to_string()),
                    }
                }
            }
            None => {
                self.warn_unregistered_once("io_uring does not carry this disk; set aio=io_uring")
            }
        }
        self.maps.push(UsedMemoryMap {
            key,
            users: 1,
            ranges: registered,
        });
    }

    /// Removes a user, which has no request in flight in the map.
    pub fn remove_user(&mut self, ring: Option<&mut Uring>, key: usize) {
        let Some(index) = self.maps.iter().position(|map| map.key == key) else {
            return;
        };
        self.maps[index].users -= 1;
        if self.maps[index].users > 0 {
            return;
        }
        let map = self.maps.swap_remove(index);
        if let Some(ring) = ring {
            for (start, len) in map.ranges {
                let unregistered = ring.unregister_memory_if_idle(start, len);
                debug_assert!(unregistered, "no request is in flight in it");
            }
        }
    }

    /// Logs that memory is used without registration, for the first one only.
    fn warn_unregistered_once(&mut self, why: &str) {
        if !self.has_warned {
            self.has_warned = true;
            tracing::warn!(
                "fixed-buffers=on has no effect for some guest memory of this iothread: {why}"
            );
        }
    }
}
