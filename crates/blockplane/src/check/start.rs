//! Nodes of a well-formed configuration with which the daemon would not start.

use std::path::Path;

use block::NodeError;
use options::{
    BlockdevOptions, ConfigError, ConfigProblem, DaemonSettingsAndDirectives, Directive, Driver,
    NodeRef,
};

/// Refuses them, with the errors of a start.
pub(super) fn refuse_nodes_that_cannot_start(
    path: &Path,
    daemon: DaemonSettingsAndDirectives,
) -> Result<DaemonSettingsAndDirectives, ConfigError> {
    let nodes = daemon.directives.iter().filter_map(|one| match one {
        Directive::Blockdev(options) => Some(options),
        _ => None,
    });
    let refused = nodes.filter_map(error_of_start);
    let problems = refused.map(|error| ConfigProblem {
        location: None,
        message: error.to_string(),
    });
    let findings: Vec<_> = problems.collect();
    match findings.is_empty() {
        true => Ok(daemon),
        false => Err(ConfigError {
            path: path.to_owned(),
            findings,
        }),
    }
}

/// The error of a node, or of one inside of it: no job runs at the start of which a node could be the snapshot.
fn error_of_start(options: &BlockdevOptions) -> Option<NodeError> {
    let (_, child) = options.driver.child_with_key()?;
    let inside = match child {
        NodeRef::Name(_) => None,
        NodeRef::Inline(inside) => error_of_start(inside),
    };
    let is_snapshot = matches!(options.driver, Driver::SnapshotAccess { .. });
    let no_snapshot = || NodeError::NoSnapshot {
        node: child.node_name().to_owned(),
    };
    inside.or_else(|| is_snapshot.then(no_snapshot))
}
