//! Tests of image locks, among nodes and with QEMU's tools.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use block::{FileOptions, Locking, NodeError};
use test_support::report::installed;

use crate::harness::{Call, Rig};
use crate::storage::{file, new_image, options, patient, try_file};

const LEN: u64 = 1 << 20;
/// Far above what anything here needs.
const STUCK_AFTER: Duration = Duration::from_secs(60);

fn said(result: Result<std::sync::Arc<block::Node>, NodeError>) -> Option<String> {
    result.err().map(|error| error.to_string())
}

fn reader(options: &FileOptions) -> std::sync::Arc<block::Node> {
    patient(|| try_file(options, true))
}

fn locked(path: &Path, what: &str) -> Option<String> {
    let why = "is another process using the image? (stop it,";
    refused(path, what, why)
}

/// By another node of this program.
fn taken(path: &Path, what: &str) -> Option<String> {
    let why = "another node of this program has the image (use that node,";
    refused(path, what, why)
}

fn refused(path: &Path, what: &str, why: &str) -> Option<String> {
    Some(format!(
        "{}: failed to get {what} lock: {why} open the image read-only in both, or set locking=off when they are known to \
         cooperate)",
        path.display()
    ))
}

#[test]
fn one_writer_or_many_readers() {
    let (_folder, path) = new_image(LEN);
    let how = options(&path);
    let writer = file(&how);
    assert_eq!(said(try_file(&how, false)), taken(&path, "\"write\""));
    assert_eq!(said(try_file(&how, true)), taken(&path, "shared \"write\""));
    drop(writer);
    let readers = (reader(&how), reader(&how));
    assert_eq!(said(try_file(&how, false)), taken(&path, "\"write\""));
    drop(readers);
    file(&how);
}

#[test]
fn locking_off_takes_no_lock_and_on_is_as_auto() {
    let (_folder, path) = new_image(LEN);
    let with = |locking| FileOptions {
        locking,
        ..options(&path)
    };
    let _writer = file(&with(Locking::On));
    let _other = file(&with(Locking::Off));
    assert!(try_file(&with(Locking::On), false).is_err());
    assert!(try_file(&with(Locking::Auto), false).is_err());
}

/// Also when a worker has just used it: the worker releases it before the completion.
#[test]
fn the_lock_is_gone_with_the_node() {
    let (_folder, path) = new_image(LEN);
    let mut rig = Rig::new();
    for _ in 0..50 {
        let node = file(&options(&path));
        rig.ok(&node, Call::write(0, &[1; 512]).skewed(1));
        drop(node);
        file(&options(&path));
    }
}

/// The error of one of QEMU's tools; `None`: it succeeds.
fn qemu(tool: &str, arguments: &[&str]) -> Option<String> {
    let done = Command::new(tool).args(arguments).output().unwrap();
    (!done.status.success()).then(|| String::from_utf8_lossy(&done.stderr).into_owned())
}

fn read(path: &Path) -> Option<String> {
    let (from, to) = (path.to_str().unwrap(), path.with_extension("copy"));
    let formats = ["convert", "-f", "raw", "-O", "raw"];
    qemu(
        "qemu-img",
        &[&formats[..], &[from, to.to_str().unwrap()]].concat(),
    )
}

fn write(path: &Path) -> Option<String> {
    let path = path.to_str().unwrap();
    qemu("qemu-io", &["-f", "raw", "-c", "write 0 512", path])
}

/// Whether a tool succeeds after some time, see [`patient`].
fn succeeds(tool: fn(&Path) -> Option<String>, path: &Path) -> bool {
    (0..20).any(|_| tool(path).is_none())
}

#[test]
fn our_writer_excludes_qemu() {
    if !installed("qemu-img") || !installed("qemu-io") {
        return;
    }
    let (_folder, path) = new_image(LEN);
    let node = file(&options(&path));
    let text = write(&path).unwrap();
    assert!(text.contains("Failed to get \"write\" lock"), "{text}");
    let text = read(&path).unwrap();
    assert!(
        text.contains("Failed to get shared \"write\" lock"),
        "{text}"
    );
    drop(node);
    assert!(succeeds(read, &path) && succeeds(write, &path));

    let reader = reader(&options(&path));
    assert!(succeeds(read, &path));
    let text = write(&path).unwrap();
    assert!(text.contains("Failed to get \"write\" lock"), "{text}");
    drop(reader);

    let _unlocked = file(&FileOptions {
        locking: Locking::Off,
        force_share: false,
        ..options(&path)
    });
    assert!(succeeds(read, &path) && succeeds(write, &path));
}

/// QEMU's storage daemon with an export of the image.
struct Theirs(Child);

impl Theirs {
    fn serve(folder: &Path, path: &Path, writable: bool) -> Self {
        let on_off = if writable { "on" } else { "off" };
        let read_only = if writable { "off" } else { "on" };
        let pidfile = folder.join("pid");
        let child = Command::new("qemu-storage-daemon")
            .arg("--blockdev")
            .arg(format!(
                "driver=file,node-name=f,filename={},read-only={read_only}",
                path.display()
            ))
            .arg("--export")
            .arg(format!(
                "type=vhost-user-blk,id=e,node-name=f,writable={on_off},addr.type=unix,addr.path={}",
                folder.join("socket").display()
            ))
            .arg("--pidfile")
            .arg(&pidfile)
            .spawn()
            .unwrap();
        let mut theirs = Theirs(child);
        // It is written when everything is open.
        let begin = Instant::now();
        while !pidfile.exists() {
            assert_eq!(theirs.0.try_wait().unwrap(), None, "it ended");
            assert!(begin.elapsed() < STUCK_AFTER, "it opens nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        theirs
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node that reads an image whatever others do with it.
fn inspector(options: &FileOptions) -> std::sync::Arc<block::Node> {
    let shared = FileOptions {
        force_share: true,
        ..options.clone()
    };
    reader(&shared)
}

#[test]
fn a_node_with_force_share_reads_an_image_that_is_written() {
    let (_folder, path) = new_image(LEN);
    let how = options(&path);
    let writer = file(&how);
    let mut rig = Rig::new();
    rig.ok(&writer, Call::write(0, &[7; 512]));
    let inspector = inspector(&how);
    assert_eq!(rig.ok(&inspector, Call::read(0, 512)), [7; 512]);
    drop(writer);
    // It locks out no other opening.
    drop(file(&how));
    drop(reader(&how));
}

#[test]
fn qemus_shared_reader_and_ours_open_an_image_that_the_other_writes() {
    if !installed("qemu-storage-daemon") || !installed("qemu-img") || !installed("qemu-io") {
        return;
    }
    let (folder, path) = new_image(LEN);
    let how = options(&path);
    let text = path.to_str().unwrap();
    let writer = file(&how);
    let copy = path.with_extension("copy");
    let formats = ["convert", "-f", "raw", "-O", "raw"];
    let read_shared = [&formats[..], &["-U", text, copy.to_str().unwrap()]].concat();
    assert!(read(&path).is_some(), "it is not shared");
    assert_eq!(qemu("qemu-img", &read_shared), None);
    drop(writer);
    // QEMU's program holds the image, and so does ours, which only looks.
    let theirs = Theirs::serve(folder.path(), &path, true);
    let _inspector = inspector(&how);
    assert!(said(try_file(&how, true)).is_some(), "it is not shared");
    drop(theirs);
    assert!(succeeds(write, &path), "it locks out no writer");
}

#[test]
fn qemus_writer_and_reader_exclude_us() {
    if !installed("qemu-storage-daemon") {
        return;
    }
    let (folder, path) = new_image(LEN);
    let how = options(&path);

    let writer = Theirs::serve(folder.path(), &path, true);
    // QEMU's export of a bare file lets others write; what it does itself we would not share.
    assert!(matches!(said(try_file(&how, false)), Some(text) if text.contains("\"write\" lock")));
    assert_eq!(
        said(try_file(&how, true)),
        locked(&path, "shared \"write\"")
    );
    let off = FileOptions {
        locking: Locking::Off,
        force_share: false,
        ..how.clone()
    };
    file(&off);
    drop(writer);
    file(&how);
    std::fs::remove_file(folder.path().join("pid")).unwrap();

    let _reader = Theirs::serve(folder.path(), &path, false);
    reader(&how);
}
