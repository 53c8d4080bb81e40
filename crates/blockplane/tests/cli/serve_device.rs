//! `blockplane serve --device`: disks behind a controller, and the VMM options for it.

use std::fs;

use crate::num_queues;
use crate::process::Folder;

const MIB: u64 = 1 << 20;

fn absolute(folder: &Folder, name: &str) -> String {
    // The folder as the kernel gives it, should a part of its path be a link.
    let path = folder.path().canonicalize().unwrap().join(name);
    path.display().to_string()
}

#[track_caller]
fn assert_contains_all(stdout: &str, expected: &[&str]) {
    for expected in expected {
        assert!(stdout.contains(expected), "no '{expected}' in: {stdout}");
    }
}

#[test]
fn disks_behind_virtio_scsi_are_created_and_announced_with_their_addresses() {
    let folder = Folder::new();
    folder.image("old.img", MIB);
    let line = "serve --device virtio-scsi new.img old.img null-co: --size 1M --num-queues 3";
    let server = folder.start(line, "new.img.sock");
    assert_eq!(fs::metadata(folder.join("new.img")).unwrap().len(), MIB);
    // With those for control and events.
    assert_eq!(num_queues(&folder, "new.img.sock"), 5);
    let socket = absolute(&folder, "new.img.sock");
    let expected = [
        &*format!("serving a virtio SCSI controller on {socket} (up to 3 queues)\n"),
        "  target 0, LUN 0: new.img, new\n  target 0, LUN 1: old.img\n  target 0, LUN 2: null-co:\n",
        &*format!(
            "-chardev socket,id=scsi,path={socket} -device vhost-user-scsi-pci,chardev=scsi\n"
        ),
        "<qemu:arg value='-device'/><qemu:arg value='vhost-user-scsi-pci,chardev=scsi'/>\n",
    ];
    assert_contains_all(&server.stop().stdout, &expected);
}

#[test]
fn disks_behind_an_lsi_are_announced_with_vfio_user_options() {
    let folder = Folder::new();
    let line = "serve --device lsi53c895a null-co: null-co: --read-only --socket it's.sock";
    let stdout = folder.start(line, "it's.sock").stop().stdout;
    let socket = absolute(&folder, "it's.sock");
    let device = |quote: &str| {
        let socket = socket.replace('\'', quote);
        format!(r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{socket}"}}}}"#)
    };
    let (shell, xml) = (device(r"'\''"), device("&apos;"));
    let expected = [
        &*format!("serving an LSI 53C895A on {socket}\n"),
        "  target 0, LUN 0: null-co:, read-only\n  target 1, LUN 0: null-co:, read-only\n",
        "  QEMU, from 11.1 on\n",
        &*format!("    -device '{shell}'\n"),
        &*format!("<qemu:arg value='-device'/><qemu:arg value='{xml}'/>\n"),
    ];
    assert_contains_all(&stdout, &expected);
}

/// None of the new ones would be whole without the others.
#[test]
fn created_disks_are_removed_when_the_start_fails() {
    let folder = Folder::new();
    folder.image("old.img", MIB);
    fs::create_dir(folder.join("s")).unwrap();
    for (line, words) in [
        (
            "serve --device virtio-scsi a.img old.img b.img --size 2M",
            &["old.img", "1048576", "2097152"][..],
        ),
        (
            "serve --device virtio-scsi a.img no/such.img --size 2M",
            &["no/such.img"],
        ),
        ("serve new.img --size 1M --socket s", &["no socket"]),
    ] {
        folder.run(line).assert_fails_naming(words);
        assert_eq!(folder.names(), ["old.img", "s"]);
    }
}
