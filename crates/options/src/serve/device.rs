//! Value of `serve --device`: the device that the guest sees, with checks of the number of disks and the options that
//! it supports.

use crate::export::{LSI_LIMITS, LSI_OWN_TARGET, VIRTIO_SCSI_LIMITS};
use crate::{MAX_QUEUES, MAX_SCSI_QUEUES};

/// The device that the guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServeDevice {
    /// `virtio-blk`: one disk, over vhost-user-blk.
    #[default]
    VirtioBlk,
    /// `virtio-scsi`: a controller with disks, over vhost-user-scsi.
    VirtioScsi,
    /// `lsi53c895a`: a SCSI host adapter with disks, over vfio-user.
    Lsi53c895a,
}

impl ServeDevice {
    /// The word of `--device`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ServeDevice::VirtioBlk => "virtio-blk",
            ServeDevice::VirtioScsi => "virtio-scsi",
            ServeDevice::Lsi53c895a => "lsi53c895a",
        }
    }

    /// Target and logical unit of the disk with this number. `virtio-scsi` has all disks at target 0, where firmware and guests
    /// look first; behind the adapter each disk is a target, as on a cable.
    #[must_use]
    pub fn target_and_lun(self, disk: u16) -> (u16, u16) {
        match self {
            ServeDevice::VirtioBlk => (0, 0),
            ServeDevice::VirtioScsi => (0, disk),
            ServeDevice::Lsi53c895a if disk < LSI_OWN_TARGET => (disk, 0),
            ServeDevice::Lsi53c895a => (disk + 1, 0),
        }
    }
}

/// Arguments of options that not every device supports.
pub(super) struct DeviceSpecificArgs {
    pub num_queues: Option<u16>,
    pub queue_size: Option<u16>,
    pub packed: bool,
    pub request_merging: Option<bool>,
    pub iothreads: u16,
}

/// Checks that the device supports the number of disks and the options.
pub(super) fn check_disk_count_and_options(
    device: ServeDevice,
    disk_count: usize,
    args: &DeviceSpecificArgs,
) -> Result<(), String> {
    check_disk_count(device, disk_count)?;
    let name = device.name();
    let unsupported: &[(&str, bool)] = match device {
        ServeDevice::VirtioBlk => &[],
        ServeDevice::VirtioScsi => &[("--request-merging", args.request_merging.is_some())],
        ServeDevice::Lsi53c895a => &[
            ("--request-merging", args.request_merging.is_some()),
            ("--num-queues", args.num_queues.is_some()),
            ("--queue-size", args.queue_size.is_some()),
            ("--packed", args.packed),
        ],
    };
    if let Some((option, _)) = unsupported.iter().find(|(_, is_given)| *is_given) {
        let why = match *option {
            "--request-merging" => "only virtio-blk merges requests",
            _ => "it has no virtqueues",
        };
        return Err(format!(
            "{option} does not go with --device {name}: {why}; remove it"
        ));
    }
    if device == ServeDevice::Lsi53c895a && args.iothreads > 1 {
        return Err(format!(
            "--iothreads {}: an {name} runs on one thread; remove it, or serve some of the disks with another \
             'blockplane serve'",
            args.iothreads
        ));
    }
    match args.num_queues {
        Some(queues) if device == ServeDevice::VirtioScsi && queues > MAX_SCSI_QUEUES => {
            Err(format!(
                "--num-queues {queues}: must be from 1 to {MAX_SCSI_QUEUES} with --device {name}, whose queues for \
                 control and events are two of {MAX_QUEUES}"
            ))
        }
        _ => Ok(()),
    }
}

/// Checks that the device can have this many disks.
fn check_disk_count(device: ServeDevice, disk_count: usize) -> Result<(), String> {
    let (most, instead) = match device {
        ServeDevice::VirtioBlk => (
            1,
            "serve them all with --device virtio-scsi, or each on a socket of its own",
        ),
        ServeDevice::VirtioScsi => (
            VIRTIO_SCSI_LIMITS.max_disks,
            "serve the others on another --socket",
        ),
        ServeDevice::Lsi53c895a => (
            // All targets but that of the adapter.
            usize::from(LSI_LIMITS.max_target),
            "serve the others on another --socket, or use --device virtio-scsi, which has 256",
        ),
    };
    if disk_count <= most {
        return Ok(());
    }
    let name = device.name();
    let has = match device {
        ServeDevice::VirtioBlk => "is one disk".to_owned(),
        ServeDevice::VirtioScsi => format!("has at most {most} disks"),
        ServeDevice::Lsi53c895a => format!("has targets for {most} disks"),
    };
    Err(format!(
        "{name} {has}, and {disk_count} are given: {instead}"
    ))
}
