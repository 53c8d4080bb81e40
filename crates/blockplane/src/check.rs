//! `blockplane check FILE`: validates a configuration and shows what it would create.

mod files;
mod start;

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use daemon::BoxError;
use options::{
    BlockdevOptions, CheckSettings, ConfigError, ConfigFileWithOptions,
    DaemonSettingsAndDirectives, Directive, NodeRef, ObjectOptions,
};
use serde_json::{Value, json};

use crate::summary::ConfigSummary;
use crate::{config_file, print};

/// Prints the problems of a configuration, or a summary and hints.
pub(crate) fn run(options: &CheckSettings) -> Result<ExitCode, BoxError> {
    let bytes = config_file::read_config_bytes(&options.path)?;
    let path = config_file::display_path(&options.path);
    let outcome = ConfigError::decode_utf8(path, bytes)
        .and_then(|text| ConfigFileWithOptions::for_path(path).parse(&text))
        .and_then(|daemon| start::refuse_nodes_that_cannot_start(path, daemon));
    let mut hints = Vec::new();
    if let Ok(daemon) = &outcome {
        add_hints_at_unused(&daemon.directives, &mut hints);
        if options.open {
            files::add_file_and_socket_hints(daemon, &mut hints);
        }
    }
    let status = match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    };
    match outcome {
        outcome if options.json => {
            let json = outcome_to_json(path, &outcome, &hints);
            print(&format!("{json:#}\n"))?;
        }
        Ok(daemon) => print(&valid_outcome_to_text(path, &daemon, &hints))?,
        Err(error) => {
            // Without the program's name in front, so that editors can parse the lines.
            let _ = writeln!(std::io::stderr(), "{error}");
        }
    }
    Ok(status)
}

/// The outcome for people, if the configuration is valid.
fn valid_outcome_to_text(
    path: &Path,
    daemon: &DaemonSettingsAndDirectives,
    hints: &[String],
) -> String {
    let path = commands::printable_path(path);
    let mut out = format!("{path}: valid\n{}", summarize_config(daemon));
    if !hints.is_empty() {
        out.push('\n');
    }
    for hint in hints {
        out += &format!("  hint: {hint}\n");
    }
    // Names of nodes and files may contain control characters.
    commands::printable(&out)
}

/// The summary of what the configuration would create.
fn summarize_config(daemon: &DaemonSettingsAndDirectives) -> ConfigSummary {
    ConfigSummary::of_directives(&daemon.directives, daemon.metrics.as_ref())
}

/// The outcome for scripts: the summary and hints, or the problems with their positions.
fn outcome_to_json(
    path: &Path,
    outcome: &Result<DaemonSettingsAndDirectives, ConfigError>,
    hints: &[String],
) -> Value {
    let mut out = json!({
        "file": path.display().to_string(),
        "right": outcome.is_ok(),
    });
    match outcome {
        Ok(daemon) => {
            out["hints"] = json!(hints);
            for (key, value) in summarize_config(daemon).to_json() {
                out[key] = value;
            }
        }
        Err(error) => {
            let problems = error.findings.iter().map(|finding| {
                let location = finding.location.as_ref();
                json!({
                    "line": location.map(|location| location.line),
                    "column": location.map(|location| location.column),
                    "message": finding.message,
                })
            });
            out["problems"] = problems.collect();
        }
    }
    out
}

/// Hints at objects that nothing refers to: probably a forgotten or misspelt reference.
fn add_hints_at_unused(directives: &[Directive], hints: &mut Vec<String>) {
    let (mut nodes, mut iothreads, mut used_names) = (Vec::new(), Vec::new(), HashSet::new());
    let (mut secrets, mut groups, mut used_by_nodes) = (Vec::new(), Vec::new(), HashSet::new());
    let mut for_tls = Vec::new();
    let (mut chardevs, mut monitored) = (Vec::new(), HashSet::new());
    let mut export_count = 0;
    for directive in directives {
        match directive {
            Directive::Object(ObjectOptions::Iothread(options)) => iothreads.push(&options.id),
            Directive::Object(ObjectOptions::Secret(options)) => secrets.push(&options.id),
            Directive::Object(ObjectOptions::ThrottleGroup(options)) => groups.push(&options.id),
            Directive::Object(ObjectOptions::TlsCreds(options)) => for_tls.push(&options.id),
            Directive::Object(ObjectOptions::AuthzList(options)) => for_tls.push(&options.id),
            Directive::Blockdev(options) => {
                nodes.push(&options.node_name);
                used_by_nodes.extend(object_ids_of_node_and_inner_nodes(options));
                used_names.extend(child_node_name(options));
            }
            Directive::Export(options) => {
                export_count += 1;
                used_names.extend(options.node_names());
                used_names.extend(options.iothreads.iter().map(String::as_str));
            }
            Directive::NbdServer(options) => {
                let settings = &options.settings;
                used_by_nodes.extend(settings.tls_creds.as_deref());
                used_by_nodes.extend(settings.tls_authz.as_deref());
            }
            Directive::Chardev(options) => chardevs.push(&options.settings.id),
            Directive::Monitor(options) => {
                monitored.insert(&options.chardev);
            }
        }
    }
    if export_count == 0 {
        hints.push("there is no [export.NAME]: the daemon would serve no disk".to_owned());
    }
    for (kind, names) in [("iothread", iothreads), ("node", nodes)] {
        for name in names
            .into_iter()
            .filter(|name| !used_names.contains(name.as_str()))
        {
            hints.push(format!("{kind} '{name}' is used by nothing in this file"));
        }
    }
    for (kind, names) in [("secret", secrets), ("throttle-group", groups)] {
        for name in names
            .into_iter()
            .filter(|name| !used_by_nodes.contains(name.as_str()))
        {
            hints.push(format!("{kind} '{name}' is used by no node of this file"));
        }
    }
    for name in for_tls
        .into_iter()
        .filter(|name| !used_by_nodes.contains(name.as_str()))
    {
        hints.push(format!(
            "object '{name}' for TLS is used by nothing in this file"
        ));
    }
    for name in chardevs
        .into_iter()
        .filter(|name| !monitored.contains(name))
    {
        hints.push(format!(
            "chardev '{name}' is used by no monitor; add [monitor.{name}]"
        ));
    }
}

/// The ids of objects that a node, and nodes inside of it, refer to.
fn object_ids_of_node_and_inner_nodes(options: &BlockdevOptions) -> Vec<&str> {
    let mut ids = match options.driver.child_with_key() {
        Some((_, NodeRef::Inline(inside))) => object_ids_of_node_and_inner_nodes(inside),
        _ => Vec::new(),
    };
    ids.extend(options.driver.secret_id());
    ids.extend(options.driver.throttle_group());
    ids.extend(options.driver.tls_creds_id());
    ids
}

/// The name of the node below a node, if there is one.
fn child_node_name(options: &BlockdevOptions) -> Option<&str> {
    match options.driver.child_with_key()?.1 {
        NodeRef::Name(name) => Some(name),
        NodeRef::Inline(inside) => child_node_name(inside),
    }
}
