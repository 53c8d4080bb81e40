//! Announcement of `serve`: the disks that are served, and the options that attach them to a VM.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use options::{Disk, LogLevel, Serve, ServeDevice};
use serde_json::json;

/// How a guest of QEMU shares its memory.
const QEMU_MEMORY: &str =
    "-object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem -m 1G";

/// Prints it, unless told to be quiet. `new` says which disks were not there before.
pub(crate) fn announce(options: &Serve, new: &[bool]) {
    if options.log_level == LogLevel::Error {
        return;
    }
    let socket = absolute(&options.socket_path());
    let look = options.monitor.as_ref().map(|monitor| {
        let monitor = absolute(monitor);
        format!("Look at it: blockplane top {monitor}\n")
    });
    let text = format!(
        "blockplane: serving {}

Attach it to a VM (its memory must be shared):
{}
{}Ctrl-C stops it: requests in flight are finished first.",
        served(options, new, &socket),
        attached(options, &socket),
        look.unwrap_or_default(),
    );
    // Whoever does not want to read it may have closed the pipe.
    let _ = writeln!(std::io::stdout(), "{}", commands::printable(&text));
}

/// Whoever pastes it may be in another folder.
fn absolute(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.display().to_string()
}

/// The disks, and where they are.
fn served(options: &Serve, new: &[bool], socket: &str) -> String {
    let queues = options.num_queues;
    let mut disks = options.disks.iter().zip(new).map(|(disk, new)| {
        let disk = match disk {
            Disk::Path(path) => path.display().to_string(),
            Disk::NullCo => "null-co:".to_owned(),
        };
        let state = match (new, options.read_only) {
            (true, _) => ", new",
            (false, true) => ", read-only",
            (false, false) => "",
        };
        format!("{disk}{state}")
    });
    let mut text = match options.device {
        ServeDevice::VirtioBlk => {
            let disk = disks.next().unwrap_or_default();
            return format!("{disk} on {socket} (up to {queues} queues)");
        }
        ServeDevice::VirtioScsi => {
            format!("a virtio SCSI controller on {socket} (up to {queues} queues)")
        }
        ServeDevice::Lsi53c895a => format!("an LSI 53C895A on {socket}"),
    };
    for (number, disk) in (0..).zip(disks) {
        let (target, lun) = options.device.place(number);
        // A string takes all that is written to it.
        let _ = write!(text, "\n  target {target}, LUN {lun}: {disk}");
    }
    text
}

/// The options of VMMs.
fn attached(options: &Serve, socket: &str) -> String {
    match options.device {
        ServeDevice::VirtioBlk => {
            let queue_size = options.queue_size.min(256);
            format!(
                "  QEMU
    {QEMU_MEMORY} \\
    -chardev socket,id=disk,path={socket} -device vhost-user-blk-pci,chardev=disk
  Cloud Hypervisor
    --memory size=1G,shared=on --disk vhost_user=true,socket={socket},num_queues=1,queue_size={queue_size}
"
            )
        }
        ServeDevice::VirtioScsi => {
            let chardev = format!("socket,id=scsi,path={socket}");
            let device = "vhost-user-scsi-pci,chardev=scsi";
            format!(
                "  QEMU
    {QEMU_MEMORY} \\
    -chardev {chardev} -device {device}
{}",
                libvirt(&[("-chardev", &chardev), ("-device", device)])
            )
        }
        ServeDevice::Lsi53c895a => {
            let device = json!({
                "driver": "vfio-user-pci",
                "socket": {"type": "unix", "path": socket},
            });
            let device = device.to_string();
            let pasted = device.replace('\'', r"'\''");
            format!(
                "  QEMU, from 11.1 on
    {QEMU_MEMORY} \\
    -device '{pasted}'
{}",
                libvirt(&[("-device", &device)])
            )
        }
    }
}

/// What libvirt has no element for is handed to its QEMU.
fn libvirt(args: &[(&str, &str)]) -> String {
    let mut text =
        "  libvirt (in a domain with xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0')
    <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
    <qemu:commandline>
"
        .to_owned();
    for (option, value) in args {
        let value = value.replace('&', "&amp;").replace('<', "&lt;");
        let value = value.replace('\'', "&apos;");
        // As above.
        let _ = writeln!(
            text,
            "      <qemu:arg value='{option}'/><qemu:arg value='{value}'/>"
        );
    }
    text.push_str("    </qemu:commandline>\n");
    text
}
