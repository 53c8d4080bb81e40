//! Lookup table of a queue: its targets and disks by address, and the task set of each disk. It is built once; when disks are
//! added or removed, [`UnitTable::new`] builds another, which replaces it while nothing is in flight.

use scsi::{Target, TargetView, TaskSet};

use crate::address::Address;
use crate::device::Device;
use crate::slots::TargetAndDiskIndexes;

/// A unit with a disk.
pub(crate) struct QueueDisk {
    /// Its address as the last command to it had it in its header; 0: none yet.
    lun: u64,
    pub address: Address,
    pub unit_index: TargetAndDiskIndexes,
    /// Of its target.
    pub view: TargetView,
    /// The order of its commands from this queue.
    pub tasks: TaskSet<u32>,
}

/// A queue's units. It is replaced only while nothing is in flight.
pub(crate) struct UnitTable {
    /// Sorted by number.
    targets: Vec<(u8, TargetView)>,
    disks: Vec<QueueDisk>,
    /// Indexes of disks, sorted by address.
    disks_by_address: Vec<(Address, u32)>,
    /// The disk that was looked up last, or none.
    last_disk: u32,
}

/// No disk's index. A header can have any eight bytes: only a disk that was looked up before is found by them.
const NO_DISK: u32 = u32::MAX;

impl UnitTable {
    /// The targets of a device, and units with disks at these addresses, in this order.
    pub fn new(device: &Device, addresses: impl IntoIterator<Item = Address>) -> Self {
        let mut table = UnitTable {
            targets: Vec::new(),
            disks: Vec::new(),
            disks_by_address: Vec::new(),
            last_disk: NO_DISK,
        };
        let targets = device.targets();
        for (index, address) in (0..).zip(addresses) {
            let found = targets.binary_search_by_key(&address.target, |(number, _)| *number);
            let target = found.map_or_else(|_| Target::new(), |at| targets[at].1.clone());
            table.disks.push(QueueDisk {
                lun: 0,
                address,
                unit_index: TargetAndDiskIndexes {
                    target: found.map_or(u32::MAX, index_as_u32),
                    disk: Some(index),
                },
                view: TargetView::new(target),
                tasks: TaskSet::default(),
            });
            table.disks_by_address.push((address, index));
        }
        table.disks_by_address.sort_unstable();
        let views = targets.into_iter();
        table.targets = views
            .map(|(number, target)| (number, TargetView::new(target)))
            .collect();
        table
    }

    /// The disk at an address, as a header has it, and its index.
    #[inline(always)]
    pub fn find_disk_by_header_lun(&mut self, lun: u64) -> Option<(u32, &mut QueueDisk)> {
        let last = self.disks.get(self.last_disk as usize);
        if last.is_none_or(|disk| disk.lun != lun) {
            self.find_and_cache_disk(lun)?;
        }
        let disk = self.disks.get_mut(self.last_disk as usize)?;
        Some((self.last_disk, disk))
    }

    /// Finds the disk at an address, and makes it the last one. `None`: there is none.
    #[inline(never)]
    fn find_and_cache_disk(&mut self, lun: u64) -> Option<()> {
        let address = Address::decode(lun.to_le_bytes())?;
        self.last_disk = self.find_target_and_disk(address)?.disk?;
        self.disks[self.last_disk as usize].lun = lun;
        Some(())
    }

    /// The addresses of its disks, by index.
    pub fn disk_addresses(&self) -> impl Iterator<Item = Address> {
        self.disks.iter().map(|disk| disk.address)
    }

    /// The disk of this index.
    #[inline(always)]
    pub fn disk_at(&self, disk_index: u32) -> &QueueDisk {
        &self.disks[disk_index as usize]
    }

    /// Target and disk of an address. `None`: there is no such target.
    pub fn find_target_and_disk(&self, address: Address) -> Option<TargetAndDiskIndexes> {
        let target = self
            .targets
            .binary_search_by_key(&address.target, |(number, _)| *number)
            .ok()?;
        let disk = self
            .disks_by_address
            .binary_search_by_key(&address, |(of, _)| *of);
        Some(TargetAndDiskIndexes {
            target: index_as_u32(target),
            disk: disk.ok().map(|at| self.disks_by_address[at].1),
        })
    }

    /// The view that selects the unit: its disk's own, or that of its target.
    pub fn target_view_of_unit_mut(&mut self, unit_index: TargetAndDiskIndexes) -> &mut TargetView {
        match unit_index.disk {
            Some(disk) => &mut self.disks[disk as usize].view,
            None => &mut self.targets[unit_index.target as usize].1,
        }
    }

    /// The order of a disk's commands.
    pub fn task_set_of_disk(&mut self, disk: u32) -> &mut TaskSet<u32> {
        &mut self.disks[disk as usize].tasks
    }

    /// The order of a unit's commands. `None`: it has no disk.
    #[inline]
    pub fn task_set_of_unit(
        &mut self,
        unit_index: TargetAndDiskIndexes,
    ) -> Option<&mut TaskSet<u32>> {
        Some(self.task_set_of_disk(unit_index.disk?))
    }
}

/// The index of a target, of which there are at most 256.
fn index_as_u32(target: usize) -> u32 {
    u32::try_from(target).unwrap_or(u32::MAX)
}
