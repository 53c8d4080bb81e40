//! The monitor, driven by the client of QEMU's own project: its library, and its shell.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use interop::server::{Server, Setup};
use tempfile::TempDir;
use test_support::report::not_run;

/// The version that is tested with.
const PACKAGE: &str = "qemu.qmp==0.0.6";

/// The folder of its programs, `python3` and `qmp-shell` among them. It is installed when that is asked for the
/// first time, below the build folder, which takes python3 with venv, and the network.
fn programs() -> Option<&'static Path> {
    static PROGRAMS: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/qemu.qmp");
        let python = folder.join("bin/python3");
        let succeeds = |program: &Path, line: &str, last: &Path| {
            let mut command = Command::new(program);
            let output = command.args(line.split(' ')).arg(last).output();
            output.is_ok_and(|output| output.status.success())
        };
        let pip = "-m pip --disable-pip-version-check install --quiet";
        let is_there = succeeds(&python, "-c", "import qemu.qmp".as_ref())
            || succeeds("python3".as_ref(), "-m venv --clear", &folder)
                && succeeds(&python, pip, PACKAGE.as_ref());
        is_there.then(|| folder.join("bin"))
    });
    if PROGRAMS.is_none() {
        not_run(&format!("{PACKAGE} is not to be had"));
    }
    PROGRAMS.as_deref()
}

fn monitored() -> Server {
    Setup::new("driver=null-co,size=1048576").start()
}

fn succeeded(output: &Output) -> String {
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success(), "{}{}", said[0], said[1]);
    said[0].to_string()
}

#[test]
fn qemu_qmp_library_drives_the_monitor() {
    let Some(programs) = programs() else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let disk = folder.path().join("disk");
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let server = monitored();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/monitor.py");
    let mut python = Command::new(programs.join("python3"));
    python.arg(script).arg(server.monitor()).arg(disk);
    python.arg(folder.path().join("export"));
    succeeded(&python.output().unwrap());
    server.ended();
}

#[test]
fn qmp_shell_drives_the_monitor() {
    let Some(programs) = programs() else {
        return;
    };
    let server = monitored();
    for (option, lines, answers) in [
        (
            "--pretty",
            "blockdev-add driver=null-co node-name=n\nquery-named-block-nodes\nblockdev-del node-name=m\n",
            ["\"node-name\": \"n\"", "Failed to find node"],
        ),
        // For people.
        (
            "-H",
            "info version\ninfo chardev\n",
            ["blockplane", "filename=unix:"],
        ),
    ] {
        let folder = TempDir::new().unwrap();
        let mut shell = Command::new(programs.join("qmp-shell"))
            .arg(option)
            .arg(server.monitor())
            // What it keeps of its lines stays here.
            .env("HOME", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = shell.stdin.as_mut().unwrap();
        stdin.write_all(lines.as_bytes()).unwrap();
        let said = succeeded(&shell.wait_with_output().unwrap());
        for answer in answers {
            assert!(said.contains(answer), "{said}");
        }
    }
}
