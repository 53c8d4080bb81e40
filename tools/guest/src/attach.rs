//! The options by which QEMU connects a guest to its server: a device, and a network if the server has an NBD port.

use serde_json::json;

use crate::server::{Device, Server};

/// What QEMU may do beside what it does by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// The option of a chardev by which it connects again when the server has gone.
    pub(crate) reconnect: Option<&'static str>,
    /// Requests in flight move with a guest that moves: only over vhost-user, and with QEMU 11.1.
    pub(crate) inflight_migration: bool,
}

/// A network in which 10.0.2.2 is 127.0.0.1 of this machine. The device has no program for the firmware: another package has it.
const NETWORK: [&str; 4] = [
    "-netdev",
    "user,id=net",
    "-device",
    "virtio-net-pci,netdev=net,romfile=",
];

/// The options of what `server` has; `name` is unique in its machine.
pub(crate) fn arguments(server: &Server, name: &str, extras: Extras) -> Vec<String> {
    let options = server.options();
    let socket = server.socket();
    let num_queues = options.num_queues;
    let device = match options.device {
        Device::VirtioBlk => {
            let packed = if options.packed { "on" } else { "off" };
            let inflight = match extras.inflight_migration {
                true => ",inflight-migration=on",
                false => "",
            };
            format!(
                "vhost-user-blk-pci,chardev={name},num-queues={num_queues},packed={packed}{inflight}"
            )
        }
        Device::Controller => {
            format!("vhost-user-scsi-pci,chardev={name},num_queues={num_queues}")
        }
        // Only JSON can say where its socket is.
        Device::HostAdapter => {
            let socket = json!({"type": "unix", "path": socket});
            let device = json!({"driver": "vfio-user-pci", "socket": socket});
            return vec!["-device".to_owned(), device.to_string()];
        }
    };
    // In QEMU's option lists a comma ends a value; a doubled one is a literal comma.
    let path = socket.display().to_string().replace(',', ",,");
    let reconnect = extras.reconnect.map(|option| format!(",{option}"));
    let chardev = format!(
        "socket,id={name},path={path}{}",
        reconnect.unwrap_or_default()
    );
    let mut arguments = vec!["-chardev".to_owned(), chardev, "-device".to_owned(), device];
    if options.nbd_port.is_some() {
        arguments.extend(NETWORK.map(str::to_owned));
    }
    arguments
}
