//! The end of a run: nothing else is done to the world, and all comes to an end, which is looked at.

use iothread::ResumeAction;

use crate::clock;
use crate::daemon::Daemon;
use crate::plan::{DisconnectReason, End, Then};

use super::{Waits, World};

/// So many rounds without an end are one too many.
const ROUNDS: u32 = 20_000;

impl World {
    pub(super) fn finish(&mut self, salt: u64) -> Result<(), String> {
        self.trace.say(|| "-- the end begins".to_owned());
        self.kernel.state().answers.clear();
        self.guest.borrow_mut().shows_all();
        self.late_kicks();
        if self.daemon.is_none() {
            self.connect();
        }
        let since_ns = clock::now_ns();
        let longest_ns = self.guest.borrow().throttles.longest_wait_ns(since_ns);
        let mut rounds = 0;
        while self.goes_on() {
            self.look_around()?;
            rounds += 1;
            if rounds > ROUNDS {
                return Err("it never ends".to_owned());
            }
        }
        self.look_around()?;
        let guest = self.guest.borrow();
        if let Some((id, asked)) = guest.asked.first_key_value() {
            let queue = guest.queue_of(*id);
            return Err(format!(
                "#{id} ({}) on queue {queue} is never answered; nothing moves any more",
                crate::guest::describe(asked)
            ));
        }
        if let Some(id) = self.client.waits_for() {
            return Err(format!(
                "#{id} of the client is never answered; nothing moves any more"
            ));
        }
        if self.has_job() {
            return Err("the job never ends; nothing moves any more".to_owned());
        }
        self.check_throttles(since_ns, longest_ns)?;
        guest.check_memory()?;
        if guest.has_old_tables() {
            return Err(
                "an older table of the guest's memory is in use, and no request is".to_owned(),
            );
        }
        guest.check_disk(self.kernel.state().disk().bytes())?;
        drop(guest);
        let salt = u32::try_from(salt & 0xffff_ffff).expect("32 bits");
        self.power_fail(salt);
        self.look_around()
    }

    /// One round of what happens by itself; false when nothing does.
    fn goes_on(&mut self) -> bool {
        if self.waits.is_none() {
            let missing = self
                .daemon
                .as_ref()
                .is_none_or(|daemon| daemon.queues.contains(&None))
                || self.client_is_missing();
            if missing {
                self.connect();
                return true;
            }
            // Only what is not enabled: it would look at its ring.
            let disabled = self.known.iter().position(|known| known.disabled);
            if let Some(queue) = disabled {
                self.enable(queue, true);
                return true;
            }
            if self.resume_paused_job() || self.finish_mirror() {
                return true;
            }
            if self.is_copied() {
                self.leave(DisconnectReason::Migrate);
                return true;
            }
        }
        if self.machine_works() {
            return true;
        }
        let mut looked = false;
        for queue in 0..self.config.queues {
            let mut guest = self.guest.borrow_mut();
            looked |= guest.look(queue, Then::Sleeps);
        }
        looked || self.helped()
    }

    /// Iothreads run, the kernel ends requests, or workers do jobs; false if there is nothing to do.
    pub(super) fn machine_works(&mut self) -> bool {
        if let Some(Waits::Job(_, answers)) = &self.waits
            && answers.is_empty()
        {
            // Without queues a job waits for nothing.
            return true;
        }
        if self.daemon.as_ref().is_some_and(Daemon::is_awake) {
            (0..self.config.iothreads).for_each(|iothread| self.iterate(iothread));
            return true;
        }
        if self.kernel.state().held_count() > 0 {
            self.complete(0, End::Whole);
            return true;
        }
        if self
            .daemon
            .as_ref()
            .is_some_and(|daemon| daemon.waiting_job_count() > 0)
        {
            self.work(0, false);
            return true;
        }
        false
    }

    /// Nothing moves. Time passes, and the operator resumes what waits.
    fn helped(&mut self) -> bool {
        let Some(daemon) = &self.daemon else {
            return false;
        };
        self.check_that_no_stop_waits(daemon);
        // An exchange or an upgrade may wait for that, with queues disabled, and what was resumed for these.
        if daemon.pass() {
            return true;
        }
        if daemon.waiting() > 0 {
            if !self.may_be_parked {
                let waits = "requests are parked: they were resumed, and have not failed again";
                self.guest.borrow_mut().complain(waits.to_owned());
                return false;
            }
            self.resume(ResumeAction::Retry);
            return true;
        }
        false
    }
}
