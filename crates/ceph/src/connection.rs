//! A connection to a cluster: one client.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::Errno;

use crate::blocklist::Blocklist;
use crate::client_record;
use crate::cluster_handle::ClusterHandle;
use crate::library::{self, Functions};
use crate::log::{LogContext, LogPipe};
use crate::thread_launcher::has_launcher;
use crate::waiting_calls::WaitingCalls;
use crate::{ClusterOptions, ConnectError, ConnectionStatus};

/// How long the report of a refusal waits for the end of the log, which has the reason.
const LOG_END_TIMEOUT: Duration = Duration::from_secs(1);

/// How long other monitors may take to accept a client that one has refused. A monitor refuses the key of a user only if the cluster
/// does not have it, or has not sent it to this monitor yet.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(2);

/// librados' default of the client's name.
const DEFAULT_USER: &str = "admin";

/// A client of a cluster.
///
/// Dropping it does not wait: the connection is closed later, by another thread, when its images are. See
/// [`exit_process`](crate::exit_process).
pub struct Connection {
    pub(crate) functions: &'static Functions,
    calls: WaitingCalls,
    pub(crate) log: Arc<LogContext>,
    /// `None` only at the end.
    cluster: Option<Arc<ClusterHandle>>,
    status: Arc<ConnectionStatus>,
    /// Dead clients.
    pub(crate) blocklist: Blocklist,
}

impl Connection {
    /// Connects; waits at most `connect_timeout`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn open(options: &ClusterOptions) -> Result<Arc<Connection>, ConnectError> {
        let functions = library::functions()?;
        // A sandbox may deny it later.
        client_record::read_identity();
        let calls = WaitingCalls::start().map_err(ConnectError::Thread)?;
        let log = Arc::new(LogContext::new(
            options.monitors.join(","),
            options.key.clone(),
        ));
        let connected = {
            let end = Instant::now() + options.connect_timeout;
            let deadline = || {
                let refused_at = log.refused_at();
                refused_at.map_or(end, |at| end.min(at + ACCEPT_TIMEOUT))
            };
            let (options, log) = (options.clone(), Arc::clone(&log));
            calls.call_until(deadline, move || connect(functions, &options, &log))
        };
        let (cluster, fsid) =
            connected.unwrap_or_else(|errno| Err(refusal(errno, options, &log)))?;
        let user = options.user.clone();
        let user = user.unwrap_or_else(|| DEFAULT_USER.to_owned());
        let status = Arc::new(ConnectionStatus::new(fsid, log.monitors(), user));
        tracing::info!(
            fsid = status.fsid(),
            monitors = status.monitors(),
            connection = status.number(),
            "connected to Ceph"
        );
        Ok(Arc::new(Connection {
            functions,
            calls,
            log,
            cluster: Some(Arc::new(cluster)),
            status,
            blocklist: Blocklist::default(),
        }))
    }

    /// The cluster's identity, a UUID.
    #[must_use]
    pub fn fsid(&self) -> &str {
        self.status.fsid()
    }

    /// Its state, which outlives it.
    #[must_use]
    pub fn status(&self) -> &Arc<ConnectionStatus> {
        &self.status
    }

    /// The number that the cluster gave this client; 0 only at the end.
    pub(crate) fn client_id(&self) -> u64 {
        self.cluster
            .as_ref()
            .map_or(0, |cluster| cluster.client_id())
    }

    /// The handle, for calls that wait. `None` only at the end.
    pub(crate) fn cluster(&self) -> Option<Arc<ClusterHandle>> {
        self.cluster.clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Images that are not closed yet keep the handle.
        if let Some(cluster) = self.cluster.take() {
            self.calls.post(move || drop(cluster));
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("fsid", &self.fsid())
            .field("images", &self.log.images())
            .finish_non_exhaustive()
    }
}

/// On the thread: connects, and reads the cluster's identity.
fn connect(
    functions: &'static Functions,
    options: &ClusterOptions,
    log: &Arc<LogContext>,
) -> Result<(ClusterHandle, String), ConnectError> {
    let (pipe, log_end) = LogPipe::start(Arc::clone(log)).map_err(ConnectError::Thread)?;
    let mut cluster = ClusterHandle::new(functions, options, pipe)?;
    let monitors = cluster.monitors();
    if !monitors.is_empty() {
        log.set_monitors(monitors);
    }
    match cluster.connect().and_then(|()| cluster.fsid()) {
        Ok(fsid) => Ok((cluster, fsid)),
        Err(errno) => {
            let keyring = unreadable_keyring(&cluster.keyring_files());
            // Shuts down, which writes the rest of the log.
            drop(cluster);
            log_end.wait(LOG_END_TIMEOUT);
            Err(match (refusal(errno, options, log), keyring) {
                (
                    ConnectError::Refused { user, .. } | ConnectError::Failed { user, .. },
                    Some((path, error)),
                ) => no_key(user, path, error),
                (refusal, _) => refusal,
            })
        }
    }
}

/// The first of these files that exists, or the first one of all, if none can be opened.
fn unreadable_keyring(files: &[PathBuf]) -> Option<(PathBuf, io::Error)> {
    let mut first = None;
    for path in files {
        match File::open(path) {
            Ok(_) => return None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                first.get_or_insert((path.clone(), error));
            }
            Err(error) => return Some((path.clone(), error)),
        }
    }
    first
}

/// The error for a client without a keyring.
fn no_key(user: String, path: PathBuf, error: io::Error) -> ConnectError {
    let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
    let advice = match is_denied && has_launcher() {
        true => {
            "; the sandbox permits keyrings in /etc and in the folder of conf: move it there, or give a file with the key (key-secret, or keyfile of serve)"
        }
        false => "",
    };
    ConnectError::Keyring {
        user,
        path,
        error,
        advice,
    }
}

/// The error for an error number of `rados_connect`.
fn refusal(errno: Errno, options: &ClusterOptions, log: &LogContext) -> ConnectError {
    let (monitors, detail) = (log.monitors(), log.last_error_detail());
    let user = user_name(options);
    match errno {
        Errno::NOENT if monitors.is_empty() => ConnectError::NoMonitors,
        Errno::ACCESS | Errno::PERM => ConnectError::Refused {
            monitors,
            user,
            detail,
        },
        Errno::TIMEDOUT if log.refused_at().is_some() => ConnectError::Refused {
            monitors,
            user,
            detail,
        },
        Errno::TIMEDOUT => ConnectError::Timeout {
            monitors,
            user,
            timeout: options.connect_timeout,
            detail,
        },
        errno => ConnectError::Failed {
            monitors,
            user,
            errno,
            detail,
        },
    }
}

/// The client's name with its type.
fn user_name(options: &ClusterOptions) -> String {
    format!("client.{}", options.user.as_deref().unwrap_or(DEFAULT_USER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyring_that_cannot_be_opened_is_the_first_that_exists_or_the_first_of_all() {
        let named = |files: &[&str]| {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            unreadable_keyring(&files).map(|(path, _)| path)
        };
        let (absent, no_folder, readable) = ("/nonexistent/a", "/dev/null/b", "/dev/null");
        assert_eq!(named(&[absent, "/nonexistent/b"]), Some(absent.into()));
        assert_eq!(named(&[absent, no_folder]), Some(no_folder.into()));
        assert_eq!(named(&[absent, readable]), None);
    }

    #[test]
    fn a_refusal_names_monitors_and_client_and_the_reason_in_the_log() {
        let options = ClusterOptions {
            user: Some("vm".to_owned()),
            ..Default::default()
        };
        let log = LogContext::new("192.0.2.1:3300".to_owned(), None);
        log.emit("2026-01-02T03:04:05.678+0000 7f0a -1 monclient: bad key");
        for errno in [Errno::ACCESS, Errno::TIMEDOUT, Errno::INVAL] {
            let text = refusal(errno, &options, &log).to_string();
            for part in ["192.0.2.1:3300", "client.vm", "bad key"] {
                assert!(text.contains(part), "{text}");
            }
        }
        let nowhere = LogContext::new(String::new(), None);
        log.emit("2026-01-02T03:04:05.678+0000 7f0a -1 monclient(hunting): handle_auth_bad_method server allowed_methods [2] but i only support [2]");
        let wrong_key = refusal(Errno::TIMEDOUT, &options, &log);
        assert!(
            matches!(wrong_key, ConnectError::Refused { .. }),
            "{wrong_key}"
        );
        let missing = refusal(Errno::NOENT, &options, &nowhere);
        assert!(matches!(missing, ConnectError::NoMonitors), "{missing}");
    }
}
