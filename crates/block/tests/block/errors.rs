//! Tests of the error messages for disks that cannot be opened.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use block::{CreateOutcome, NodeError, create_sparse_or_check_size};

use crate::storage::{
    LoopDevice, cached, file, folder, image, new_image, options, try_device, try_file, ways,
};

/// What opening says, the same with direct I/O and without, for reading and for writing.
fn file_says(path: &Path) -> String {
    always(path, try_file)
}

fn device_says(path: &Path) -> String {
    always(path, try_device)
}

fn always(
    path: &Path,
    open: impl Fn(&block::FileOptions, bool) -> Result<std::sync::Arc<block::Node>, NodeError>,
) -> String {
    let mut said: Vec<String> = ways(path)
        .iter()
        .flat_map(|how| [(how, false), (how, true)])
        .map(|(how, read_only)| open(how, read_only).err().unwrap().to_string())
        .collect();
    said.dedup();
    assert_eq!(said.len(), 1, "{said:?}");
    said.remove(0).replace(path.to_str().unwrap(), "PATH")
}

#[test]
fn missing_disks() {
    let folder = folder();
    let path = folder.path().join("none");
    let file = "PATH does not exist: create it first (truncate -s 10G PATH), \
        or let `blockplane serve` create it (--size 10G)";
    assert_eq!(file_says(&path), file);
    let device = "cannot open PATH: No such file or directory (os error 2)";
    assert_eq!(device_says(&path), device);
}

#[test]
fn files_of_another_kind() {
    let folder = folder();
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, found) in [
        (folder.path(), "a directory"),
        (&fifo, "a pipe"),
        (&socket, "a socket"),
        (Path::new("/dev/null"), "a character device"),
    ] {
        let file = format!("PATH is {found}, driver file needs a regular file");
        assert_eq!(file_says(path), file);
        let device = format!("PATH is {found}, driver host_device needs a block device");
        assert_eq!(device_says(path), device);
    }
    assert_eq!(
        device_says(&image(&folder, "disk", 512)),
        "PATH is a regular file, driver host_device needs a block device (use driver=file)"
    );
    assert_eq!(
        file_says(&empty),
        "PATH is empty: a disk needs at least one sector of 512 bytes"
    );
}

#[test]
fn block_devices() {
    let Some(disk) = LoopDevice::with(1 << 20, 512, &["--read-only"]) else {
        return;
    };
    assert_eq!(
        file_says(&disk.path),
        "PATH is a block device, driver file needs a regular file (use driver=host_device)"
    );
    for how in ways(&disk.path) {
        let error = try_device(&how, false).err().unwrap();
        // auto-read-only takes either for a reason to open it for reading.
        assert!(
            matches!(
                error,
                NodeError::ReadOnlyMedium { .. } | NodeError::Open { .. }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("read-only"), "{error}");
        assert!(try_device(&how, true).unwrap().read_only());
    }
}

#[test]
fn a_device_ends_with_its_last_whole_block() {
    let Some(disk) = LoopDevice::new((1 << 20) + 512, 4096) else {
        return;
    };
    let node = crate::storage::device(&options(&disk.path));
    assert_eq!(node.geometry().size, 1 << 20);
    assert_eq!(node.geometry().physical_block_size, 4096);
}

#[test]
fn missing_permissions() {
    let (_folder, path) = new_image(512);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let said = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // SAFETY: it concerns this thread alone, which ends with it; root may open anything.
            unsafe { libc::setfsuid(65_534) };
            try_file(&options(&path), false).map(drop)
        });
        other.join().unwrap()
    });
    let text = said.unwrap_err().to_string();
    let hint =
        "Permission denied (os error 13) (run as a user that may open it, or open it read-only)";
    assert!(
        text.starts_with("cannot open ") && text.ends_with(hint),
        "{text}"
    );
}

#[test]
fn no_direct_io() {
    // Whatever the kernel shows there goes through its own functions, never around a cache.
    let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    if !path.exists() {
        test_support::report::not_run("no such file in sysfs");
        return;
    }
    let error = try_file(&options(path), true).err().unwrap();
    assert!(matches!(error, NodeError::NoDirectIo { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "/sys/kernel/mm/transparent_hugepage/enabled: its filesystem has no direct I/O (O_DIRECT); \
         use cache.direct=off (serve: --cache-direct off)"
    );
    try_file(&cached(path), true).unwrap();
}

#[test]
fn created_disks() {
    let folder = folder();
    let path = folder.path().join("disk");
    assert_eq!(
        create_sparse_or_check_size(&path, 1 << 20).unwrap(),
        CreateOutcome::New
    );
    assert_eq!(file(&options(&path)).geometry().size, 1 << 20);
    assert_eq!(
        create_sparse_or_check_size(&path, 1 << 20).unwrap(),
        CreateOutcome::Existed
    );
    assert_eq!(
        create_sparse_or_check_size(&path, 2 << 20)
            .unwrap_err()
            .to_string(),
        format!(
            "{} exists and has 1048576 bytes, not 2097152: omit the size to serve it as it \
             is, or choose another file",
            path.display()
        )
    );
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    assert_eq!(
        create_sparse_or_check_size(&link, 1 << 20).unwrap(),
        CreateOutcome::Existed
    );
    let nowhere = folder.path().join("nowhere");
    symlink(folder.path().join("none"), &nowhere).unwrap();
    let error = create_sparse_or_check_size(&nowhere, 1 << 20).unwrap_err();
    assert!(matches!(error, NodeError::Open { .. }), "{error}");
    let error = create_sparse_or_check_size(&folder.path().join("no/disk"), 512).unwrap_err();
    assert!(matches!(error, NodeError::Open { .. }), "{error}");
}
