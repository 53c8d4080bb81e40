//! Table of a queue's units, by address.

use scsi::{Target, TaskSet, View};

use crate::address::Address;
use crate::device::Device;
use crate::slots::Place;

/// A unit with a disk.
pub(crate) struct Disk {
    /// Its address as the last command to it had it in its header; 0: none yet.
    lun: u64,
    pub address: Address,
    pub place: Place,
    /// Of its target.
    pub view: View,
    /// The order of its commands from this queue.
    pub tasks: TaskSet<u32>,
}

/// A queue's units. It is replaced only while nothing is in flight.
pub(crate) struct UnitTable {
    /// Sorted by number.
    targets: Vec<(u8, View)>,
    disks: Vec<Disk>,
    /// Places of disks, sorted by address.
    order: Vec<(Address, u32)>,
    /// The disk that was looked up last, or none.
    last: u32,
}

/// No disk's place. A header can have any eight bytes: only a disk that was looked up before is found by them.
const NONE: u32 = u32::MAX;

impl UnitTable {
    /// The targets of a device, and units with disks at these addresses, in this order.
    pub fn new(device: &Device, addresses: impl IntoIterator<Item = Address>) -> Self {
        let mut table = UnitTable {
            targets: Vec::new(),
            disks: Vec::new(),
            order: Vec::new(),
            last: NONE,
        };
        let targets = device.targets();
        for (index, address) in (0..).zip(addresses) {
            let found = targets.binary_search_by_key(&address.target, |(number, _)| *number);
            let target = found.map_or_else(|_| Target::new(), |at| targets[at].1.clone());
            table.disks.push(Disk {
                lun: 0,
                address,
                place: Place {
                    target: found.map_or(u32::MAX, index_of),
                    disk: Some(index),
                },
                view: View::new(target),
                tasks: TaskSet::default(),
            });
            table.order.push((address, index));
        }
        table.order.sort_unstable();
        let views = targets.into_iter();
        table.targets = views
            .map(|(number, target)| (number, View::new(target)))
            .collect();
        table
    }

    /// The disk at an address, as a header has it, and its place.
    #[inline(always)]
    pub fn disk(&mut self, lun: u64) -> Option<(u32, &mut Disk)> {
        let last = self.disks.get(self.last as usize);
        if last.is_none_or(|disk| disk.lun != lun) {
            self.look_up(lun)?;
        }
        let disk = self.disks.get_mut(self.last as usize)?;
        Some((self.last, disk))
    }

    #[inline(never)]
    fn look_up(&mut self, lun: u64) -> Option<()> {
        let address = Address::decode(lun.to_le_bytes())?;
        self.last = self.find(address)?.disk?;
        self.disks[self.last as usize].lun = lun;
        Some(())
    }

    /// The addresses of its disks, by place.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.disks.iter().map(|disk| disk.address)
    }

    /// The disk at a place.
    #[inline(always)]
    pub fn at(&self, place: u32) -> &Disk {
        &self.disks[place as usize]
    }

    /// Target and disk of an address. `None`: there is no such target.
    pub fn find(&self, address: Address) -> Option<Place> {
        let target = self
            .targets
            .binary_search_by_key(&address.target, |(number, _)| *number)
            .ok()?;
        let disk = self.order.binary_search_by_key(&address, |(of, _)| *of);
        Some(Place {
            target: index_of(target),
            disk: disk.ok().map(|at| self.order[at].1),
        })
    }

    pub fn view(&mut self, place: Place) -> &mut View {
        match place.disk {
            Some(disk) => &mut self.disks[disk as usize].view,
            None => &mut self.targets[place.target as usize].1,
        }
    }

    /// The order of a disk's commands.
    pub fn tasks_of(&mut self, disk: u32) -> &mut TaskSet<u32> {
        &mut self.disks[disk as usize].tasks
    }

    #[inline]
    pub fn tasks(&mut self, place: Place) -> Option<&mut TaskSet<u32>> {
        Some(self.tasks_of(place.disk?))
    }
}

/// There are at most 256 targets.
fn index_of(target: usize) -> u32 {
    u32::try_from(target).unwrap_or(u32::MAX)
}
