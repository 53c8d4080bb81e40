//! `blockplane serve --device`: disks behind a controller, and the VMM options for it.

use std::fs;

use crate::front_end::FrontEnd;
use crate::process::Folder;

const MIB: u64 = 1 << 20;

fn absolute(folder: &Folder, name: &str) -> String {
    // The folder as the kernel gives it, should a part of its path be a link.
    let path = folder.path().canonicalize().unwrap().join(name);
    path.display().to_string()
}

#[test]
fn disks_behind_virtio_scsi_are_created_and_announced_with_their_addresses() {
    let folder = Folder::new();
    folder.image("old.img", MIB);
    let line = "serve --device virtio-scsi new.img old.img null-co: --size 1M --num-queues 3";
    let server = folder.start(line, "new.img.sock");
    assert_eq!(fs::metadata(folder.join("new.img")).unwrap().len(), MIB);
    // With those for control and events.
    let front_end = FrontEnd::connect(&folder.join("new.img.sock"));
    assert_eq!(front_end.num_queues(), 5);
    let stdout = server.stop().stdout;
    let socket = absolute(&folder, "new.img.sock");
    for expected in [
        format!("serving a virtio SCSI controller on {socket} (up to 3 queues)\n"),
        "  target 0, LUN 0: new.img, new\n".to_owned(),
        "  target 0, LUN 1: old.img\n".to_owned(),
        "  target 0, LUN 2: null-co:\n".to_owned(),
        format!("-chardev socket,id=scsi,path={socket} -device vhost-user-scsi-pci,chardev=scsi\n"),
        "<qemu:arg value='-device'/><qemu:arg value='vhost-user-scsi-pci,chardev=scsi'/>\n"
            .to_owned(),
    ] {
        assert!(stdout.contains(&expected), "no '{expected}' in: {stdout}");
    }
}

#[test]
fn disks_behind_an_lsi_are_announced_with_vfio_user_options() {
    let folder = Folder::new();
    let line = "serve --device lsi53c895a null-co: null-co: --read-only --socket it's.sock";
    let stdout = folder.start(line, "it's.sock").stop().stdout;
    let socket = absolute(&folder, "it's.sock");
    let (shell, xml) = (
        socket.replace('\'', r"'\''"),
        socket.replace('\'', "&apos;"),
    );
    let device = |socket: &str| {
        format!(r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{socket}"}}}}"#)
    };
    for expected in [
        format!("serving an LSI 53C895A on {socket}\n"),
        "  target 0, LUN 0: null-co:, read-only\n  target 1, LUN 0: null-co:, read-only\n"
            .to_owned(),
        "  QEMU, from 11.1 on\n".to_owned(),
        format!("    -device '{}'\n", device(&shell)),
        format!(
            "<qemu:arg value='-device'/><qemu:arg value='{}'/>\n",
            device(&xml)
        ),
    ] {
        assert!(stdout.contains(&expected), "no '{expected}' in: {stdout}");
    }
}

/// None of the new ones would be whole without the others.
#[test]
fn all_created_disks_are_removed_when_one_cannot_be_served() {
    let folder = Folder::new();
    folder.image("old.img", MIB);
    folder
        .run("serve --device virtio-scsi a.img old.img b.img --size 2M")
        .assert_fails_naming(&["old.img", "1048576", "2097152"]);
    folder
        .run("serve --device virtio-scsi a.img no/such.img --size 2M")
        .assert_fails_naming(&["no/such.img"]);
    assert_eq!(folder.names(), ["old.img"]);
}
