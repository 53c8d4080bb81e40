//! Access to the present front-end of a server, from any thread: waits for its requests, exchanges the node behind its device, and
//! notifies it of configuration changes.
//!
//! All functions may wait for requests in flight, and so for a disk.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use super::shared::{ServerShared, lock_connection};
use crate::connection::Connection;

/// A handle to the front-end that is connected to a server at the moment, if there is one. It may outlive the server:
/// then there is none.
#[derive(Clone)]
pub struct FrontEndHandle(pub(super) Arc<ServerShared>);

impl FrontEndHandle {
    /// Waits until all requests are done that the queues of the present front-end have taken so far. They take more
    /// meanwhile.
    pub fn settle_queues(&self) {
        if let Some(connection) = self.present_connection() {
            let replies = lock_connection(&connection).begin_settle();
            wait_for_replies(replies);
        }
    }

    /// Exchanges the node behind the device while no queue uses it: the queues of the present
    /// front-end finish the requests that they have taken, and go on with the new node. New requests wait in their
    /// rings meanwhile. `exchange` must be short.
    pub fn exchange_when_drained(&self, exchange: impl Fn()) {
        let drain = |connection: &Mutex<Connection>| {
            let replies = lock_connection(connection).pause_queues_for_node_exchange();
            wait_for_replies(replies);
        };
        self.exchange_with_callbacks(
            exchange,
            drain,
            Connection::resume_queues_after_node_exchange,
        );
    }

    /// Exchanges the node behind the device while its queues run: each uses the new one from its next request on.
    /// Returns when the requests that they had taken before are done. `exchange` must be short.
    pub fn exchange_while_running(&self, exchange: impl Fn()) {
        let begin_node_switch_if_exchanged = |connection: &mut Connection, exchanged| {
            connection.begin_node_switch_if_exchanged(exchanged)
        };
        let replies =
            self.exchange_with_callbacks(exchange, |_| {}, begin_node_switch_if_exchanged);
        wait_for_replies(replies);
    }

    /// Calls `before`, `exchange` and `after` for the front-end that is connected, again if another one has connected
    /// meanwhile. Returns the result of `after` for the front-end that was connected during the exchange.
    fn exchange_with_callbacks<T: Default>(
        &self,
        exchange: impl Fn(),
        before: impl Fn(&Mutex<Connection>),
        after: impl Fn(&mut Connection, bool) -> T,
    ) -> T {
        loop {
            let connection = self.present_connection();
            if let Some(connection) = &connection {
                before(connection);
            }
            let locked = connection.as_deref().map(lock_connection);
            // A front-end that connects now starts its queues after the exchange; one that has connected
            // meanwhile needs another turn.
            let state = self.0.lock_state();
            let still_connected = match (&connection, &state.connection) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            if still_connected {
                exchange();
            }
            drop(state);
            let after = locked.map(|mut connection| after(&mut connection, still_connected));
            if still_connected {
                return after.unwrap_or_default();
            }
        }
    }

    /// Notifies the present front-end, if it wants that, that the device's configuration space has changed. Does not
    /// wait for it to read the message.
    pub fn notify_config_changed_if_wanted(&self) {
        if let Some(connection) = self.present_connection() {
            lock_connection(&connection).notify_config_changed_if_wanted();
        }
    }

    /// The connection of the present front-end. A slow front-end delays nothing here: the connection's lock is held
    /// while a message is handled, and not while one is read or answered.
    fn present_connection(&self) -> Option<Arc<Mutex<Connection>>> {
        self.0.lock_state().connection.clone()
    }
}

/// Waits for queues without the lock, so that a queue whose requests a filter delays can be stopped meanwhile, which ends the wait.
fn wait_for_replies(replies: Vec<Receiver<()>>) {
    for reply in replies {
        // An error: the queue is gone, and its requests are done.
        let _ = reply.recv();
    }
}
