//! TLS of a server: its certificates, and the clients that are let in.

use std::io;

use tls::{AccessList, ServerCredentials, Session};

/// Certificates of a server, and of the clients that it serves. All of its connections are encrypted.
pub struct ServerTls {
    /// Certificate and authority.
    pub credentials: ServerCredentials,
    /// The names of clients that are let in; `None`: all that the authority has signed.
    pub access: Option<AccessList>,
}

impl ServerTls {
    pub(crate) fn new_session(&self) -> io::Result<Session> {
        Session::server(&self.credentials)
    }

    /// Checks whether a client of this name is let in.
    pub(crate) fn check_peer(&self, peer: Option<String>) -> Result<(), String> {
        let Some(access) = &self.access else {
            return Ok(());
        };
        match peer {
            Some(name) if access.allows(&name) => Ok(()),
            Some(name) => Err(format!(
                "tls-authz does not allow '{}'",
                name.escape_debug()
            )),
            None => Err("it has no certificate whose name tls-authz could allow".to_owned()),
        }
    }
}
