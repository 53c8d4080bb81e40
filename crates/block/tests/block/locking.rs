//! Tests of image locks among nodes and QEMU's programs. Those of the locks themselves are beside them.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use block::{FileOptions, Locking, Node};
use test_support::deadline::Deadline;
use test_support::report::installed;

use crate::harness::{Call, Rig};
use crate::storage::{file, new_image, options, patient, try_file};

const LEN: u64 = 1 << 20;

fn reader(options: &FileOptions) -> Arc<Node> {
    patient(|| try_file(options, true))
}

/// The error of opening the image; empty: it is opened.
fn error(options: &FileOptions, read_only: bool) -> String {
    let opened = try_file(options, read_only);
    opened
        .err()
        .map_or(String::new(), |error| error.to_string())
}

/// Also when a worker has just used it: the worker releases it before the completion.
#[test]
fn the_lock_is_gone_with_the_node() {
    let (_folder, path) = new_image(LEN);
    let mut rig = Rig::new();
    let how = options(&path);
    for _ in 0..50 {
        let node = file(&how);
        rig.ok(&node, Call::write(0, &[1; 512]).skewed(1));
        let taken =
            "failed to get shared \"write\" lock: another node of this program has the image";
        assert!(error(&how, true).contains(taken), "{}", error(&how, true));
        drop(node);
        drop(file(&how));
    }
}

/// The error of one of QEMU's tools; empty: it succeeds.
fn qemu(tool: &str, arguments: &[&str], path: &Path) -> String {
    let mut command = Command::new(tool);
    let done = command.args(arguments).arg(path);
    let done = match tool {
        "qemu-img" => done.arg(path.with_extension("copy")),
        _ => done,
    };
    let done = done.output().unwrap();
    match done.status.success() {
        true => String::new(),
        false => String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

fn read(path: &Path) -> String {
    qemu("qemu-img", &["convert", "-f", "raw", "-O", "raw"], path)
}

fn read_shared(path: &Path) -> String {
    qemu(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "raw", "-U"],
        path,
    )
}

fn write(path: &Path) -> String {
    qemu("qemu-io", &["-f", "raw", "-c", "write 0 512"], path)
}

/// Whether a tool succeeds after some time, see [`patient`].
fn succeeds(tool: fn(&Path) -> String, path: &Path) -> bool {
    (0..20).any(|_| tool(path).is_empty())
}

#[test]
fn qemu_is_excluded_as_another_node_would_be() {
    if !installed("qemu-img") || !installed("qemu-io") {
        return;
    }
    let (_folder, path) = new_image(LEN);
    let assert_refused = |text: String, lock| {
        assert!(
            text.contains(&format!("Failed to get {lock} lock")),
            "{text}"
        );
    };
    let writer = file(&options(&path));
    assert_refused(write(&path), "\"write\"");
    assert_refused(read(&path), "shared \"write\"");
    assert_eq!(read_shared(&path), "");
    drop(writer);
    assert!(succeeds(read, &path) && succeeds(write, &path));

    let reader = reader(&options(&path));
    assert!(succeeds(read, &path));
    assert_refused(write(&path), "\"write\"");
    drop(reader);

    let _unlocked = file(&FileOptions {
        locking: Locking::Off,
        ..options(&path)
    });
    assert!(succeeds(read, &path) && succeeds(write, &path));
}

/// QEMU's storage daemon with an export of the image.
struct QemuStorageDaemon(Child);

impl QemuStorageDaemon {
    fn serve(folder: &Path, path: &Path, writable: bool) -> Self {
        let on_off = |on| if on { "on" } else { "off" };
        let pidfile = folder.join("pid");
        let _ = std::fs::remove_file(&pidfile);
        let node = format!(
            "driver=file,node-name=f,filename={},read-only={}",
            path.display(),
            on_off(!writable)
        );
        let export = format!(
            "type=vhost-user-blk,id=e,node-name=f,writable={},addr.type=unix,addr.path={}",
            on_off(writable),
            folder.join("socket").display()
        );
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--blockdev", &node, "--export", &export, "--pidfile"]);
        let mut daemon = QemuStorageDaemon(command.arg(&pidfile).spawn().unwrap());
        // It is written when everything is open.
        let deadline = Deadline::default();
        while !pidfile.exists() {
            assert_eq!(daemon.0.try_wait().unwrap(), None, "it ended");
            deadline.pause("it opens the image");
        }
        daemon
    }
}

impl Drop for QemuStorageDaemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn qemus_writer_and_reader_exclude_us_except_with_force_share() {
    if !installed("qemu-storage-daemon") || !installed("qemu-io") {
        return;
    }
    let (folder, path) = new_image(LEN);
    let how = options(&path);
    let writer = QemuStorageDaemon::serve(folder.path(), &path, true);
    // QEMU's export of a bare file lets others write; what it does itself we would not share.
    assert!(error(&how, false).contains("\"write\" lock"));
    let refused = "failed to get shared \"write\" lock: is another process using the image?";
    assert!(error(&how, true).contains(refused), "{}", error(&how, true));
    let unlocked = FileOptions {
        locking: Locking::Off,
        ..how.clone()
    };
    drop(file(&unlocked));
    let inspector = reader(&FileOptions {
        force_share: true,
        ..how.clone()
    });
    drop(writer);
    assert!(succeeds(write, &path), "an inspector locks out no writer");
    drop(file(&how));
    drop(inspector);

    let _reader = QemuStorageDaemon::serve(folder.path(), &path, false);
    reader(&how);
}
