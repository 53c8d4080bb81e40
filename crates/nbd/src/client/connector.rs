//! Connects in the background: a thread for each queue that needs a connection, until one is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Wake;
use super::connect::connect;
use super::disk::Disk;
use super::ending::EndingConnection;
use super::reconnection::Reconnection;

/// The wait between two attempts, at first; it is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest wait between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Starts to connect, after a pause. `old` is the broken connection. Without one it is the first connection of a queue, for which one
/// that no queue uses is as good.
pub(super) fn start(
    disk: &Arc<Disk>,
    old: Option<EndingConnection>,
    pause: Duration,
    wake: Wake,
) -> Arc<Reconnection> {
    let reconnection = Reconnection::new(wake);
    let (launcher, disk, of_thread) = (disk.launcher(), disk.clone(), reconnection.clone());
    launcher.spawn_thread("nbd connect", move || {
        match old {
            Some(old) => old.wait(),
            None => disk.offer_connection_after_ends(&of_thread),
        }
        connect_until_cancelled(&of_thread, &disk, pause);
    });
    reconnection
}

fn connect_until_cancelled(reconnection: &Reconnection, disk: &Disk, mut pause: Duration) {
    let mut last_error = String::new();
    while !reconnection.is_cancelled_after(pause) {
        let options = disk.options();
        let connected = connect(options, Instant::now() + options.attempt_timeout)
            .and_then(|connected| disk.check_unchanged(&connected).map(|()| connected));
        match connected {
            Ok(connected) => return drop(reconnection.offer(connected)),
            Err(error) => {
                let error = error.to_string();
                if error != last_error {
                    tracing::warn!(%error, "no new connection to {} yet", disk.options());
                    last_error = error;
                }
            }
        }
        pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }
}
