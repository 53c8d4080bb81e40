//! systemd's verdict on the units.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::machine::{Machine, has_tools, output};

/// A machine with systemd's own targets, which units refer to.
fn machine() -> Machine {
    let machine = Machine::installed();
    let units = Path::new("/usr/lib/systemd/system");
    for entry in units.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "target") {
            let to = machine.join("usr/lib/systemd/system");
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
    machine
}

fn analyze(machine: &Machine, verb: &str, arguments: &[&str]) -> String {
    let root = format!("--root={}", machine.root().display());
    let mut all = vec![verb, &root];
    all.extend(arguments);
    output("systemd-analyze", &all)
}

#[test]
fn systemd_accepts_the_units() {
    if !has_tools(&["systemd-analyze"]) {
        return;
    }
    let machine = machine();
    let units = [
        "blockplane.service",
        "blockplane@web.service",
        "blockplane@web.socket",
    ];
    let mut command = Command::new("systemd-analyze");
    command
        .arg("verify")
        .arg(format!("--root={}", machine.root().display()))
        .arg("--man=no")
        .args(units);
    let result = command.output().unwrap();
    let said = String::from_utf8_lossy(&result.stderr);
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("blockplane"))
        .collect();
    assert!(result.status.success() && ours.is_empty(), "{said}");
}

#[test]
fn units_confine_the_daemon() {
    if !has_tools(&["systemd-analyze"]) {
        return;
    }
    let machine = machine();
    for unit in ["blockplane.service", "blockplane@web.service"] {
        // Fails where the exposure is above 1.5 of 10.
        analyze(
            &machine,
            "security",
            &["--offline=yes", "--threshold=15", unit],
        );
    }
}

#[test]
fn both_services_have_the_same_confinement() {
    if !has_tools(&[]) {
        return;
    }
    let machine = Machine::installed();
    let settings = |unit: &str| {
        let text = machine.text(&format!("usr/lib/systemd/system/{unit}"));
        let service = text.split_once("[Service]").unwrap().1;
        let service = service.split_once("[Install]").unwrap().0;
        let lines = service
            .lines()
            .filter(|line| !line.starts_with("ExecStart="));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        settings("blockplane.service"),
        settings("blockplane@.service")
    );
}
