//! The state of the daemon: iothreads, secrets, throttle groups, nodes, exports and chardevs by name. It does not know its callers.

pub(crate) mod chardev;
pub(crate) mod export;
pub(crate) mod iothread;
pub(crate) mod job;
mod job_guests;
pub(crate) mod job_status;
pub(crate) mod job_work;
pub(crate) mod mirror_job;
pub(crate) mod nbd_server;
pub(crate) mod node;
mod object_ids;
pub(crate) mod objects;
mod old_data;
mod own_exports;
pub(crate) mod reports;
pub(crate) mod secret;
pub(crate) mod slow_requests;
pub(crate) mod throttle_group;
pub(crate) mod tls;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ::iothread::ReportSender;
use nbd::client::Negotiated;
use options::SecretBytes;
use qmp::ServerHandle;
use vhost_user::ControlThreads;

use crate::devices::image_use::NodeActivator;
use crate::disk::aio::AioChoices;
use crate::service::InheritedAndUsedSockets;
use export::Export;
use iothread::Iothread;
use job::Job;
use nbd_server::RunningNbdServer;
use node::OpenNode;
use secret::Secret;
use slow_requests::SlowRequestWatchdog;
use throttle_group::ThrottleGroupObject;
use tls::{AuthzList, TlsCreds};

/// All iothreads, secrets, throttle groups, nodes and exports, and what creating them needs.
pub(crate) struct DaemonObjects {
    /// The I/O backends that were chosen for disks so far.
    pub aio_choices: AioChoices,
    /// Sends events to monitors.
    pub events: ServerHandle,
    /// Sockets that the process was started with.
    pub inherited_sockets: InheritedAndUsedSockets,
    /// During a live upgrade: files and devices that the old process has opened, by node.
    pub handover_fds: HashMap<String, OwnedFd>,
    /// Exports of NBD servers that the old process of a live upgrade has opened, by node.
    pub handover_exports: HashMap<String, Negotiated>,
    /// During a live upgrade: contents of secrets, by id.
    pub handover_secrets: HashMap<String, SecretBytes>,
    /// During a live upgrade: files of certificates, by id.
    pub handover_tls_files: HashMap<String, ::tls::CredentialFiles>,
    /// During a live upgrade: exports are created paused, without serving front-ends.
    pub creates_exports_paused: bool,
    /// Error reports of iothreads are sent here.
    pub reports: ReportSender,
    /// Watches exports that have a `request-timeout`.
    pub slow_requests: SlowRequestWatchdog,
    /// Serve the front-ends of all vhost-user exports; started for the first of them.
    control_threads: Option<Arc<ControlThreads>>,
    /// Called with the id of a removed export when its queues have drained.
    on_export_drained: Arc<dyn Fn(String) + Send + Sync>,
    /// Called with the name of a node when its image has been resized by another client of its cluster.
    pub on_image_resized: Arc<dyn Fn(&str) + Send + Sync>,
    /// Activates nodes of exports whose queues start, and inactivates them when the queues have stopped.
    pub activator: Arc<dyn NodeActivator>,
    pub exports: Vec<Export>,
    pub nbd_server: Option<RunningNbdServer>,
    /// During a live upgrade: TCP sockets of the old process's NBD server.
    pub handover_nbd_listeners: Vec<OwnedFd>,
    pub nodes: Vec<OpenNode>,
    /// Names of nodes that jobs are opening: no other node may have them.
    pub opening_nodes: Vec<String>,
    pub iothreads: Vec<Iothread>,
    pub secrets: Vec<Arc<Secret>>,
    pub throttle_groups: Vec<ThrottleGroupObject>,
    pub tls_creds: Vec<Arc<TlsCreds>>,
    pub authz_lists: Vec<AuthzList>,
    pub jobs: Vec<Job>,
    /// Number of jobs that were started so far.
    pub job_count: u64,
}

impl DaemonObjects {
    /// Without any objects.
    pub fn new(
        events: ServerHandle,
        reports: ReportSender,
        slow_requests: SlowRequestWatchdog,
        on_export_drained: Arc<dyn Fn(String) + Send + Sync>,
        on_image_resized: Arc<dyn Fn(&str) + Send + Sync>,
        activator: Arc<dyn NodeActivator>,
        inherited_sockets: InheritedAndUsedSockets,
    ) -> Self {
        DaemonObjects {
            aio_choices: AioChoices::default(),
            events,
            reports,
            slow_requests,
            inherited_sockets,
            handover_fds: HashMap::new(),
            handover_exports: HashMap::new(),
            handover_secrets: HashMap::new(),
            handover_tls_files: HashMap::new(),
            creates_exports_paused: false,
            control_threads: None,
            on_export_drained,
            on_image_resized,
            activator,
            exports: Vec::new(),
            nbd_server: None,
            handover_nbd_listeners: Vec::new(),
            nodes: Vec::new(),
            opening_nodes: Vec::new(),
            iothreads: Vec::new(),
            secrets: Vec::new(),
            throttle_groups: Vec::new(),
            tls_creds: Vec::new(),
            authz_lists: Vec::new(),
            jobs: Vec::new(),
            job_count: 0,
        }
    }
}
