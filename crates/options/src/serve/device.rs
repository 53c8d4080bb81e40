//! `--device`: what the guest finds, and which options that leaves.

use crate::export::{LSI_ADAPTER, LSI_PLACES, VIRTIO_PLACES};
use crate::{MAX_QUEUES, MAX_SCSI_QUEUES};

/// What the guest finds behind the socket.
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
    /// As `--device` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ServeDevice::VirtioBlk => "virtio-blk",
            ServeDevice::VirtioScsi => "virtio-scsi",
            ServeDevice::Lsi53c895a => "lsi53c895a",
        }
    }

    /// Where the disk of this number is, as target and logical unit: `virtio-scsi` has them all at one target, where
    /// firmware and guests look first; behind the adapter each is a target, as disks on a cable are.
    #[must_use]
    pub fn place(self, disk: u16) -> (u16, u16) {
        match self {
            ServeDevice::VirtioBlk => (0, 0),
            ServeDevice::VirtioScsi => (0, disk),
            ServeDevice::Lsi53c895a if disk < LSI_ADAPTER => (disk, 0),
            ServeDevice::Lsi53c895a => (disk + 1, 0),
        }
    }
}

/// Options that not every device has, as far as they were given.
pub(super) struct Given {
    pub num_queues: Option<u16>,
    pub queue_size: Option<u16>,
    pub packed: bool,
    pub request_merging: Option<bool>,
    pub iothreads: u16,
}

/// What is wrong with so many disks and these options.
pub(super) fn check(device: ServeDevice, disks: usize, given: &Given) -> Result<(), String> {
    check_disks(device, disks)?;
    let name = device.name();
    let unknown: &[(&str, bool)] = match device {
        ServeDevice::VirtioBlk => &[],
        ServeDevice::VirtioScsi => &[("--request-merging", given.request_merging.is_some())],
        ServeDevice::Lsi53c895a => &[
            ("--request-merging", given.request_merging.is_some()),
            ("--num-queues", given.num_queues.is_some()),
            ("--queue-size", given.queue_size.is_some()),
            ("--packed", given.packed),
        ],
    };
    if let Some((option, _)) = unknown.iter().find(|(_, is_given)| *is_given) {
        let why = match *option {
            "--request-merging" => "only virtio-blk joins requests",
            _ => "it has no virtqueues",
        };
        return Err(format!(
            "{option} does not go with --device {name}: {why}; remove it"
        ));
    }
    if device == ServeDevice::Lsi53c895a && given.iothreads > 1 {
        return Err(format!(
            "--iothreads {}: all of an {name} runs on one thread; remove it, or serve some of the disks by another \
             'blockplane serve'",
            given.iothreads
        ));
    }
    match given.num_queues {
        Some(queues) if device == ServeDevice::VirtioScsi && queues > MAX_SCSI_QUEUES => {
            Err(format!(
                "--num-queues {queues}: must be from 1 to {MAX_SCSI_QUEUES} with --device {name}, whose queues for \
                 control and events are two of {MAX_QUEUES}"
            ))
        }
        _ => Ok(()),
    }
}

fn check_disks(device: ServeDevice, disks: usize) -> Result<(), String> {
    let (most, instead) = match device {
        ServeDevice::VirtioBlk => (
            1,
            "give the guest all of them by --device virtio-scsi, or serve each by itself",
        ),
        ServeDevice::VirtioScsi => (
            VIRTIO_PLACES.max_disks,
            "serve the others on another --socket",
        ),
        ServeDevice::Lsi53c895a => (
            // All of its targets but itself.
            usize::from(LSI_PLACES.max_target),
            "serve the others on another --socket, or take --device virtio-scsi, which has 256",
        ),
    };
    if disks <= most {
        return Ok(());
    }
    let name = device.name();
    let has = match device {
        ServeDevice::VirtioBlk => "is one disk".to_owned(),
        ServeDevice::VirtioScsi => format!("has at most {most} disks"),
        ServeDevice::Lsi53c895a => format!("has targets for {most} disks"),
    };
    Err(format!("{name} {has}, and {disks} are given: {instead}"))
}
