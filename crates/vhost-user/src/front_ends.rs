//! Access to the present front-end of a server, from any thread.
//!
//! All of this may wait for requests in flight, and so for a disk.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use crate::connection::Connection;
use crate::server::{Shared, lock};

/// Reaches whichever front-end is connected to a server at the moment, if there is one. It may outlive the server:
/// then there is none.
#[derive(Clone)]
pub struct FrontEnds(pub(crate) Arc<Shared>);

impl FrontEnds {
    /// Waits until all is done that the queues of the present front-end have taken so far. They take more
    /// meanwhile.
    pub fn settle(&self) {
        if let Some(session) = self.session() {
            let settling = lock(&session).begin_settle();
            wait_for(settling);
        }
    }

    /// Exchanges what stands behind the device while no queue uses it: the queues of the present
    /// front-end finish what they have taken, and go on with what is new. Requests wait in their
    /// rings meanwhile. `exchange` must be short.
    pub fn exchange(&self, exchange: impl Fn()) {
        let finish = |session: &Mutex<Connection>| {
            let finishing = lock(session).begin_exchange();
            wait_for(finishing);
        };
        self.change(exchange, finish, Connection::end_exchange);
    }

    /// Exchanges what stands behind the device while its queues run: each goes on with what is new from its next request on.
    /// Returns when what they had taken before is done. `exchange` must be short.
    pub fn switch(&self, exchange: impl Fn()) {
        let begin_switch = |session: &mut Connection, exchanged| session.begin_switch(exchanged);
        let switching = self.change(exchange, |_| {}, begin_switch);
        wait_for(switching);
    }

    /// Returns the result of `after` for the front-end that was there when it was exchanged.
    fn change<T: Default>(
        &self,
        exchange: impl Fn(),
        before: impl Fn(&Mutex<Connection>),
        after: impl Fn(&mut Connection, bool) -> T,
    ) -> T {
        loop {
            let session = self.session();
            if let Some(session) = &session {
                before(session);
            }
            let locked = session.as_deref().map(lock);
            // A front-end that comes, or has come meanwhile, starts its queues after this or has them
            // counted in.
            let state = self.0.state();
            let same = match (&session, &state.session) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            if same {
                exchange();
            }
            drop(state);
            let after = locked.map(|mut session| after(&mut session, same));
            if same {
                return after.unwrap_or_default();
            }
        }
    }

    /// The device's configuration space has changed: tells the present front-end, if it wants to know. Does not
    /// wait for it to read that.
    pub fn tell_config_changed(&self) {
        if let Some(session) = self.session() {
            lock(&session).tell_config_changed();
        }
    }

    /// A front-end's silence delays nothing here: the lock is held while a message is carried out, and not while
    /// one is read or answered.
    fn session(&self) -> Option<Arc<Mutex<Connection>>> {
        self.0.state().session.clone()
    }
}

/// Waits for queues, without the lock: a queue whose requests a filter delays may be stopped meanwhile, which ends the wait.
fn wait_for(answers: Vec<Receiver<()>>) {
    for answer in answers {
        // An error: the queue is gone, and with it what it had taken.
        let _ = answer.recv();
    }
}
