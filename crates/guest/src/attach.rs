//! The options by which QEMU connects a device to its server.

use crate::device::Device;
use crate::server::Server;

/// The options of `server`'s device; `name` is unique in its machine. `reconnects`: QEMU connects again when the server has
/// gone.
pub(crate) fn arguments(server: &Server, name: &str, reconnects: bool) -> Vec<String> {
    let options = server.options();
    let socket = server.socket().display().to_string();
    let num_queues = options.num_queues;
    let device = match options.device {
        Device::VirtioBlk => {
            let packed = if options.packed { "on" } else { "off" };
            format!("vhost-user-blk-pci,chardev={name},num-queues={num_queues},packed={packed}")
        }
        Device::Controller { .. } => {
            format!("vhost-user-scsi-pci,chardev={name},num_queues={num_queues}")
        }
        // Only JSON can say where its socket is.
        Device::HostAdapter { .. } => {
            let device = format!(
                r#"{{"driver": "vfio-user-pci", "socket": {{"type": "unix", "path": "{socket}"}}}}"#
            );
            return vec!["-device".to_owned(), device];
        }
    };
    // In QEMU's option lists a comma ends a value; a doubled one is a literal comma.
    let mut chardev = format!("socket,id={name},path={}", socket.replace(',', ",,"));
    if reconnects {
        chardev.push_str(",reconnect=1");
    }
    vec!["-chardev".to_owned(), chardev, "-device".to_owned(), device]
}
