//! Announcement that `blockplane serve` prints: the disks, and the VMM options that attach them to a VM.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use options::{LogLevel, ServeDevice, ServeDisk, ServeSettings};
use serde_json::json;

/// QEMU options that share the guest's memory.
const QEMU_MEMORY: &str =
    "-object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem -m 1G";

/// Prints the announcement, except at log level `error`. `is_new` says which disks were created.
pub(crate) fn print_announcement_unless_quiet(options: &ServeSettings, is_new: &[bool]) {
    if options.log_level == LogLevel::Error {
        return;
    }
    let socket = absolute_path_text(&options.socket_path_or_default());
    let monitor_hint = options.monitor.as_ref().map(|monitor| {
        let monitor = absolute_path_text(monitor);
        format!("Watch it: blockplane top {monitor}\n")
    });
    let text = format!(
        "blockplane: serving {}

Attach it to a VM (its memory must be shared):
{}
{}Ctrl-C stops it after completing the requests in flight.",
        describe_disks_and_addresses(options, is_new, &socket),
        vmm_options(options, &socket),
        monitor_hint.unwrap_or_default(),
    );
    // The reader may have closed the pipe; ignore the error.
    let _ = writeln!(std::io::stdout(), "{}", commands::printable(&text));
}

/// The path as text; absolute, because the options may be pasted in another folder.
fn absolute_path_text(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.display().to_string()
}

/// The disks, and their addresses: sockets, or targets and LUNs.
fn describe_disks_and_addresses(options: &ServeSettings, is_new: &[bool], socket: &str) -> String {
    let queues = options.num_queues;
    let mut disks = options.disks.iter().zip(is_new).map(|(disk, is_new)| {
        let read_only = options.read_only || disk.is_snapshot();
        let disk = match disk {
            ServeDisk::Path(path) => path.display().to_string(),
            ServeDisk::NullCo => "null-co:".to_owned(),
            ServeDisk::Nbd(nbd) => nbd.uri(),
            ServeDisk::Rbd { image, .. } => format!("rbd:{}", image.image_spec()),
        };
        let state = match (is_new, read_only) {
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
        let (target, lun) = options.device.target_and_lun(number);
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  target {target}, LUN {lun}: {disk}");
    }
    text
}

/// The options that attach the disks to a VM, for each VMM that supports the device.
fn vmm_options(options: &ServeSettings, socket: &str) -> String {
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
                libvirt_xml_with_qemu_args(&[("-chardev", &chardev), ("-device", device)])
            )
        }
        ServeDevice::Lsi53c895a => {
            let device = json!({
                "driver": "vfio-user-pci",
                "socket": {"type": "unix", "path": socket},
            });
            let device = device.to_string();
            let quoted_device = device.replace('\'', r"'\''");
            format!(
                "  QEMU, from 11.1 on
    {QEMU_MEMORY} \\
    -device '{quoted_device}'
{}",
                libvirt_xml_with_qemu_args(&[("-device", &device)])
            )
        }
    }
}

/// The domain XML that passes options to QEMU for which libvirt has no element.
fn libvirt_xml_with_qemu_args(args: &[(&str, &str)]) -> String {
    let mut text =
        "  libvirt (in a domain with xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0')
    <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
    <qemu:commandline>
"
        .to_owned();
    for (option, value) in args {
        let value = value.replace('&', "&amp;").replace('<', "&lt;");
        let value = value.replace('\'', "&apos;");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "      <qemu:arg value='{option}'/><qemu:arg value='{value}'/>"
        );
    }
    text.push_str("    </qemu:commandline>\n");
    text
}
