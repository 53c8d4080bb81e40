//! An image whose lock is still held when the program starts, by a process that has ended just now.
//!
//! What a process had asked of an io_uring outlives it until the disk has answered, and keeps the image open and locked: the
//! process that a supervisor starts in its place may come too early. So at the start a locked image is tried again for a
//! moment. What a monitor's client asks for is not: it hears at once, and can ask again.

use std::thread;
use std::time::{Duration, Instant};

use block::NodeError;

/// For all images together. A disk that does not answer for longer is a matter for whoever supervises the program.
const PATIENCE: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(10);

/// How long images are waited for.
#[derive(Default)]
pub(crate) struct Handover {
    until: Option<Instant>,
}

impl Handover {
    /// Waits a little if the error may go away by itself; true: it is to be tried again.
    pub fn waits_for(&mut self, error: &NodeError) -> bool {
        // Nobody else has what this program has.
        if !matches!(error, NodeError::Locked { here: false, .. }) {
            return false;
        }
        let now = Instant::now();
        let until = *self.until.get_or_insert_with(|| {
            tracing::info!(
                %error, seconds = PATIENCE.as_secs(),
                "the image is locked: trying again, in case its last user has only just ended"
            );
            now + PATIENCE
        });
        if now >= until {
            return false;
        }
        thread::sleep(INTERVAL);
        true
    }
}
