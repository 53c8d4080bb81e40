//! A guest that runs moves to another QEMU, and its disk to another server, as when it goes to another host.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::attach;
use crate::error::{Error, Result};
use crate::monitor::query;
use crate::qemu::{Guest, Machine};
use crate::server::Server;

/// For memory of half a GiB, most of it unused: only a migration that does not end takes it.
const LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// As fast as it goes, and with a pause that an emulated processor on a busy host can keep.
const PARAMETERS: &str = r#"{"max-bandwidth": 1073741824, "downtime-limit": 1000}"#;

/// A guest that may be moved while it waits for an answer; its other processes go on meanwhile.
pub struct Movable<'a> {
    pub(crate) guest: &'a mut Guest,
    pub(crate) machine: &'a Machine,
    pub(crate) folder: &'a Path,
    /// How often it was moved.
    pub(crate) moves: &'a mut u32,
}

impl Movable<'_> {
    /// Moves the guest to another QEMU whose disk is `server`'s. The old QEMU has ended when this returns.
    ///
    /// # Errors
    /// [`Error::Io`] with what either QEMU says, [`Error::Migration`] if it fails or does not end.
    pub fn move_to(&mut self, server: &Server) -> Result<()> {
        let from = monitor(self.folder, *self.moves);
        *self.moves += 1;
        let to = monitor(self.folder, *self.moves);
        let incoming = self.folder.join(format!("incoming-{}", self.moves));
        let mut next = self.machine.clone();
        next.disks = attach::arguments(server, "disk", self.machine.extras);
        next.monitor = Some(to.clone());
        next.incoming = Some(incoming.clone());
        let child = self.guest.start_next(&next)?;
        let qmp = |socket: &Path, command: &str, arguments: &str| {
            query(socket, command, arguments)
                .map_err(Error::io(format!("{command} {arguments} in QEMU")))
        };
        // Socket files exist before QEMU listens on them; its monitor answers once all of them listen.
        wait_until("QEMU listens", || {
            Ok(query(&to, "query-status", "{}").is_ok())
        })?;
        qmp(&from, "migrate-set-parameters", PARAMETERS)?;
        let uri = format!(r#"{{"uri": "unix:{}"}}"#, incoming.display());
        qmp(&from, "migrate", &uri)?;
        wait_until("the guest has moved", || {
            let state = qmp(&from, "query-migrate", "{}")?;
            match state.contains(r#""status": "failed""#) {
                true => Err(Error::Migration(state)),
                false => Ok(state.contains(r#""status": "completed""#)),
            }
        })?;
        wait_until("the guest runs", || {
            Ok(qmp(&to, "query-status", "{}")?.contains(r#""running": true"#))
        })?;
        self.guest.go_on_in(child);
        Ok(())
    }
}

/// Where the monitor of the QEMU is that the guest has moved to so often.
pub(crate) fn monitor(folder: &Path, moves: u32) -> PathBuf {
    folder.join(format!("qemu-{moves}"))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !is_so()? {
        if Instant::now() >= deadline {
            return Err(Error::Migration(format!("not within {LIMIT:?}: {what}")));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
