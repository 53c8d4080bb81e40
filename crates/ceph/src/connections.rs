//! Connections shared by images of the same cluster.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{ClusterOptions, ConnectError, Connection};

/// Connections shared by images with equal options.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<Vec<(ClusterOptions, Weak<Connection>)>>,
}

impl Connections {
    /// Those of the process.
    #[must_use]
    pub fn of_process() -> &'static Connections {
        static CONNECTIONS: Connections = Connections {
            open: Mutex::new(Vec::new()),
        };
        &CONNECTIONS
    }

    /// A connection with these options that has room for an image, and that is not on its cluster's blocklist; a new one if there is none.
    ///
    /// # Errors
    /// As for [`Connection::open`].
    pub fn get(&self, options: &ClusterOptions) -> Result<Arc<Connection>, ConnectError> {
        if let Some(connection) = self.find(options) {
            return Ok(connection);
        }
        // Without the lock: a cluster that does not answer must not delay images of others.
        let connection = Connection::open(options)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push((options.clone(), Arc::downgrade(&connection)));
        Ok(connection)
    }

    fn find(&self, options: &ClusterOptions) -> Option<Arc<Connection>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, connection)| connection.strong_count() > 0);
        open.iter()
            .filter(|(of, _)| of == options)
            .filter_map(|(_, connection)| connection.upgrade())
            .find(|connection| {
                !connection.status().is_blocklisted()
                    && connection.log.images() < options.images_per_connection
            })
    }
}
