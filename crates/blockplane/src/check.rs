//! `blockplane check FILE`: validates a configuration and shows what it would create.

mod files;

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use daemon::BoxError;
use options::{
    BlockdevOptions, Check, ConfigError, ConfigFile, Daemon, Directive, NodeRef, ObjectOptions,
};
use serde_json::{Value, json};

use crate::summary::Summary;
use crate::{config_file, print};

/// Prints the problems of a configuration, or a summary and hints.
pub(crate) fn run(options: &Check) -> Result<ExitCode, BoxError> {
    let bytes = config_file::read(&options.path)?;
    let path = config_file::shown(&options.path);
    let outcome =
        ConfigError::check_utf8(path, bytes).and_then(|text| ConfigFile::new(path).parse(&text));
    let mut hints = Vec::new();
    if let Ok(daemon) = &outcome {
        unused(&daemon.directives, &mut hints);
        if options.open {
            files::check(daemon, &mut hints);
        }
    }
    let status = match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    };
    match outcome {
        outcome if options.json => {
            let json = as_json(path, &outcome, &hints);
            print(&format!("{json:#}\n"))?;
        }
        Ok(daemon) => print(&as_text(path, &daemon, &hints))?,
        Err(error) => {
            // Without the program's name in front, so that editors can parse the lines.
            let _ = writeln!(std::io::stderr(), "{error}");
        }
    }
    Ok(status)
}

fn as_text(path: &Path, daemon: &Daemon, hints: &[String]) -> String {
    let path = commands::printable_path(path);
    let mut out = format!("{path}: valid\n{}", summary(daemon));
    if !hints.is_empty() {
        out.push('\n');
    }
    for hint in hints {
        out += &format!("  hint: {hint}\n");
    }
    // Names of nodes and files may contain control characters.
    commands::printable(&out)
}

fn summary(daemon: &Daemon) -> Summary {
    Summary::of(&daemon.directives, daemon.metrics.as_ref())
}

fn as_json(path: &Path, outcome: &Result<Daemon, ConfigError>, hints: &[String]) -> Value {
    let mut out = json!({
        "file": path.display().to_string(),
        "right": outcome.is_ok(),
    });
    match outcome {
        Ok(daemon) => {
            out["hints"] = json!(hints);
            for (key, value) in summary(daemon).json() {
                out[key] = value;
            }
        }
        Err(error) => {
            let problems = error.findings.iter().map(|finding| {
                let place = finding.place.as_ref();
                json!({
                    "line": place.map(|place| place.line),
                    "column": place.map(|place| place.column),
                    "message": finding.message,
                })
            });
            out["problems"] = problems.collect();
        }
    }
    out
}

/// Hints at objects that nothing refers to: probably a forgotten or misspelt reference.
fn unused(directives: &[Directive], hints: &mut Vec<String>) {
    let (mut nodes, mut iothreads, mut used) = (Vec::new(), Vec::new(), HashSet::new());
    let (mut chardevs, mut monitors) = (Vec::new(), HashSet::new());
    let mut exports = 0;
    for directive in directives {
        match directive {
            Directive::Object(ObjectOptions::Iothread(options)) => iothreads.push(&options.id),
            Directive::Blockdev(options) => {
                nodes.push(&options.node_name);
                used.extend(below(options));
            }
            Directive::Export(options) => {
                exports += 1;
                used.insert(&options.node_name);
                used.extend(&options.iothreads);
            }
            Directive::Chardev(options) => chardevs.push(&options.settings.id),
            Directive::Monitor(options) => {
                monitors.insert(&options.chardev);
            }
        }
    }
    if exports == 0 {
        hints.push("there is no [export.NAME]: the daemon would serve no disk".to_owned());
    }
    for (kind, names) in [("iothread", iothreads), ("node", nodes)] {
        for name in names.into_iter().filter(|name| !used.contains(name)) {
            hints.push(format!("{kind} '{name}' is used by nothing in this file"));
        }
    }
    for name in chardevs.into_iter().filter(|name| !monitors.contains(name)) {
        hints.push(format!(
            "chardev '{name}' is used by no monitor; add [monitor.{name}]"
        ));
    }
}

/// The name of the node below a node, if there is one.
fn below(options: &BlockdevOptions) -> Option<&String> {
    match options.driver.child()?.1 {
        NodeRef::Name(name) => Some(name),
        NodeRef::Inline(inside) => below(inside),
    }
}
