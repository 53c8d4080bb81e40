//! Configuration files of a cluster: that of its daemons, and that of clients.
//!
//! The daemons' settings are for one OSD without replicas, for a monitor that decides at once, and for a cluster that leaves the rest of
//! the machine alone. <https://docs.ceph.com/en/reef/rados/configuration/> explains them.

use std::net::SocketAddr;

use super::folder::ClusterFolder;
use super::keyring::{CLIENT_KEYRING, DAEMON_KEYRING};
use super::{Auth, ClusterOptions, ObjectStore};

/// Name of the daemons' file in the cluster's folder.
pub(super) const DAEMON_CONF: &str = "daemons.conf";
/// Name of the clients' file.
pub(super) const CLIENT_CONF: &str = "ceph.conf";

/// Clients renew their watches each second. By default they do so every 5 s, which is too late for a short
/// [`watch_timeout`](ClusterOptions::watch_timeout).
const CLIENT_SETTINGS: &str = "objecter_tick_interval = 1\n";

/// Writes both files.
pub(super) fn write(
    folder: &ClusterFolder,
    options: ClusterOptions,
    monitor: SocketAddr,
    id: &str,
) {
    let common = common(options, monitor, id);
    let daemons = daemons(&folder.path().display().to_string(), options);
    let keyring = |name| match options.auth {
        Auth::Cephx => format!("keyring = {}\n", folder.join(name).display()),
        Auth::None => String::new(),
    };
    let client = keyring(CLIENT_KEYRING);
    let client = format!("{common}{client}{CLIENT_SETTINGS}");
    std::fs::write(folder.join(CLIENT_CONF), client).unwrap();
    let keyring = keyring(DAEMON_KEYRING);
    let daemons = format!("{common}{keyring}{daemons}");
    std::fs::write(folder.join(DAEMON_CONF), daemons).unwrap();
}

/// Settings of clients and daemons.
fn common(options: ClusterOptions, monitor: SocketAddr, id: &str) -> String {
    let auth = match options.auth {
        Auth::None => "none",
        Auth::Cephx => "cephx",
    };
    format!(
        "\
[global]
fsid = {id}
mon_host = [v2:{monitor}]
auth_cluster_required = {auth}
auth_service_required = {auth}
auth_client_required = {auth}
"
    )
}

fn daemons(folder: &str, options: ClusterOptions) -> String {
    let watch_timeout = options.watch_timeout;
    let store = match options.store {
        ObjectStore::MemStore => "memstore",
        ObjectStore::BlueStore => "bluestore",
    };
    format!(
        "
# Only here: nothing listens elsewhere, nothing is written elsewhere. The path of an administrator's socket might be too long.
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
run_dir = {folder}
log_file = {folder}/$name.log
crash_dir = {folder}
admin_socket =
mon_data = {folder}/mon
osd_data = {folder}/osd
mgr_data = {folder}/mgr
mon_cluster_log_file =
debug_rocksdb = 0

# One OSD, one copy of each object, few placement groups.
mon_initial_members = a
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_max_pg_per_osd = 500
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off

# Decisions and statistics at once.
paxos_propose_interval = 0.05
mon_tick_interval = 1
mgr_tick_period = 1
mgr_stats_period = 1
osd_client_watch_timeout = {watch_timeout}

# A monitor on a nearly full disk gives up by default.
mon_data_avail_warn = 1
mon_data_avail_crit = 0

# Small: the least memory that BlueStore accepts as a target, a sparse file, few threads, no measurement of the disk at the start, no modules.
osd_objectstore = {store}
osd_memory_target = 939524096
bluestore_block_size = 10737418240
memstore_device_bytes = 4294967296
memstore_page_set = true
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
osd_op_queue = wpq
osd_mclock_skip_benchmark = true
mgr_module_path = {folder}/modules
"
    )
}
