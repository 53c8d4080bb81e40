//! Results of accept(2): one treatment for the listening sockets of all servers.

use std::io;
use std::time::Duration;

/// How long a server waits after [`AcceptFailed`] before it accepts again.
pub const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// accept(2) has failed for a reason that lasts, most likely since descriptors have run out. It has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptFailed;

/// The client that accept(2) has returned; `None` if there is none any more.
///
/// # Errors
/// Those that last for a while.
pub fn client_if_present<T>(accepted: Result<T, impl Into<io::Error>>) -> io::Result<Option<T>> {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    match accepted.map_err(Into::into) {
        Ok(client) => Ok(Some(client)),
        Err(error) if matches!(error.kind(), WouldBlock | ConnectionAborted | Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The client that accept(2) has returned, for a server that accepts again after [`ACCEPT_RETRY_DELAY`]. `client` is what
/// connects there, for the log, and `export` what for.
///
/// # Errors
/// [`AcceptFailed`].
pub fn client_or_warn<T>(
    accepted: Result<T, impl Into<io::Error>>,
    client: &str,
    export: Option<&str>,
) -> Result<Option<T>, AcceptFailed> {
    client_if_present(accepted).map_err(|error| {
        tracing::warn!(
            export,
            %error,
            advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
            "cannot accept {client}; trying again"
        );
        AcceptFailed
    })
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn only_errors_that_last_are_reported() {
        for passing in [Errno::AGAIN, Errno::INTR, Errno::CONNABORTED] {
            assert_eq!(
                client_or_warn::<()>(Err(passing), "a client", None),
                Ok(None)
            );
        }
        for lasting in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            let failed = client_or_warn::<()>(Err(lasting), "a client", Some("disk"));
            assert_eq!(failed, Err(AcceptFailed));
        }
        assert_eq!(
            client_or_warn(Ok::<_, Errno>(7), "a client", None),
            Ok(Some(7))
        );
    }
}
