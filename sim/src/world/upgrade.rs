//! Live upgrades: the queues are disabled, settle, and stop; another process goes on with them where they stood.
//!
//! The iothread gets the messages that `vhost_user::PausedServer` and `vhost_user::RestoredConnection` send, in their order. Their
//! own code, with sockets and processes, does not run here.

use std::sync::mpsc::Receiver;

use block::dirty_bitmap::SaveKind;
use iothread::Message;
use virtqueue::queue_setup::QueueCommand;

use crate::daemon::Daemon;
use crate::plan::Handover;

use super::{Waits, World};

impl World {
    /// An upgrade begins: the queues take nothing more.
    pub(super) fn upgrade(&mut self, how: Handover) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        // A guest that is being migrated is not handed over, nor is a job; without queues there is nothing to be seen.
        if self.is_copied() || self.running().is_empty() || self.has_job() {
            return;
        }
        self.begin_wait(Waits::HandoverSettled(how, daemon.disable()));
    }

    /// All queues have settled.
    pub(super) fn handover_settled(&mut self, how: Handover) {
        let Some(daemon) = &self.daemon else {
            return;
        };
        if how == Handover::Refused {
            daemon.enable(self.known.iter().map(|known| !known.disabled));
            return;
        }
        daemon.tell(|| QueueCommand::LeaveParked);
        let answers = self.stop_all(|_| true);
        let moved = answers.iter().map(|(index, _)| *index).collect();
        self.stop_client();
        self.begin_wait(Waits::HandoverStopped(how, moved, answers));
    }

    /// All queues have stopped: they start where they stood, and are enabled as they were.
    pub(super) fn handover_stopped(&mut self, how: Handover, moved: &[usize]) {
        if how == Handover::Done {
            self.seen.add("upgrades", 1);
            let old = self.daemon.take();
            let saved = |daemon: Daemon| daemon.nodes.bitmaps().save(SaveKind::Handover);
            self.start_daemon_with(old.map(saved));
        }
        for index in moved {
            self.start_queue(*index, false);
        }
        self.start_client();
        for index in moved {
            self.enable(*index, !self.known[*index].disabled);
        }
    }

    /// Stops those queues that run; where each says that it has.
    pub(super) fn stop_all(&self, which: impl Fn(usize) -> bool) -> Vec<(usize, Receiver<u32>)> {
        let Some(daemon) = &self.daemon else {
            return Vec::new();
        };
        let running = daemon.queues.iter().enumerate();
        let running = running.filter_map(|(index, running)| Some((index, (*running)?)));
        let stopped = running.filter(|(index, _)| which(*index));
        stopped
            .map(|(index, running)| {
                let (reply, answer) = std::sync::mpsc::channel();
                daemon.send(running.place, |place| Message::Stop(place, reply));
                (index, answer)
            })
            .collect()
    }
}
