//! Connecting and opening: what is refused, and that the reason is named within the time limit.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use ceph::{AuthMode, ClusterOptions, ConnectError, Connection, Image, Key, OpenError};
use test_support::ceph::Cluster;
use test_support::deadline::Deadline;

use crate::client::{Client, Turn, image, options};
use crate::log::Log;

/// The limit of connecting where nothing answers.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The error of a connection that fails, before a wait counts as stuck: librados' own limit is 5 minutes.
fn refused(options: &ClusterOptions) -> ConnectError {
    let deadline = Deadline::default();
    let error = Connection::open(options).unwrap_err();
    deadline.check(&error);
    error
}

#[test]
fn a_key_that_librados_cannot_decode_is_hidden_in_its_log() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let _turn = Turn::wait();
    let log = Log::capture();
    let half = &cluster.key("admin")[..20];
    let error = refused(&ClusterOptions {
        // Not that of this machine.
        conf: Some("/dev/null".into()),
        key: Some(Key::new(half.to_owned()).unwrap()),
        monitors: vec![cluster.monitor_address().to_string()],
        auth: vec![AuthMode::Cephx],
        connect_timeout: TIMEOUT,
        ..Default::default()
    });
    assert!(!format!("{error} {error:?}").contains(half), "{error}");
    let log = log.take_when_it_has("failed to decode key");
    assert!(log.contains("(hidden)") && !log.contains(half), "{log}");
}

#[test]
fn unreachable_monitors_and_missing_configurations_are_named_in_time() {
    if Cluster::shared_or_report().is_none() {
        return;
    }
    let _turn = Turn::wait();
    let mut options = ClusterOptions {
        conf: Some("/nonexistent/ceph.conf".into()),
        auth: vec![AuthMode::None],
        connect_timeout: TIMEOUT,
        ..Default::default()
    };
    let error = refused(&options).to_string();
    assert!(error.contains("/nonexistent/ceph.conf"), "{error}");
    options.conf = Some("/dev/null".into());
    let error = refused(&options);
    assert!(matches!(error, ConnectError::NoMonitors), "{error}");
    // Accepts connections, and never says anything.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    for monitor in [silent.as_str(), "127.0.0.1:1"] {
        options.monitors = vec![monitor.to_owned()];
        let error = refused(&options);
        assert!(matches!(error, ConnectError::Timeout { .. }), "{error:?}");
        assert!(error.to_string().contains(monitor), "{error}");
    }
}

#[test]
fn missing_pools_images_and_capabilities_are_named() {
    let Some((cluster, client)) = Client::with_images(["protected"]) else {
        return;
    };
    let mut missing = image("missing");
    let error = client.try_open(&missing).unwrap_err();
    let is_named = matches!(&error, OpenError::NoImage { image } if image == "rbd/missing");
    assert!(is_named, "{error}");
    missing.pool = "nowhere".to_owned();
    let error = client.try_open(&missing).unwrap_err();
    let is_named = matches!(&error, OpenError::NoPool { pool } if pool == "nowhere");
    assert!(is_named, "{error}");
    let osd = ("osd", "profile rbd pool=other");
    cluster.create_user("nothing", &[("mon", "profile rbd"), osd]);
    let mut user = options(cluster);
    user.user = Some("nothing".to_owned());
    let limited = Connection::open(&user).unwrap();
    let error = Image::open(&limited, &image("protected"), Arc::new(|| ())).unwrap_err();
    assert!(matches!(error, OpenError::Permission { .. }), "{error}");
}
