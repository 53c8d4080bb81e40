//! systemd's verdict on the units.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::machine::{Machine, has_tools, output};

#[test]
fn systemd_accepts_the_units_and_their_confinement() {
    if !has_tools(&["systemd-analyze"]) {
        return;
    }
    let machine = Machine::installed();
    // systemd's own targets, which units refer to.
    let units = Path::new("/usr/lib/systemd/system");
    for entry in units.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "target") {
            let to = machine.join("usr/lib/systemd/system");
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
    let root = format!("--root={}", machine.root().display());
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", &root, "--man=no", "blockplane.service"]);
    verify.args(["blockplane@web.service", "blockplane@web.socket"]);
    let result = verify.output().unwrap();
    let said = String::from_utf8_lossy(&result.stderr);
    let is_ours = said.lines().any(|line| line.contains("blockplane"));
    assert!(result.status.success() && !is_ours, "{said}");

    for unit in ["blockplane.service", "blockplane@web.service"] {
        // Fails where the exposure is above 1.5 of 10.
        let security = ["security", &root, "--offline=yes", "--threshold=15", unit];
        output("systemd-analyze", &security);
    }
}

#[test]
fn both_services_have_the_same_confinement() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let settings = |unit: &str| {
        let text = fs::read_to_string(units.join(unit)).unwrap();
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
