//! `--metrics`: what runs, as Prometheus wants to see it.
//!
//! The main thread says what there is ([`Seen`]), whenever that may have changed. The figures themselves are
//! read by the thread that serves them, from counters that anybody may read: a scrape asks neither the main thread,
//! which may wait for a disk, nor an iothread.

mod families;
mod family;
mod latency;
mod luns;
mod seen;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use options::MetricsAddr;
use seen::Seen;
use unix_socket::listener::Peers;

use crate::failure::Failure;
use crate::openmetrics::{Door, Format, Pages, Server};
use crate::service::Inherited;
use crate::state::objects::Objects;

/// The endpoint.
pub(crate) struct Metrics {
    seen: Arc<Mutex<Arc<Seen>>>,
    /// The socket of an address.
    tcp: Option<OwnedFd>,
    /// DeviceSetup until it is dropped.
    _server: Server,
}

impl Metrics {
    /// Listens, and serves that there is nothing yet.
    /// The socket of an address may be there, `handed` over by the process before.
    pub fn start(
        addr: &MetricsAddr,
        handed: Option<OwnedFd>,
        inherited: &mut Inherited,
    ) -> Result<Self, Failure> {
        let door = match handed {
            Some(fd) => Door::take_over(fd).map_err(Failure::from),
            None => door(addr, inherited),
        };
        let door = door.map_err(|failure| format!("--metrics: {failure}"))?;
        let tcp = door.addr().map(|_| door.as_fd().try_clone_to_owned());
        let tcp = tcp.transpose()?;
        // The port that it got, if any was right.
        let addr = door.addr().map_or_else(|| addr.clone(), MetricsAddr::Tcp);
        let seen = Arc::<Mutex<Arc<Seen>>>::default();
        let server = Server::spawn(door, Figures(seen.clone()))?;
        tracing::info!(%addr, "figures are served at /metrics");
        Ok(Metrics {
            seen,
            tcp,
            _server: server,
        })
    }

    /// The socket, if it is one of an address: others are known by theirs.
    pub fn tcp(&self) -> Option<BorrowedFd<'_>> {
        self.tcp.as_ref().map(AsFd::as_fd)
    }

    /// From now on this is what there is.
    pub fn show(&self, objects: &Objects) {
        let now = Arc::new(Seen::of(objects));
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

fn door(addr: &MetricsAddr, inherited: &mut Inherited) -> Result<Door, Failure> {
    let listener = match addr {
        MetricsAddr::Tcp(addr) => return Ok(Door::tcp(*addr)?),
        MetricsAddr::Socket(addr) => inherited.listen(addr, Peers::AsUmask)?,
    };
    Ok(Door::unix(listener)?)
}

/// Reads the figures of what was seen last.
struct Figures(Arc<Mutex<Arc<Seen>>>);

impl Pages for Figures {
    fn figures(&self, format: Format) -> String {
        // Held for no longer than this: the main thread does not wait for a text to be written.
        let seen = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        families::write(&seen, format)
    }

    fn index(&self) -> String {
        concat!(
            "blockplane ",
            env!("CARGO_PKG_VERSION"),
            "\n\n/metrics   figures of exports, queues, iothreads and nodes, for Prometheus\n"
        )
        .to_owned()
    }
}
