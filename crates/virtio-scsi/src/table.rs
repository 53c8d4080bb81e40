//! The units that a queue knows, by their addresses.

use scsi::{TaskSet, View};

use crate::address::Address;
use crate::device::Device;
use crate::slots::Place;

/// One that has a disk.
struct Disk {
    address: Address,
    target: usize,
    /// In which order its commands of this queue are carried out.
    tasks: TaskSet<u32>,
}

/// As long as nothing is in flight it can be exchanged.
pub(crate) struct Table {
    /// Sorted by their numbers.
    targets: Vec<(u8, View)>,
    disks: Vec<Disk>,
    /// The disk that was looked up last: its target is there.
    last: Option<usize>,
}

impl Table {
    /// The targets of a device, and units with disks in the order of these.
    pub fn new(device: &Device, addresses: impl IntoIterator<Item = Address>) -> Self {
        let targets: Vec<(u8, View)> = device
            .targets()
            .into_iter()
            .map(|(number, target)| (number, View::new(target)))
            .collect();
        let disks = addresses.into_iter().map(|address| Disk {
            address,
            target: place_of(&targets, address.target).unwrap_or(usize::MAX),
            tasks: TaskSet::default(),
        });
        Table {
            disks: disks.collect(),
            targets,
            last: None,
        }
    }

    /// Where a command for this address goes. `None`: there is no such target.
    #[inline]
    pub fn find(&mut self, address: Address) -> Option<Place> {
        if let Some(last) = self.last
            && let Some(disk) = self.disks.get(last)
            && disk.address == address
        {
            return Some(Place {
                target: disk.target,
                disk: self.last,
            });
        }
        self.look_up(address)
    }

    #[inline(never)]
    fn look_up(&mut self, address: Address) -> Option<Place> {
        let target = place_of(&self.targets, address.target)?;
        let disk = self.disks.iter().position(|disk| disk.address == address);
        self.last = disk.or(self.last);
        Some(Place { target, disk })
    }

    #[inline]
    pub fn view(&mut self, place: Place) -> &mut View {
        &mut self.targets[place.target].1
    }

    #[inline]
    pub fn tasks(&mut self, place: Place) -> Option<&mut TaskSet<u32>> {
        Some(&mut self.disks[place.disk?].tasks)
    }
}

fn place_of(targets: &[(u8, View)], number: u8) -> Option<usize> {
    targets
        .binary_search_by_key(&number, |(number, _)| *number)
        .ok()
}
