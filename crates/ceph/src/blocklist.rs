//! Dead clients that a connection has put on the cluster's blocklist.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::Errno;

use crate::errno::check;
use crate::ffi::ClusterPointer;
use crate::library::Functions;

/// How long an entry is relied on. The cluster keeps it for an hour by default.
const TRUSTED: Duration = Duration::from_secs(60);

/// When each client was added. A dead client may have had many images, and a monitor adds one entry in a second
/// (`paxos_propose_interval`).
#[derive(Debug, Default)]
pub(crate) struct Blocklist {
    added: Mutex<HashMap<String, Instant>>,
}

impl Blocklist {
    /// Adds a client, unless it was added just now, and waits until later requests of this connection reach no OSD before the
    /// entry: requests of that client are then either done or refused, and its watches have ended.
    pub(crate) fn add(
        &self,
        functions: &'static Functions,
        cluster: ClusterPointer,
        address: &str,
    ) -> Result<(), Errno> {
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        added.retain(|_, at| at.elapsed() < TRUSTED);
        if added.contains_key(address) {
            return Ok(());
        }
        let client = CString::new(address).map_err(|_| Errno::INVAL)?;
        // SAFETY: the cluster is connected, and the address a string that is only read. 0: the cluster's own time.
        check(unsafe {
            (functions.rados_blocklist_add)(cluster.0, client.as_ptr().cast_mut(), 0)
        })?;
        added.insert(address.to_owned(), Instant::now());
        Ok(())
    }
}
