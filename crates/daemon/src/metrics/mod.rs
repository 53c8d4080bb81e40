//! `--metrics`: starts the endpoint that serves metrics of exports, queues, iothreads and nodes to Prometheus, and gives it the objects.
//!
//! The main thread publishes a list of the objects and their counters ([`MetricsSnapshot`]) whenever they may have
//! changed.
//! The metrics thread reads the counters themselves, which are atomics. So a scrape waits neither for the main thread,
//! which may be waiting for a disk, nor for an iothread.

mod families;
mod family;
mod images;
mod latency_histogram;
mod luns;
mod snapshot;
mod throttles;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use options::MetricsAddr;
use snapshot::MetricsSnapshot;
use unix_socket::listener::AllowedPeers;

use crate::error::BoxError;
use crate::openmetrics::{HttpListener, HttpPageSource, HttpServer, MetricsTextFormat};
use crate::service::InheritedAndUsedSockets;
use crate::state::DaemonObjects;

/// The running metrics endpoint.
pub(crate) struct MetricsEndpoint {
    snapshot: Arc<Mutex<Arc<MetricsSnapshot>>>,
    addr: MetricsAddr,
    /// The listening socket, if it is a TCP socket.
    tcp_listener: Option<OwnedFd>,
    /// Serves until it is dropped.
    _server: HttpServer,
}

impl MetricsEndpoint {
    /// Starts the endpoint with an empty snapshot. In a live upgrade `handed_over` is the predecessor's TCP socket, if
    /// it has one.
    pub fn start(
        addr: &MetricsAddr,
        handed_over: Option<OwnedFd>,
        inherited: &mut InheritedAndUsedSockets,
    ) -> Result<Self, BoxError> {
        let listener = match handed_over {
            Some(fd) => HttpListener::from_tcp_fd(fd).map_err(BoxError::from),
            None => open_listener(addr, inherited),
        };
        let listener = listener.map_err(|failure| format!("--metrics: {failure}"))?;
        let tcp_addr = listener.tcp_addr();
        let tcp_listener = tcp_addr.map(|_| listener.as_fd().try_clone_to_owned());
        let tcp_listener = tcp_listener.transpose()?;
        // With the port that the kernel chose, if any was allowed.
        let addr = tcp_addr.map_or_else(|| addr.clone(), MetricsAddr::Tcp);
        let snapshot = Arc::<Mutex<Arc<MetricsSnapshot>>>::default();
        let server = HttpServer::spawn(listener, MetricsPages(snapshot.clone()))?;
        tracing::info!(%addr, "metrics are served at /metrics");
        Ok(MetricsEndpoint {
            snapshot,
            addr,
            tcp_listener,
            _server: server,
        })
    }

    /// Where metrics are served, with the port that the kernel chose if any was allowed.
    pub fn addr(&self) -> &MetricsAddr {
        &self.addr
    }

    /// The listening socket, if it is a TCP socket. In a live upgrade, Unix sockets are handed over by
    /// [`InheritedAndUsedSockets`].
    pub fn tcp_listener_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tcp_listener.as_ref().map(AsFd::as_fd)
    }

    /// Publishes a new snapshot for the metrics thread.
    pub fn publish_snapshot(&self, objects: &DaemonObjects) {
        let new = Arc::new(MetricsSnapshot::of_objects(objects));
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

/// Opens the listening socket; a service manager may have opened it before.
fn open_listener(
    addr: &MetricsAddr,
    inherited: &mut InheritedAndUsedSockets,
) -> Result<HttpListener, BoxError> {
    let listener = match addr {
        MetricsAddr::Tcp(addr) => return Ok(HttpListener::bind_tcp(*addr)?),
        MetricsAddr::Socket(addr) => {
            inherited.take_or_bind_listener(addr, AllowedPeers::AsUmask)?
        }
    };
    Ok(HttpListener::from_unix(listener)?)
}

/// The page source that shows the counters of the latest snapshot.
struct MetricsPages(Arc<Mutex<Arc<MetricsSnapshot>>>);

impl HttpPageSource for MetricsPages {
    fn metrics_page(&self, format: MetricsTextFormat) -> String {
        // The lock ends with this statement: the main thread must not wait while text is written.
        let snapshot = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        families::encode_all_families(&snapshot, format)
    }

    fn plain_text_index(&self) -> String {
        concat!(
            "blockplane ",
            env!("CARGO_PKG_VERSION"),
            "\n\n/metrics   metrics of exports, queues, iothreads and nodes, for Prometheus\n"
        )
        .to_owned()
    }
}
