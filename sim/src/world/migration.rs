//! Migrations: the guest's memory is copied by its log, then the guest goes on in the copy, with another daemon.

use std::sync::mpsc::channel;

use virtqueue::QueueDirtyLog;
use virtqueue::queue_setup::QueueCommand;

use crate::migration_copy::MigrationCopy;

use super::{Waits, World};

impl World {
    /// Whether the guest's memory is being copied.
    pub(super) fn is_copied(&self) -> bool {
        self.guest.borrow().copying.is_some()
    }

    /// A migration begins, or its log is exchanged for another one.
    pub(super) fn log(&mut self) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        let copied = self.is_copied();
        let mut guest = self.guest.borrow_mut();
        let memory = guest.memory.clone();
        let log = guest
            .copying
            .get_or_insert_with(|| MigrationCopy::new(memory))
            .new_log();
        self.has_lost_log &= copied;
        let mut answers = Vec::new();
        for (running, queue) in daemon.queues.iter().zip(&guest.queues) {
            if let Some(running) = running {
                let log = QueueDirtyLog {
                    log: log.clone(),
                    used: Some(queue.driver.layout().used),
                };
                let (reply, answer) = channel();
                daemon.tell_queue(*running, QueueCommand::SetLog(Some(log), reply));
                answers.push(answer);
            }
        }
        drop(guest);
        self.begin_wait(Waits::Logged(answers));
    }

    /// All queues have said that they log what they write, or were started so.
    pub(super) fn is_logged(&mut self) {
        if let Some(copying) = &mut self.guest.borrow_mut().copying {
            copying.is_logged();
        }
    }

    /// The migration is given up.
    pub(super) fn log_no_more(&mut self) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        if self.guest.borrow_mut().copying.take().is_some() {
            daemon.tell(|| QueueCommand::SetLog(None, channel().0));
        }
    }

    /// All queues have stopped: the guest goes on elsewhere. What was not copied yet is; then the copy is what the memory is.
    pub(super) fn moves(&mut self) {
        let busy = self.kernel.state().held_count();
        let has_job = self.job.take().is_some();
        self.daemon = None;
        let mut guest = self.guest.borrow_mut();
        let Some(copying) = guest.copying.take() else {
            return;
        };
        if busy > 0 && !has_job {
            guest.complain(format!(
                "all queues have stopped, and the kernel still has {busy} requests"
            ));
        }
        // What a dead process had begun and is still in the in-flight region is carried out once more, and writes its buffers then.
        let lost = self.has_lost_log;
        match copying.finish(|addr| lost && guest.is_to_be_written(addr)) {
            Ok(()) => self.seen.add("migrations", 1),
            Err(addr) => {
                let what = guest.what_is_at(addr);
                guest.complain(format!(
                    "the guest goes on in a copy of its memory that is not the same at {addr:#x} ({what}): the dirty log does not say that this \
                     was written"
                ));
            }
        }
    }
}
