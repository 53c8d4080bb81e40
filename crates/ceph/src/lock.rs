//! The exclusive lock of an image, and how it gets free after a process of ours was killed.
//!
//! For the cluster a killed client lives until its watch ends (`osd_client_watch_timeout`, 30 s). If it has the lock, the lock stays
//! with it. If it only has the image open, each notification of the image's clients waits 5 s for it, and a release of the lock
//! waits for those. So each client that opens the image for writing leaves a [record](records) in the image's metadata, and those
//! whose record names a process of this host that is dead are put on the cluster's blocklist before the lock is taken. That ends
//! their watches.
//!
//! `rados_blocklist_add` waits for the map with that entry. From then on our requests name that map, and an OSD gets it before it
//! serves them: requests of a dead client are either done before ours or refused. So its lock can be broken, and it cannot get the
//! lock later by a request that was still on the way.

use std::ffi::c_int;
use std::sync::Arc;

use engine::Errno;

use crate::client_record::ClientRecord;
use crate::errno::check;
use crate::features::has_feature;
use crate::ffi::{ImagePointer, PoolPointer};
use crate::header::Header;
use crate::library::{EXCLUSIVE_LOCK_FEATURE, Functions, LOCK_MODE_EXCLUSIVE};
use crate::watchers::{self, WatchingClient};
use crate::{Connection, LockError, records};

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

/// What is known of the exclusive lock of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFeatureAndOwner {
    /// The image has the feature.
    pub is_supported: bool,
    /// This image has the lock.
    pub is_ours: bool,
}

/// The lock of an open image.
pub(crate) struct Lock {
    pub(crate) connection: Arc<Connection>,
    pub(crate) pool: PoolPointer,
    pub(crate) image: ImagePointer,
}

/// The clients of an image.
struct Clients {
    /// All that have it open for writing.
    watching: Vec<WatchingClient>,
    /// Records of those that are processes of ours, and of some that were.
    records: Vec<ClientRecord>,
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
        if self.is_ours().map_err(failed)? {
            // librbd may have taken it by itself.
            return self.take().map(|()| Attempt::Locked).map_err(failed);
        }
        let header = self.header().map_err(failed)?;
        let clients = Clients::read(self, &header).map_err(failed)?;
        let shut_out = self.shut_out_dead(&clients);
        if let Some(owner) = header.lock_owner().map_err(failed)? {
            if let Some((id, client)) = owner.manual_lock() {
                let image = name();
                return Err(LockError::Manual { image, id, client });
            }
            match clients.record_of(&owner.address) {
                Some(record) if record.is_dead() => {
                    tracing::warn!(
                        image = image_name,
                        address = record.address,
                        pid = record.pid,
                        "breaking the lock of a process of ours that has ended"
                    );
                    self.shut_out(record).map_err(failed)?;
                    header.break_lock(&owner).map_err(failed)?;
                }
                // librbd itself breaks the lock of a client whose watch has ended.
                _ if !clients.is_watching(&owner.address) => {}
                Some(record) if record.is_this_process() => {
                    return Ok(Attempt::HeldHere {
                        address: owner.address,
                    });
                }
                record => {
                    return Err(LockError::Held {
                        image: name(),
                        is_alive: record.is_some_and(ClientRecord::is_alive),
                        owner_address: owner.address,
                    });
                }
            }
        }
        match self.take() {
            Ok(()) => {}
            // Another client was faster.
            Err(errno @ (Errno::ROFS | Errno::BUSY)) => {
                return Err(match header.lock_owner().map_err(failed)? {
                    Some(owner) => LockError::Held {
                        image: name(),
                        owner_address: owner.address,
                        is_alive: false,
                    },
                    None => failed(errno),
                });
            }
            Err(errno) => return Err(failed(errno)),
        }
        if let Err(errno) = shut_out {
            tracing::warn!(
                image = image_name,
                %errno,
                "a process of ours that has ended is not on the blocklist: for 30 s, the cluster waits for it when the lock is released"
            );
        }
        if !clients.has_record_of(self)
            && let Err(errno) = self.record_this_process()
        {
            tracing::warn!(
                image = image_name,
                %errno,
                "the owner of the exclusive lock is not recorded: if this process is killed, its successor waits until the cluster releases the lock"
            );
        }
        Ok(Attempt::Locked)
    }

    /// Records this process as a client of the image, and removes the records of clients that have gone.
    pub(crate) fn record_this_process(&self) -> Result<(), Errno> {
        let header = self.header()?;
        let clients = Clients::read(self, &header)?;
        records::write(&header, self.own_address(&clients)?)?;
        let records = clients.records.iter();
        let mut gone = records.filter(|record| !clients.is_watching(&record.address));
        // The lock may still have to be broken.
        let owner = header.lock_owner()?.map(|owner| owner.address);
        gone.try_for_each(|record| match &owner {
            Some(owner) if *owner == record.address => Ok(()),
            _ => records::remove(&header, record),
        })
    }

    fn functions(&self) -> &'static Functions {
        self.connection.functions
    }

    fn header(&self) -> Result<Header, Errno> {
        Header::new(self.functions(), self.pool, self.image)
    }

    fn is_supported(&self) -> Result<bool, Errno> {
        has_feature(self.functions(), self.image, EXCLUSIVE_LOCK_FEATURE)
    }

    /// Whether the image has such a lock, and whether it is ours.
    pub(crate) fn feature_and_owner(&self) -> Result<LockFeatureAndOwner, Errno> {
        Ok(LockFeatureAndOwner {
            is_supported: self.is_supported()?,
            is_ours: self.is_ours()?,
        })
    }

    fn is_ours(&self) -> Result<bool, Errno> {
        let mut is_owner: c_int = 0;
        // SAFETY: the image is open.
        let asked = check(unsafe {
            (self.functions().rbd_is_exclusive_lock_owner)(self.image.0, &raw mut is_owner)
        });
        asked.map(|()| is_owner != 0)
    }

    /// Puts the dead clients that the cluster takes for living ones on its blocklist.
    fn shut_out_dead(&self, clients: &Clients) -> Result<(), Errno> {
        let records = clients.records.iter();
        let watching = records.filter(|record| clients.is_watching(&record.address));
        let mut dead = watching.filter(|record| record.is_dead());
        dead.try_for_each(|record| self.shut_out(record))
    }

    fn shut_out(&self, dead: &ClientRecord) -> Result<(), Errno> {
        let cluster = self.connection.cluster().ok_or(Errno::SHUTDOWN)?;
        let blocklist = &self.connection.blocklist;
        blocklist.add(self.functions(), cluster.pointer(), &dead.address)
    }

    /// Takes the lock so that it stays ours when others ask for it.
    fn take(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        check(unsafe { (self.functions().rbd_lock_acquire)(self.image.0, LOCK_MODE_EXCLUSIVE) })
    }

    /// The address of this client as the cluster knows it.
    fn own_address<'a>(&self, clients: &'a Clients) -> Result<&'a str, Errno> {
        let own_id = self.connection.client_id();
        let mut watching = clients.watching.iter();
        let this = watching.find(|client| client.id == own_id);
        this.map(|client| &*client.address).ok_or(Errno::NOENT)
    }
}

impl Clients {
    fn read(lock: &Lock, header: &Header) -> Result<Self, Errno> {
        // Records first: a client that opens the image in between is then not taken for one that has gone.
        let records = records::read(header)?;
        let watching = watchers::list(lock.functions(), lock.image)?;
        Ok(Self { watching, records })
    }

    fn is_watching(&self, address: &str) -> bool {
        let mut watching = self.watching.iter();
        watching.any(|client| client.address == address)
    }

    /// Whether this process was recorded when the image was opened.
    fn has_record_of(&self, lock: &Lock) -> bool {
        let own_address = lock.own_address(self).ok();
        own_address.is_some_and(|address| self.record_of(address).is_some())
    }

    fn record_of(&self, address: &str) -> Option<&ClientRecord> {
        let mut records = self.records.iter();
        records.find(|record| record.address == address)
    }
}
