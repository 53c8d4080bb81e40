//! Tests of the error messages for disks that cannot be opened.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use block::{FileOptions, Node, NodeError};

use crate::storage::{
    LoopDevice, cached, device, folder, image, new_image, options, try_device, try_file, ways,
};

/// The error of opening, the same with direct I/O and without, for reading and for writing.
fn error(path: &Path, open: impl Fn(&FileOptions, bool) -> Result<Arc<Node>, NodeError>) -> String {
    let mut errors: Vec<String> = ways(path)
        .iter()
        .flat_map(|how| [(how, false), (how, true)])
        .map(|(how, read_only)| open(how, read_only).err().unwrap().to_string())
        .collect();
    errors.dedup();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0).replace(path.to_str().unwrap(), "PATH")
}

#[test]
fn files_that_are_no_disk_are_named_with_the_remedy() {
    let folder = folder();
    let none = folder.path().join("none");
    let missing = "PATH does not exist: create it first (truncate -s 10G PATH), \
        or let `blockplane serve` create it (--size 10G)";
    assert_eq!(error(&none, try_file), missing);
    let missing = "cannot open PATH: No such file or directory (os error 2)";
    assert_eq!(error(&none, try_device), missing);
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
        assert_eq!(error(path, try_file), file);
        let device = format!("PATH is {found}, driver host_device needs a block device");
        assert_eq!(error(path, try_device), device);
    }
    assert_eq!(
        error(&image(&folder, "disk", 512), try_device),
        "PATH is a regular file, driver host_device needs a block device (use driver=file)"
    );
    assert_eq!(
        error(&image(&folder, "empty", 0), try_file),
        "PATH is empty: a disk needs at least one sector of 512 bytes"
    );
}

#[test]
fn block_devices() {
    let Some(disk) = LoopDevice::with(1 << 20, 512, &["--read-only"]) else {
        return;
    };
    assert_eq!(
        error(&disk.path, try_file),
        "PATH is a block device, driver file needs a regular file (use driver=host_device)"
    );
    for how in ways(&disk.path) {
        // auto-read-only takes either for a reason to open it for reading.
        let error = try_device(&how, false).err().unwrap();
        let is_read_only = matches!(
            error,
            NodeError::ReadOnlyMedium { .. } | NodeError::Open { .. }
        );
        assert!(is_read_only, "{error}");
        assert!(try_device(&how, true).unwrap().read_only());
    }
    let Some(disk) = LoopDevice::new((1 << 20) + 512, 4096) else {
        return;
    };
    let geometry = device(&options(&disk.path)).geometry();
    assert_eq!(geometry.size, 1 << 20, "it ends with its last whole block");
    assert_eq!(geometry.physical_block_size, 4096);
}

#[test]
fn missing_permissions() {
    let (_folder, path) = new_image(512);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let open = || {
        // SAFETY: it concerns this thread alone, which ends with it; root may open anything.
        unsafe { libc::setfsuid(65_534) };
        try_file(&options(&path), false).map(drop)
    };
    let opened = std::thread::scope(|scope| scope.spawn(open).join().unwrap());
    let text = opened.unwrap_err().to_string();
    let hint = "Permission denied (os error 13) (run as a user that may open it, or open it";
    assert!(text.contains(hint), "{text}");
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
    assert!(error.to_string().contains("use cache.direct=off"));
    try_file(&cached(path), true).unwrap();
}
