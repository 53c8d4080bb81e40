//! An export: what clients see of it, and its connections on iothreads.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use block::Node;
use block::dirty_bitmap::BitmapUse;
use iothread::{ExportReporter, IothreadHandle, SocketDeviceCommand, SocketDeviceHandle};
use nbd::server::{BlockSizes, ExportDescription, ExportNumber};
use nbd::wire::transmission_flag;
use telemetry::queue::QueueStats;

use crate::connection::{Connection, ConnectionSettings};
use crate::contexts::{self, MetaContext};
use crate::negotiation::NegotiatedClient;
use crate::socket::has_hung_up;

/// Settings of an export.
pub struct ExportSettings {
    /// Its id, for statistics and the log.
    pub id: String,
    /// Its name for clients.
    pub name: String,
    /// Its description for clients; may be empty.
    pub description: String,
    /// Clients may write.
    pub writable: bool,
    /// Every write is stable when it completes.
    pub write_through: bool,
    /// Block sizes for clients.
    pub block_sizes: BlockSizes,
    /// Most bytes of one discard or write-zeroes.
    pub max_range_bytes: u64,
    /// The server has more than one client at a time.
    pub multi_conn: bool,
    /// Clients can query `qemu:allocation-depth`.
    pub allocation_depth: bool,
    /// Dirty bitmaps that clients can query. Those of a process that is taken over come later, by [`Export::set_bitmaps`].
    pub bitmaps: Vec<BitmapUse>,
    /// Bytes.
    pub size: u64,
    /// The iothreads that its connections are distributed to, in turn.
    pub iothreads: Vec<Arc<IothreadHandle>>,
    /// Statistics for each iothread.
    pub stats: Vec<Arc<QueueStats>>,
    /// Error reports.
    pub reports: Arc<ExportReporter>,
    /// The present node.
    pub node: Box<dyn Fn() -> Arc<Node> + Send + Sync>,
    /// Called with true when the first client connects, and with false when the last one has disconnected.
    pub on_connected: Box<dyn Fn(bool) + Send + Sync>,
}

/// The number of the next export.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// An export.
pub struct Export {
    number: ExportNumber,
    settings: ExportSettings,
    size: Arc<AtomicU64>,
    /// No client finds it any more.
    is_removed: AtomicBool,
    /// None after it was removed: its bitmaps are not in use any more.
    contexts: Mutex<Vec<MetaContext>>,
    connections: Mutex<Connections>,
}

/// Connections of an export.
#[derive(Default)]
struct Connections {
    running: Vec<RunningConnection>,
    /// Number of connections since the beginning.
    started: u64,
}

/// A connection on an iothread.
struct RunningConnection {
    number: u64,
    device: Arc<SocketDeviceHandle>,
    /// Closed when the connection has ended.
    socket: Weak<OwnedFd>,
}

impl RunningConnection {
    /// Whether its client has left. Its requests may still be in flight.
    fn has_hung_up(&self) -> bool {
        let socket = self.socket.upgrade();
        socket.is_none_or(|socket| has_hung_up(&socket))
    }
}

impl Export {
    /// An export without connections.
    #[must_use]
    pub fn new(mut settings: ExportSettings) -> Arc<Self> {
        let bitmaps = std::mem::take(&mut settings.bitmaps);
        let export = Export {
            number: ExportNumber(NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)),
            size: Arc::new(AtomicU64::new(settings.size)),
            settings,
            is_removed: AtomicBool::new(false),
            contexts: Mutex::default(),
            connections: Mutex::default(),
        };
        export.set_bitmaps(bitmaps);
        Arc::new(export)
    }

    /// Sets its dirty bitmaps, before clients connect.
    pub fn set_bitmaps(&self, bitmaps: Vec<BitmapUse>) {
        let mut contexts = vec![MetaContext::Allocation];
        if self.settings.allocation_depth {
            contexts.push(MetaContext::AllocationDepth);
        }
        let bitmaps = bitmaps.into_iter().map(Arc::new);
        contexts.extend(bitmaps.map(MetaContext::DirtyBitmap));
        *self.lock_contexts() = contexts;
    }

    /// Its number.
    pub(crate) fn number(&self) -> ExportNumber {
        self.number
    }

    /// Its name for clients.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Whether clients may write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.settings.writable
    }

    /// Offsets and lengths of requests are multiples of this.
    #[must_use]
    pub fn min_block_size(&self) -> u32 {
        self.settings.block_sizes.minimum
    }

    /// Whether it was removed: no client finds it any more.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Sets its size: clients that connect from now on see it, and no request reaches beyond it. True if it differs from the old
    /// one.
    pub fn resize(&self, bytes: u64) -> bool {
        self.size.swap(bytes, Ordering::Relaxed) != bytes
    }

    /// What clients see of it.
    #[must_use]
    pub fn description(&self) -> ExportDescription {
        let ExportSettings {
            name,
            description,
            writable,
            block_sizes,
            multi_conn,
            ..
        } = &self.settings;
        let mut flags = transmission_flag::HAS_FLAGS
            | transmission_flag::SEND_FLUSH
            | transmission_flag::SEND_FUA
            | transmission_flag::SEND_CACHE;
        if *multi_conn {
            // A flush covers all writes that have completed on the node, whichever connection they came by.
            flags |= transmission_flag::CAN_MULTI_CONN;
        }
        flags |= match writable {
            true => {
                transmission_flag::SEND_TRIM
                    | transmission_flag::SEND_WRITE_ZEROES
                    | transmission_flag::SEND_FAST_ZERO
            }
            false => transmission_flag::READ_ONLY,
        };
        ExportDescription {
            number: self.number,
            name: name.clone(),
            description: description.clone(),
            size: self.size.load(Ordering::Relaxed),
            flags,
            block_sizes: *block_sizes,
            contexts: self.lock_contexts().iter().map(MetaContext::name).collect(),
        }
    }

    /// Starts a connection on the next iothread. `on_end` is called with its number when it has ended and nothing of it is in
    /// flight. False: the export was removed, or replaced by another one, and `on_end` is not called.
    pub(crate) fn start_connection(
        self: &Arc<Self>,
        client: NegotiatedClient,
        on_end: impl FnOnce(u64) + Send + 'static,
    ) -> bool {
        let settings = &self.settings;
        let mut connections = self.lock_connections();
        if self.is_removed() {
            return false;
        }
        let chosen = &client.negotiated.transmission.contexts;
        let Some(contexts) = contexts::find_chosen(chosen, &self.lock_contexts()) else {
            return false;
        };
        let number = connections.started;
        connections.started += 1;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "less than the number of iothreads"
        )]
        let queue = (number % settings.iothreads.len() as u64) as usize;
        let socket = Arc::downgrade(client.socket.shared_fd());
        let connection = Connection::new(
            client.socket,
            &client.received,
            ConnectionSettings {
                peer: client.peer,
                size_at_connect: client.negotiated.size,
                transmission: client.negotiated.transmission,
                contexts,
                current_size: self.size.clone(),
                write_through: settings.write_through,
                max_range_bytes: settings.max_range_bytes,
                export: settings.id.clone(),
                queue: u16::try_from(queue).unwrap_or(u16::MAX),
                stats: settings.stats[queue].clone(),
                reports: settings.reports.clone(),
                on_end: Box::new(move || on_end(number)),
            },
        );
        let nodes = vec![(settings.node)()];
        let started = settings.iothreads[queue].start_socket_device(Box::new(connection), nodes);
        let Ok(device) = started else {
            // The iothread has stopped, and the connection was dropped.
            return true;
        };
        if connections.running.is_empty() {
            (settings.on_connected)(true);
        }
        connections.running.push(RunningConnection {
            number,
            device: Arc::new(device),
            socket,
        });
        true
    }

    /// Removes a connection that has ended, and has nothing in flight.
    pub(crate) fn remove_ended_connection(&self, number: u64) {
        self.remove_connections(|running| running.number == number);
    }

    /// Removes connections of which nothing is in flight.
    fn remove_connections(&self, is_removed: impl Fn(&RunningConnection) -> bool) {
        let mut connections = self.lock_connections();
        let had_clients = !connections.running.is_empty();
        connections.running.retain(|running| !is_removed(running));
        if had_clients && connections.running.is_empty() {
            (self.settings.on_connected)(false);
        }
    }

    /// Removes the export if no client is connected; false if one is.
    #[must_use]
    pub fn remove_if_unconnected(&self) -> bool {
        let connections = self.lock_connections();
        let is_unconnected = connections.running.is_empty();
        if is_unconnected {
            self.is_removed.store(true, Ordering::Release);
            self.lock_contexts().clear();
        }
        is_unconnected
    }

    /// Removes the export if all its clients have hung up; their connections have to be ended. False if one is connected.
    #[must_use]
    pub fn remove_if_hung_up(&self) -> bool {
        let connections = self.lock_connections();
        let mut running = connections.running.iter();
        let have_hung_up = running.all(RunningConnection::has_hung_up);
        if have_hung_up {
            self.is_removed.store(true, Ordering::Release);
        }
        have_hung_up
    }

    /// How many of its connections have lost their client, or are being disconnected since the export is removed.
    pub(crate) fn gone_connection_count(&self) -> usize {
        let connections = self.lock_connections();
        let is_removed = self.is_removed();
        let running = connections.running.iter();
        let gone = running.filter(|running| is_removed || running.has_hung_up());
        gone.count()
    }

    /// Removes the export, and begins to disconnect its clients.
    pub fn begin_remove(&self) {
        self.is_removed.store(true, Ordering::Release);
        for handle in self.connection_handles() {
            handle.begin_stop();
        }
    }

    /// Submits no more requests until [`resume_connections`](Self::resume_connections). Each of those returned receives when a connection
    /// has none in flight; its sender is dropped with the connection.
    #[must_use]
    pub fn begin_drain_connections(&self) -> Vec<Receiver<()>> {
        let handles = self.connection_handles().into_iter();
        let drains = handles.map(|handle| {
            handle.send_unless_stopped(SocketDeviceCommand::Enable(false));
            handle.send_for_reply(SocketDeviceCommand::Settle)
        });
        drains.collect()
    }

    /// Submits requests again.
    pub fn resume_connections(&self) {
        for handle in self.connection_handles() {
            handle.send_unless_stopped(SocketDeviceCommand::Enable(true));
        }
    }

    /// Disconnects all clients, and waits until their requests in flight are done. Those that were not submitted, or not as a whole, get
    /// no reply: clients that connect again send them again.
    pub fn disconnect_and_wait(&self) {
        // They stay in the list until then, since others wait for their requests too.
        let handles = self.connection_handles();
        for handle in &handles {
            handle.begin_stop();
        }
        for handle in &handles {
            handle.stop();
        }
        if self.is_removed() {
            self.lock_contexts().clear();
        }
        self.remove_connections(|running| {
            let mut stopped = handles.iter();
            stopped.any(|handle| Arc::ptr_eq(handle, &running.device))
        });
    }

    /// Returns when all requests that were submitted before the call have completed.
    pub fn wait_for_submitted_requests(&self) {
        for handle in self.connection_handles() {
            handle.send_and_wait(SocketDeviceCommand::Settle);
        }
    }

    /// Names another node in reports of errors.
    pub fn set_node_name(&self, name: &str) {
        self.settings.reports.set_node(name);
    }

    /// Replaces the node by one that leads to the same disk, and returns when no request uses the old one. `set_node` has new
    /// connections use the new one.
    pub fn exchange_while_running(&self, set_node: impl FnOnce(), node: &Arc<Node>) {
        let connections = self.lock_connections();
        set_node();
        let handles = connections.handles();
        drop(connections);
        send_node(&handles, node);
    }

    /// Replaces the node by any other: requests in flight complete first.
    pub fn exchange_when_drained(&self, set_node: impl FnOnce(), node: &Arc<Node>) {
        let mut drained: Vec<Arc<SocketDeviceHandle>> = Vec::new();
        loop {
            let connections = self.lock_connections();
            let mut added = connections.handles();
            added.retain(|handle| !drained.iter().any(|known| Arc::ptr_eq(known, handle)));
            if added.is_empty() {
                set_node();
                break;
            }
            drop(connections);
            for handle in &added {
                handle.send_unless_stopped(SocketDeviceCommand::Enable(false));
                handle.send_and_wait(SocketDeviceCommand::Settle);
            }
            drained.extend(added);
        }
        send_node(&drained, node);
        for handle in &drained {
            handle.send_unless_stopped(SocketDeviceCommand::Enable(true));
        }
    }

    fn lock_contexts(&self) -> MutexGuard<'_, Vec<MetaContext>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_connections(&self) -> MutexGuard<'_, Connections> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn connection_handles(&self) -> Vec<Arc<SocketDeviceHandle>> {
        self.lock_connections().handles()
    }
}

impl Connections {
    fn handles(&self) -> Vec<Arc<SocketDeviceHandle>> {
        let running = self.running.iter();
        running.map(|running| running.device.clone()).collect()
    }
}

/// Sends connections their new node, and waits until none uses the old one.
fn send_node(handles: &[Arc<SocketDeviceHandle>], node: &Arc<Node>) {
    for handle in handles {
        handle.send_and_wait(|reply| SocketDeviceCommand::SetNode(node.clone(), reply));
    }
}
