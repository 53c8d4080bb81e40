//! Options that a node has for its life.

use options::{Driver, NodeRef};

use crate::error::BoxError;

/// Refuses changes of options that are fixed for the life of a node.
pub(super) fn check_fixed_options_unchanged(old: &Driver, new: &Driver) -> Result<(), BoxError> {
    let changed: &[(&str, bool)] = match (old, new) {
        (Driver::File(old), Driver::File(new))
        | (Driver::HostDevice(old), Driver::HostDevice(new)) => &[
            ("filename", old.filename != new.filename),
            ("bitmap-file", old.bitmap_file != new.bitmap_file),
        ],
        (Driver::NullCo(old), Driver::NullCo(new)) => &[
            ("size", old.size != new.size),
            ("read-zeroes", old.read_zeroes != new.read_zeroes),
            ("latency-ns", old.latency_ns != new.latency_ns),
        ],
        (
            Driver::Raw { file: old, part },
            Driver::Raw {
                file: new,
                part: new_part,
            },
        ) => &[
            ("file.driver", is_old_or_new_child_inline(old, new)),
            ("size", part != new_part),
        ],
        (Driver::Throttle { file: old, .. }, Driver::Throttle { file: new, .. }) => {
            &[("file.driver", is_old_or_new_child_inline(old, new))]
        }
        (Driver::Blkdebug { image: old, .. }, Driver::Blkdebug { image: new, .. }) => {
            &[("image.driver", is_old_or_new_child_inline(old, new))]
        }
        (Driver::SnapshotAccess { file: old }, Driver::SnapshotAccess { file: new }) => {
            &[("file", old.node_name() != new.node_name())]
        }
        (Driver::Nbd(old), Driver::Nbd(new)) => &[
            (
                "server",
                old.uri() != new.uri() || old.ip_versions() != new.ip_versions(),
            ),
            (
                "reconnect-delay",
                old.reconnect_delay != new.reconnect_delay,
            ),
            ("open-timeout", old.open_timeout != new.open_timeout),
            ("stop-timeout", old.stop_timeout != new.stop_timeout),
            ("tls-creds", old.tls_creds != new.tls_creds),
            ("tls-hostname", old.tls_hostname != new.tls_hostname),
        ],
        (Driver::Rbd(old), Driver::Rbd(new)) => &[
            ("pool", old.pool != new.pool),
            ("namespace", old.namespace != new.namespace),
            ("image", old.image != new.image),
            ("snapshot", old.snapshot != new.snapshot),
            ("conf", old.conf != new.conf),
            ("user", old.user != new.user),
            (
                "auth-client-required",
                old.auth_client_required != new.auth_client_required,
            ),
            ("key-secret", old.key_secret != new.key_secret),
            ("server", old.server != new.server),
        ],
        // All of them are named, so that a new driver needs a line above.
        (
            Driver::File(_)
            | Driver::HostDevice(_)
            | Driver::NullCo(_)
            | Driver::Raw { .. }
            | Driver::Nbd(_)
            | Driver::Rbd(_)
            | Driver::Throttle { .. }
            | Driver::Blkdebug { .. }
            | Driver::SnapshotAccess { .. },
            _,
        ) => &[("driver", true)],
    };
    match changed.iter().find(|(_, changed)| *changed) {
        None => Ok(()),
        Some((option, _)) => Err(format!("Cannot change the option '{option}'").into()),
    }
}

/// Whether the change concerns a child that is defined inside the node: such a child is created with its parent, and cannot be
/// replaced.
fn is_old_or_new_child_inline(old: &NodeRef, new: &NodeRef) -> bool {
    let was_inline = matches!(old, NodeRef::Inline(_));
    matches!(new, NodeRef::Inline(_)) || was_inline && old.node_name() != new.node_name()
}
