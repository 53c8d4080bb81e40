//! Keyrings: files with the secret keys of daemons and users.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Name of the keyring of the daemons and of `client.admin`, which the monitor's store begins with.
pub(super) const DAEMON_KEYRING: &str = "daemons.keyring";
/// Name of the keyring of clients.
pub(super) const CLIENT_KEYRING: &str = "clients.keyring";

/// The administrator.
pub(super) const ADMIN: &str = "client.admin";

/// What daemons and the administrator may do, by service.
pub(super) const CAPABILITIES: [(&str, &[(&str, &str)]); 4] = [
    ("mon.", &[("mon", "allow *")]),
    (
        ADMIN,
        &[("mon", "allow *"), ("osd", "allow *"), ("mgr", "allow *")],
    ),
    (
        "osd.0",
        &[
            ("mon", "allow profile osd"),
            ("osd", "allow *"),
            ("mgr", "allow profile osd"),
        ],
    ),
    ("mgr.x", &[("mon", "allow profile mgr"), ("osd", "allow *")]),
];

/// Adds an entity and its key to a keyring, which is created if it is not there.
pub(super) fn append(path: &Path, entity: &str, key: &str, capabilities: &[(&str, &str)]) {
    let mut text = format!("[{entity}]\n\tkey = {key}\n");
    for (service, capability) in capabilities {
        text.push_str(&format!("\tcaps {service} = \"{capability}\"\n"));
    }
    let mut keyring = OpenOptions::new();
    let keyring = keyring.create(true).append(true).mode(0o600).open(path);
    // In one call: other tests may append theirs.
    keyring.unwrap().write_all(text.as_bytes()).unwrap();
}
