//! Guest memory that the ring of an iothread knows, as fixed buffers.
//!
//! A memory map is made known when the first queue begins to use it, and given back when the last has
//! no request in it any more: the queues say when that is. What the ring does not take stays
//! unknown, which is said once, and its requests go as they would without all this.

use crate::io::Uring;

/// One memory map.
struct Map {
    key: usize,
    users: usize,
    /// Address and length of what the ring took.
    ranges: Vec<(usize, usize)>,
}

/// The memory maps in use.
#[derive(Default)]
pub(crate) struct RegisteredMemory {
    maps: Vec<Map>,
    complained: bool,
}

impl RegisteredMemory {
    /// One more user of the map that `key` names.
    ///
    /// # Safety
    /// Its ranges stay mapped until the last user has called [`leave`](Self::leave).
    pub unsafe fn join(
        &mut self,
        ring: Option<&mut Uring>,
        key: usize,
        ranges: impl Iterator<Item = (usize, usize)>,
    ) {
        if let Some(map) = self.maps.iter_mut().find(|map| map.key == key) {
            map.users += 1;
            return;
        }
        let mut known = Vec::new();
        match ring {
            Some(ring) => {
                for (start, len) in ranges {
                    // SAFETY: our caller promises the same.
                    match unsafe { ring.register_memory(start, len) } {
                        Ok(()) => known.push((start, len)),
                        Err(error) => self.complain(&error.to_string()),
                    }
                }
            }
            None => self.complain("io_uring does not carry this disk; set aio=io_uring"),
        }
        self.maps.push(Map {
            key,
            users: 1,
            ranges: known,
        });
    }

    /// One user less, with no request under way in the map.
    pub fn leave(&mut self, ring: Option<&mut Uring>, key: usize) {
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
                let given_back = ring.unregister_memory(start, len);
                debug_assert!(given_back, "no request is under way in it");
            }
        }
    }

    fn complain(&mut self, why: &str) {
        if !self.complained {
            self.complained = true;
            tracing::warn!(
                "fixed-buffers=on has no effect for some guest memory of this iothread: {why}"
            );
        }
    }
}
