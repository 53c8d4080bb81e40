//! The client that has no ring: its device starts and stops, and it sends requests.

use std::sync::mpsc::channel;

use iothread::Message;

use crate::plan::Kind;

use super::{Waits, World};

/// As many sectors the disk has at least less than at first.
const MAY_BE_CUT: u64 = 8;

impl World {
    pub(super) fn client_is_missing(&self) -> bool {
        let runs = |daemon: &crate::daemon::Daemon| daemon.client.is_some();
        self.config.client && !self.daemon.as_ref().is_some_and(runs)
    }

    /// It connects, if it is not connected.
    pub(super) fn start_client(&mut self) {
        if self.client_is_missing()
            && let Some(daemon) = &mut self.daemon
        {
            daemon.start_client(self.client.connect());
        }
    }

    /// It sends a request for what the disk has in any case.
    pub(super) fn send(&mut self, kind: Kind, sector: u64, sectors: u64, stable: bool) {
        let daemon = self.daemon.as_ref().filter(|_| self.client_stops.is_none());
        let Some((daemon, place)) = daemon.and_then(|daemon| Some((daemon, daemon.client?))) else {
            return;
        };
        let end = u64::from(self.config.sectors) - MAY_BE_CUT;
        let sector = sector % end;
        let sectors = match kind {
            Kind::Flush => 0,
            _ => sectors.min(end - sector),
        };
        let (mut guest, range) = (self.guest.borrow_mut(), (sector, sectors));
        self.client.send(&mut guest, kind, range, stable);
        daemon.wakeups(place.iothread).state().sent();
    }

    /// Its connection ends.
    pub(super) fn hang_up(&mut self) {
        if self.waits.is_none() {
            self.stop_client();
            if self.client_stops.is_some() {
                self.begin_wait(Waits::ClientStopped);
            }
        }
    }

    /// Its device is to stop when it has nothing in flight.
    pub(super) fn stop_client(&mut self) {
        if let Some(daemon) = &self.daemon
            && let Some(place) = daemon.client
        {
            let (reply, answer) = channel();
            daemon.send(place, |number| Message::Stop(number, reply));
            self.client_stops = Some(answer);
        }
    }

    /// Whether it has, if it was to.
    pub(super) fn client_has_stopped(&mut self) -> bool {
        let has_stopped = |answer: &std::sync::mpsc::Receiver<_>| answer.try_recv().is_ok();
        if !self.client_stops.as_ref().is_none_or(has_stopped) {
            return false;
        }
        if self.client_stops.is_some() {
            if let Some(daemon) = &mut self.daemon {
                daemon.client = None;
            }
            self.client_is_gone();
        }
        true
    }

    /// No more answers come to it.
    pub(super) fn client_is_gone(&mut self) {
        self.client_stops = None;
        let mut guest = self.guest.borrow_mut();
        self.client.look(&mut guest);
        self.client.forget(&mut guest);
    }
}
