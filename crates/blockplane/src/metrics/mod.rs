//! `--metrics`: what runs, as Prometheus wants to see it.
//!
//! The main thread says what there is ([`Seen`]), whenever that may have changed. The figures themselves are
//! read by the thread that serves them, from counters that anybody may read: a scrape asks neither the main thread,
//! which may wait for a disk, nor an iothread.

mod families;
mod latency;
mod luns;
mod seen;

use std::sync::{Arc, Mutex, PoisonError};

use listener::Listener;
use metrics::{Door, Format, Pages, Server};
use options::{MetricsAddr, SocketAddr};

use crate::Failure;
use crate::objects::Objects;
use crate::service::Inherited;
use seen::Seen;

/// The endpoint.
pub(crate) struct Metrics {
    seen: Arc<Mutex<Arc<Seen>>>,
    /// Serves until it is dropped.
    _server: Server,
}

impl Metrics {
    /// Listens, and serves that there is nothing yet.
    pub fn start(addr: &MetricsAddr, inherited: &mut Inherited) -> Result<Self, Failure> {
        let door = door(addr, inherited).map_err(|failure| format!("--metrics: {failure}"))?;
        // The port that it got, if any was right.
        let addr = door.addr().map_or_else(|| addr.clone(), MetricsAddr::Tcp);
        let seen = Arc::<Mutex<Arc<Seen>>>::default();
        let server = Server::spawn(door, Figures(seen.clone()))?;
        tracing::info!(%addr, "figures are served at /metrics");
        Ok(Metrics {
            seen,
            _server: server,
        })
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
        MetricsAddr::Socket(SocketAddr::Unix { path }) => Listener::bind(path)?,
        MetricsAddr::Socket(SocketAddr::Fd { fd }) => inherited.numbered(*fd)?,
        MetricsAddr::Socket(SocketAddr::FdName { name }) => inherited.named(name)?,
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
