//! Description of the running daemon as its command line: each option in JSON, with all that was changed since.

use options::{ChardevOptions, DescribeError, MonitorOptions};
use serde_json::Value;

use crate::state::objects::Objects;

/// All options, in an order in which they can be carried out.
pub(crate) fn options(
    objects: &Objects,
    chardevs: &[&ChardevOptions],
    monitors: &[MonitorOptions],
) -> Result<Vec<String>, DescribeError> {
    let mut words = Vec::new();
    let mut add = |option: &str, json: Value| words.extend([option.to_owned(), json.to_string()]);
    for iothread in &objects.iothreads {
        add("--object", iothread.options.describe()?);
    }
    let current = |name: &str| objects.find_node(name).map(|open| &open.options);
    for open in objects.nodes.iter().filter(|open| open.parent.is_none()) {
        add("--blockdev", open.options.describe(&current)?);
    }
    for export in &objects.exports {
        add("--export", export.options.describe()?);
    }
    for chardev in chardevs {
        // The client that was waited for has come.
        let mut chardev = (*chardev).clone();
        chardev.settings.wait = chardev.settings.server.then_some(false);
        add("--chardev", chardev.describe()?);
    }
    for monitor in monitors {
        add("--monitor", monitor.describe()?);
    }
    Ok(words)
}
