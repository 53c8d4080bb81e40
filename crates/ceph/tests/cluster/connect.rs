//! Connecting and opening: what is refused, and that the reason is named within the time limit.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use ceph::{
    AuthMode, ClusterOptions, ConnectError, Connection, Connections, Image, Key, OpenError,
};
use test_support::ceph::Cluster;
use test_support::deadline::{Deadline, eventually};
use test_support::process::Folder;
use test_support::threads::{read_of_each_thread, status_field};

use crate::client::{Client, Turn, image, options};
use crate::log::Log;
use crate::requester::Requester;

/// The limit of connecting where nothing answers, and one that is long enough for an answer on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);

/// The error of a connection that fails, before a wait counts as stuck: librados' own limit is 5 minutes.
fn refused(options: &ClusterOptions) -> ConnectError {
    let deadline = Deadline::default();
    let error = Connection::open(options).unwrap_err();
    deadline.check(&error);
    error
}

/// The options of a client that names everything itself.
fn without_conf(cluster: &Cluster, key: &str) -> ClusterOptions {
    ClusterOptions {
        // Not that of this machine.
        conf: Some("/dev/null".into()),
        key: Some(Key::new(key.to_owned()).unwrap()),
        monitors: vec![cluster.monitor_address().to_string()],
        auth: vec![AuthMode::Cephx],
        connect_timeout: TIMEOUT,
        ..Default::default()
    }
}

#[test]
fn monitors_and_key_suffice_without_a_conf() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let _turn = Turn::wait();
    let mut options = without_conf(cluster, &cluster.key("admin"));
    options.connect_timeout = PATIENCE;
    let connection = Connection::open(&options).unwrap();
    assert_eq!(connection.fsid(), cluster.ceph(["fsid"]).trim());
}

#[test]
fn a_wrong_key_is_refused_in_time_and_never_shown() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let _turn = Turn::wait();
    let log = Log::capture();
    // The key of another user.
    let key = cluster.create_user("other", &[("mon", "profile rbd")]);
    let mut options = without_conf(cluster, &key);
    // librados tries again until the time is over. The monitor has to refuse it once, which takes longer on a busy machine.
    let mut error = refused(&options);
    while matches!(error, ConnectError::Timeout { .. }) && options.connect_timeout < PATIENCE {
        options.connect_timeout *= 2;
        error = refused(&options);
    }
    let text = error.to_string();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let monitor = cluster.monitor_address().to_string();
    for part in [&monitor, "client.admin", "key"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains(&key) && !format!("{error:?}").contains(&key));
    let log = log.take_when_it_has("handle_auth_bad_method");
    assert!(
        log.contains(&format!("monitors=\"{monitor}\"")) && !log.contains(&key),
        "{log}"
    );
}

#[test]
fn a_key_that_librados_cannot_decode_is_hidden_in_its_log() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let _turn = Turn::wait();
    let log = Log::capture();
    let half = &cluster.key("admin")[..20];
    let error = refused(&without_conf(cluster, half));
    assert!(!format!("{error} {error:?}").contains(half), "{error}");
    let log = log.take_when_it_has("failed to decode key");
    assert!(log.contains("(hidden)") && !log.contains(half), "{log}");
}

#[test]
fn an_unreachable_monitor_is_named_in_time() {
    if Cluster::shared_or_report().is_none() {
        return;
    }
    let _turn = Turn::wait();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // Accepts connections, and never says anything.
    let silent = listener.local_addr().unwrap().to_string();
    let mut options = ClusterOptions {
        conf: Some("/dev/null".into()),
        auth: vec![AuthMode::None],
        connect_timeout: TIMEOUT,
        ..Default::default()
    };
    for monitor in [silent.as_str(), "127.0.0.1:1"] {
        options.monitors = vec![monitor.to_owned()];
        let error = refused(&options);
        assert!(matches!(error, ConnectError::Timeout { .. }), "{error:?}");
        assert!(error.to_string().contains(monitor), "{error}");
    }
}

#[test]
fn missing_configuration_is_named() {
    if Cluster::shared_or_report().is_none() {
        return;
    }
    let _turn = Turn::wait();
    let mut options = ClusterOptions {
        conf: Some("/nonexistent/ceph.conf".into()),
        connect_timeout: TIMEOUT,
        ..Default::default()
    };
    let error = refused(&options).to_string();
    assert!(error.contains("/nonexistent/ceph.conf"), "{error}");
    options.conf = Some("/dev/null".into());
    let error = refused(&options);
    assert!(matches!(error, ConnectError::NoMonitors), "{error}");
}

#[test]
fn a_keyring_that_cannot_be_read_is_named() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let _turn = Turn::wait();
    let folder = Folder::new();
    let conf = folder.join("ceph.conf");
    let configure = |keyring: &str| {
        let monitor = cluster.monitor_address();
        let text = format!("[global]\nmon_host = v2:{monitor}\nkeyring = {keyring}\n");
        fs::write(&conf, text).unwrap();
        Connection::open(&ClusterOptions {
            conf: Some(conf.clone()),
            ..Default::default()
        })
    };
    // librados takes the first one that it can open.
    let keyring = cluster.keyring();
    drop(configure(&format!("/nonexistent/a,{}", keyring.display())).unwrap());
    let error = configure("/nonexistent/a,/nonexistent/b").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ConnectError::Keyring { .. }), "{text}");
    for part in ["client.admin", "/nonexistent/a", "No such file"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn missing_pools_images_and_capabilities_are_named() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/protected", 1 << 20);
    cluster.create_user(
        "nothing",
        &[("mon", "profile rbd"), ("osd", "profile rbd pool=other")],
    );
    let client = Client::connect(cluster);
    let mut missing = image("missing");
    let error = client.try_open(&missing).unwrap_err();
    assert!(
        matches!(&error, OpenError::NoImage { image } if image == "rbd/missing"),
        "{error}"
    );
    missing.pool = "nowhere".to_owned();
    let error = client.try_open(&missing).unwrap_err();
    assert!(
        matches!(&error, OpenError::NoPool { pool } if pool == "nowhere"),
        "{error}"
    );
    let mut user = options(cluster);
    user.user = Some("nothing".to_owned());
    let limited = Connection::open(&user).unwrap();
    let error = Image::open(&limited, &image("protected"), Arc::new(|| ())).unwrap_err();
    assert!(matches!(error, OpenError::Permission { .. }), "{error}");
}

#[test]
fn images_with_equal_options_share_a_connection_up_to_a_limit() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/shared", 1 << 20);
    let _turn = Turn::wait();
    let connections = Connections::default();
    let options = ClusterOptions {
        images_per_connection: 2,
        ..options(cluster)
    };
    let open = || {
        let connection = connections.get(&options).unwrap();
        Image::open(&connection, &image("shared"), Arc::new(|| ())).unwrap()
    };
    let images = [open(), open(), open()];
    let same = |a: usize, b: usize| Arc::ptr_eq(images[a].connection(), images[b].connection());
    assert_eq!((same(0, 1), same(0, 2)), (true, false));
    let [first, ..] = images;
    drop(first);
    let other = ClusterOptions {
        connect_timeout: PATIENCE,
        ..options.clone()
    };
    drop(connections.get(&other).unwrap());
}

#[test]
fn threads_of_the_libraries_inherit_the_privileges_of_the_launcher() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/confined", 1 << 20);
    let _turn = Turn::wait();
    // Like a system-call filter, it is of a thread and of those that it starts; and it can be seen. It harms no other test.
    let confine = || rustix::thread::set_no_new_privs(true).map_err(Into::into);
    ceph::start_confined_launcher(confine).unwrap();
    let connection = Connection::open(&options(cluster)).unwrap();
    let image = Image::open(&connection, &image("confined"), Arc::new(|| ())).unwrap();
    Requester::new(&image).write(0, &[1; 512]).unwrap();
    let confined = |name: &str| {
        let threads = read_of_each_thread(rustix::process::getpid(), "status");
        let of_name = threads
            .iter()
            .filter(|thread| status_field(&thread.text, "Name") == name);
        of_name
            .map(|thread| status_field(&thread.text, "NoNewPrivs"))
            .collect::<Vec<_>>()
    };
    for name in ["ceph-log", "msgr-worker-0", "io_context_pool"] {
        // A thread gets its name when it runs.
        eventually(name, || !confined(name).is_empty());
        let values = confined(name);
        assert!(
            values.iter().all(|value| value == "1"),
            "{name}: {values:?}"
        );
    }
}
