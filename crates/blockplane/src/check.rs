//! `blockplane check FILE`.

use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;

use options::{
    BlockdevOptions, Check, ConfigError, Configured, Directive, Driver, ExportKind, FileOptions,
    NodeRef, ObjectOptions, SocketAddr,
};
use rustix::fs::{Access, access};
use serde_json::{Value, json};

use crate::summary::Summary;
use crate::{Failure, configured, print};

/// Says what is wrong, or what would run.
pub(crate) fn run(options: &Check) -> Result<ExitCode, Failure> {
    let text = configured::read(&options.path)?;
    let outcome = Configured::of(&options.path)
        .with(&text)
        .map(|daemon| daemon.directives);
    let mut hints = Vec::new();
    if let Ok(directives) = &outcome {
        unused(directives, &mut hints);
        if options.open {
            files(directives, &mut hints);
        }
    }
    let status = match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    };
    match outcome {
        outcome if options.json => {
            let json = as_json(&options.path, &outcome, &hints);
            print(&format!("{json:#}\n"))?;
        }
        Ok(directives) => print(&as_text(&options.path, &directives, &hints))?,
        Err(error) => {
            // Without the program's name in front: editors take the lines apart.
            let _ = writeln!(std::io::stderr(), "{error}");
        }
    }
    Ok(status)
}

fn as_text(path: &Path, directives: &[Directive], hints: &[String]) -> String {
    let mut out = format!("{}: right\n{}", path.display(), Summary::of(directives));
    if !hints.is_empty() {
        out.push('\n');
    }
    for hint in hints {
        out += &format!("  hint: {hint}\n");
    }
    out
}

fn as_json(path: &Path, outcome: &Result<Vec<Directive>, ConfigError>, hints: &[String]) -> Value {
    let mut out = json!({
        "file": path.display().to_string(),
        "right": outcome.is_ok(),
    });
    match outcome {
        Ok(directives) => {
            out["hints"] = json!(hints);
            for (key, value) in Summary::of(directives).json() {
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

/// What nobody uses: most likely something was forgotten, or misspelt in a way that is a name as well.
fn unused(directives: &[Directive], hints: &mut Vec<String>) {
    let (mut nodes, mut iothreads, mut used) = (Vec::new(), Vec::new(), Vec::new());
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
                used.push(&options.node_name);
                used.extend(&options.iothreads);
            }
            Directive::Chardev(_) | Directive::Monitor(_) => {}
        }
    }
    if exports == 0 {
        hints.push("there is no [export.NAME]: nothing would be served".to_owned());
    }
    for (kind, names) in [("iothread", iothreads), ("node", nodes)] {
        for name in names.into_iter().filter(|name| !used.contains(name)) {
            hints.push(format!("{kind} '{name}' is used by nothing in this file"));
        }
    }
}

/// The node that a node names as the one below, if it does.
fn below(options: &BlockdevOptions) -> Option<&String> {
    match &options.driver {
        Driver::Raw(raw) => match &raw.file {
            NodeRef::Name(name) => Some(name),
            NodeRef::Inline(inside) => below(inside),
        },
        _ => None,
    }
}

/// What would fail at start because of a file.
fn files(directives: &[Directive], hints: &mut Vec<String>) {
    for directive in directives {
        match directive {
            Directive::Blockdev(options) => disk(options, hints),
            Directive::Export(options) => {
                let ExportKind::VhostUserBlk(disk) = &options.kind;
                folder_of(&disk.addr, hints);
            }
            Directive::Chardev(options) if options.server => folder_of(&options.addr, hints),
            _ => {}
        }
    }
}

fn disk(options: &BlockdevOptions, hints: &mut Vec<String>) {
    let (file, wants_device) = match &options.driver {
        Driver::File(file) => (file, false),
        Driver::HostDevice(file) => (file, true),
        Driver::NullCo(_) => return,
        Driver::Raw(raw) => {
            if let NodeRef::Inline(inside) = &raw.file {
                disk(inside, hints);
            }
            return;
        }
    };
    let FileOptions { filename, .. } = file;
    let mut hint = |what: &str| {
        hints.push(format!(
            "node '{}': {} {what}",
            options.node_name,
            filename.display()
        ))
    };
    let writes = !options.read_only && !options.auto_read_only;
    match std::fs::metadata(filename) {
        Err(error) => hint(&format!("cannot be looked at: {error}")),
        Ok(found) if found.file_type().is_block_device() != wants_device => hint(if wants_device {
            "is not a block device: use driver = \"file\""
        } else {
            "is not a regular file: for block devices there is driver = \"host_device\""
        }),
        Ok(_) if access(filename, Access::READ_OK).is_err() => hint("may not be read by you"),
        Ok(_) if writes && access(filename, Access::WRITE_OK).is_err() => {
            hint("may not be written by you: set read-only = true, or mend its permissions");
        }
        Ok(_) => {}
    }
}

fn folder_of(addr: &SocketAddr, hints: &mut Vec<String>) {
    let SocketAddr::Unix { path } = addr else {
        return;
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if let Err(error) = access(folder, Access::WRITE_OK) {
        let (path, folder) = (path.display(), folder.display());
        hints.push(format!("socket {path} cannot be made in {folder}: {error}"));
    }
}
