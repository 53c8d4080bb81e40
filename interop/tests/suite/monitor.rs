//! The monitor, driven by the client of QEMU's own project: its library, and its shell.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use interop::python;
use interop::server::{Server, Setup};
use interop::suite::{Need, Test};
use tempfile::TempDir;

pub const TESTS: &[Test] = &[
    Test::new("monitor::library", library).needs(Need::QemuQmp),
    Test::new("monitor::shell", shell).needs(Need::QemuQmp),
    Test::new("monitor::shell_for_people", shell_for_people)
        .needs(Need::QemuQmp)
        .qsd_cannot("it has no human-monitor-command"),
];

fn monitored() -> Server {
    Setup::null(1 << 20).monitored().start()
}

fn program(name: &str) -> Command {
    let programs = python::programs().expect("the test needs it");
    Command::new(programs.join(name))
}

fn succeeded(output: &Output) -> String {
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success(), "{}{}", said[0], said[1]);
    said[0].to_string()
}

fn library() {
    let folder = TempDir::new().expect("a folder for the test");
    let disk = folder.path().join("disk");
    std::fs::write(&disk, vec![0; 1 << 20]).expect("a disk can be written");
    let server = monitored();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/monitor.py");
    let mut python = program("python3");
    let export = folder.path().join("export");
    let python = python
        .arg(script)
        .arg(server.monitor())
        .arg(disk)
        .arg(export);
    succeeded(&python.output().expect("python3 can be run"));
    server.ended();
}

/// What the shell says when these lines are typed.
fn typed(arguments: &[&str], lines: &str) -> String {
    let folder = TempDir::new().expect("a folder for the test");
    let server = monitored();
    let mut shell = program("qmp-shell")
        .args(arguments)
        .arg(server.monitor())
        // What it keeps of its lines stays here.
        .env("HOME", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("qmp-shell can be run");
    let stdin = shell.stdin.as_mut().expect("it was piped");
    stdin.write_all(lines.as_bytes()).expect("it reads");
    let said = succeeded(&shell.wait_with_output().expect("it ends"));
    server.stop();
    said
}

fn shell() {
    let said = typed(
        &[],
        "blockdev-add driver=null-co node-name=n\nquery-named-block-nodes\nblockdev-del node-name=m\n",
    );
    assert!(
        said.contains("\"node-name\": \"n\"") && said.contains("Failed to find node"),
        "{said}"
    );
}

fn shell_for_people() {
    let said = typed(&["-H"], "info version\ninfo chardev\n");
    assert!(
        said.contains("blockplane") && said.contains("filename=unix:"),
        "{said}"
    );
}
