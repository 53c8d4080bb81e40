//! The exclusive lock of an image, and how it gets free after a process of ours was killed.
//!
//! librbd's lock stays with a killed client until its watch ends (`osd_client_watch_timeout`, 30 s). Waiting for that would keep a
//! restarted daemon's disks from their guests, so the owner leaves a record in the image's metadata: if it names a process of this
//! host that is dead, its lock is broken.
//!
//! librbd puts the dead client on the cluster's blocklist before it breaks the lock, and waits for the map with that entry
//! (`rados_blocklist_add`). From then on our requests name that map, and an OSD gets it before it serves them: requests of the
//! dead client are either done before ours or refused.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use engine::Errno;

use crate::LockError;
use crate::errno::check;
use crate::ffi::{ImagePointer, PoolPointer, text_of};
use crate::library::{EXCLUSIVE_LOCK_FEATURE, Functions, LOCK_MODE_EXCLUSIVE};
use crate::lock_owner::LockOwner;
use crate::{metadata, watchers};

/// The records' key in the image's metadata.
const RECORDS_KEY: &std::ffi::CStr = c"blockplane.lock_owner";

/// Bytes of the longest records that are read.
const RECORDS_BYTES: usize = 1024;

/// Records that are kept: one, and those of servers that were killed in a row.
const MOST_RECORDS: usize = 4;

/// Owners for which there is room: an exclusive lock has one.
const MOST_OWNERS: usize = 8;

/// The owner of a lock after an attempt to take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// This image.
    Locked,
    /// Another image of this process, which may be about to be closed.
    HeldHere {
        /// Address of the connection.
        address: String,
    },
}

/// The lock of an open image.
pub(crate) struct Lock {
    pub(crate) functions: &'static Functions,
    pub(crate) pool: PoolPointer,
    pub(crate) image: ImagePointer,
    /// The number that the cluster gave this client.
    pub(crate) client_id: u64,
}

impl Lock {
    /// Takes the lock, unless another client has it. Waits for the cluster; the image is open for writing.
    pub(crate) fn acquire(&self, image_name: &str) -> Result<Attempt, LockError> {
        let name = || image_name.to_owned();
        let failed = |errno| LockError::Failed {
            image: name(),
            errno,
        };
        if !self.is_supported().map_err(failed)? {
            return Err(LockError::Unsupported { image: name() });
        }
        if !self.is_ours().map_err(failed)? {
            let owner = match self.live_owner().map_err(failed)? {
                None => None,
                Some(address) => {
                    let owner = self.recorded_owner(&address).map_err(failed)?;
                    if owner.as_ref().is_some_and(LockOwner::is_this_process) {
                        return Ok(Attempt::HeldHere { address });
                    }
                    let is_alive = owner.as_ref().is_some_and(LockOwner::is_alive);
                    let owner = owner.filter(LockOwner::is_dead);
                    Some(owner.ok_or_else(|| LockError::Held {
                        image: name(),
                        owner_address: address,
                        is_alive,
                    })?)
                }
            };
            // A failure is reported when this process has the lock.
            let _ = self.record_this_process_first();
            if let Some(LockOwner { pid, address, .. }) = owner {
                tracing::warn!(
                    image = image_name,
                    address,
                    pid,
                    "breaking the lock of a process of ours that has ended"
                );
                self.break_lock_of(&address).map_err(failed)?;
            }
        }
        match self.take() {
            Ok(()) => {}
            // Another client was faster.
            Err(errno @ (Errno::ROFS | Errno::BUSY)) => {
                return Err(match self.owner().map_err(failed)? {
                    Some(owner_address) => LockError::Held {
                        image: name(),
                        owner_address,
                        is_alive: false,
                    },
                    None => failed(errno),
                });
            }
            Err(errno) => return Err(failed(errno)),
        }
        if let Err(errno) = self.record_this_process() {
            tracing::warn!(
                image = image_name,
                %errno,
                "the owner of the exclusive lock is not recorded: if this process is killed, its successor waits until the cluster releases the lock"
            );
        }
        Ok(Attempt::Locked)
    }

    fn is_supported(&self) -> Result<bool, Errno> {
        let mut features = 0;
        // SAFETY: the image is open.
        check(unsafe { (self.functions.rbd_get_features)(self.image.0, &raw mut features) })?;
        Ok(features & EXCLUSIVE_LOCK_FEATURE != 0)
    }

    fn is_ours(&self) -> Result<bool, Errno> {
        let mut is_owner = 0;
        // SAFETY: the image is open.
        let asked = check(unsafe {
            (self.functions.rbd_is_exclusive_lock_owner)(self.image.0, &raw mut is_owner)
        });
        asked.map(|()| is_owner != 0)
    }

    /// The address of the owner.
    fn owner(&self) -> Result<Option<String>, Errno> {
        let mut mode: c_int = 0;
        let mut owners: [*mut c_char; MOST_OWNERS] = [ptr::null_mut(); MOST_OWNERS];
        let mut count = MOST_OWNERS;
        // SAFETY: the image is open, and there is room for as many as named.
        let listed = check(unsafe {
            (self.functions.rbd_lock_get_owners)(
                self.image.0,
                &raw mut mode,
                owners.as_mut_ptr(),
                &raw mut count,
            )
        });
        match listed {
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
            Ok(()) => {
                // SAFETY: librbd has written the addresses, and they are freed below.
                let owner = (count > 0).then(|| unsafe { text_of(owners[0]) });
                // SAFETY: as many were written by librbd.
                unsafe { (self.functions.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
                Ok(owner)
            }
        }
    }

    /// The address of the owner, unless its watch has ended: librbd itself breaks such a lock.
    fn live_owner(&self) -> Result<Option<String>, Errno> {
        let Some(owner) = self.owner()? else {
            return Ok(None);
        };
        let watchers = watchers::addresses(self.functions, self.image)?;
        Ok(watchers.contains(&owner).then_some(owner))
    }

    /// The record of this owner, if there is one.
    fn recorded_owner(&self, address: &str) -> Result<Option<LockOwner>, Errno> {
        let mut owners = self.read_records()?.into_iter();
        Ok(owners.find(|owner| owner.address == address))
    }

    /// Records this process, which is about to take the lock, before dead ones: if it is killed now, its successor knows the
    /// owner. A dead one may be the owner later than this sees it, since its request for the lock may still be on the way.
    fn record_this_process_first(&self) -> Result<(), Errno> {
        let mut clients = watchers::list(self.functions, self.image)?.into_iter();
        let this = clients.find(|client| client.id == self.client_id);
        let this = LockOwner::this_process(this.ok_or(Errno::NOENT)?.address);
        let this = this.ok_or(Errno::NOENT)?;
        let earlier = self.read_records()?.into_iter();
        let dead = earlier.filter(LockOwner::is_dead);
        self.write_records(std::iter::once(this).chain(dead).take(MOST_RECORDS))
    }

    /// Records this process, which has the lock, unless its record is there: another client may have replaced it.
    fn record_this_process(&self) -> Result<(), Errno> {
        let address = self.owner()?.ok_or(Errno::NOLCK)?;
        let this = LockOwner::this_process(address).ok_or(Errno::NOENT)?;
        if self.read_records()?.contains(&this) {
            return Ok(());
        }
        self.write_records([this])
    }

    /// Breaks the lock of an owner, and puts the owner on the blocklist.
    fn break_lock_of(&self, address: &str) -> Result<(), Errno> {
        let address = CString::new(address).map_err(|_| Errno::INVAL)?;
        // SAFETY: the image is open, and the address a string.
        let broken = check(unsafe {
            (self.functions.rbd_lock_break)(self.image.0, LOCK_MODE_EXCLUSIVE, address.as_ptr())
        });
        match broken {
            // The cluster has released it meanwhile.
            Err(Errno::NOENT) => Ok(()),
            broken => broken,
        }
    }

    /// Takes the lock so that it stays ours when others ask for it.
    fn take(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        check(unsafe { (self.functions.rbd_lock_acquire)(self.image.0, LOCK_MODE_EXCLUSIVE) })
    }

    /// The records, one in a line.
    fn read_records(&self) -> Result<Vec<LockOwner>, Errno> {
        let mut text = [0_u8; RECORDS_BYTES];
        let mut len = text.len();
        // SAFETY: the image is open, the key a string, and there is room for as many bytes as named.
        let read = check(unsafe {
            (self.functions.rbd_metadata_get)(
                self.image.0,
                RECORDS_KEY.as_ptr(),
                text.as_mut_ptr().cast(),
                &raw mut len,
            )
        });
        match read {
            Err(Errno::NOENT | Errno::RANGE) => Ok(Vec::new()),
            Err(errno) => Err(errno),
            Ok(()) => {
                let text = std::ffi::CStr::from_bytes_until_nul(&text).map_err(|_| Errno::IO)?;
                let text = text.to_string_lossy();
                Ok(text.lines().filter_map(LockOwner::parse).collect())
            }
        }
    }

    fn write_records(&self, owners: impl IntoIterator<Item = LockOwner>) -> Result<(), Errno> {
        let lines = owners.into_iter().map(|owner| owner.to_string());
        let text = lines.collect::<Vec<_>>().join("\n");
        metadata::set(self.functions, self.pool, self.image, RECORDS_KEY, &text)
    }
}
