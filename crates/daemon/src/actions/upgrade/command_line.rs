//! Description of the running daemon as command-line options in JSON, with all changes that were made since it started. They are
//! sent to its successor in a message, and may have secrets: no process has them as its arguments.

use options::{ChardevOptions, MonitorOptions, ToJsonError};
use serde_json::Value;

use crate::state::DaemonObjects;

/// All options, in an order in which they can be applied.
pub(crate) fn command_line_for_objects(
    objects: &DaemonObjects,
    chardevs: &[&ChardevOptions],
    monitors: &[MonitorOptions],
) -> Result<Vec<String>, ToJsonError> {
    let mut arguments = Vec::new();
    let mut add_argument =
        |option: &str, json: Value| arguments.extend([option.to_owned(), json.to_string()]);
    for iothread in &objects.iothreads {
        add_argument("--object", iothread.options.to_json()?);
    }
    for secret in &objects.secrets {
        add_argument("--object", secret.options.to_json()?);
    }
    for group in &objects.throttle_groups {
        add_argument("--object", group.options.to_json()?);
    }
    for creds in &objects.tls_creds {
        add_argument("--object", creds.options.to_json()?);
    }
    for list in &objects.authz_lists {
        add_argument("--object", list.options.to_json()?);
    }
    let current_options = |name: &str| objects.find_node(name).map(|open| &open.options);
    for open in objects.nodes.iter().filter(|open| open.parent.is_none()) {
        add_argument("--blockdev", open.options.to_json(&current_options)?);
    }
    if let Some(server) = &objects.nbd_server {
        add_argument("--nbd-server", server.options.to_json()?);
    }
    for export in &objects.exports {
        add_argument("--export", export.options.to_json()?);
    }
    for chardev in chardevs {
        // With wait=on, the client that it waited for has connected already.
        let mut chardev = (*chardev).clone();
        chardev.settings.wait = chardev.settings.server.then_some(false);
        add_argument("--chardev", chardev.to_json()?);
    }
    for monitor in monitors {
        add_argument("--monitor", monitor.to_json()?);
    }
    Ok(arguments)
}
