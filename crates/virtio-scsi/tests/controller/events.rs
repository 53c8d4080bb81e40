//! Units that come, go, and change.

use virtio_scsi::{AdmitError, AdmitMemoryAndTime, RequestError};
use virtqueue::testing::Buffer;

use crate::harness::{BLOCK, BLOCKS, DISKS, Rig, UNANSWERED, at, unit};

const MISSED: u32 = 1 << 31;

impl Rig {
    fn add_event_buffer(&mut self, len: u32) -> u64 {
        let buffer = self.memory.alloc_bytes(&[UNANSWERED; 16]);
        self.event_driver.add(&[Buffer::writable(buffer, len)]);
        self.event_driver.publish();
        buffer
    }

    fn tell_events(&mut self) -> Result<(), AdmitError> {
        let memory = &self.memory.guest_memory();
        let batch = AdmitMemoryAndTime { memory, now: 0 };
        let (ring, chain) = (&mut self.event_ring, &mut self.chain);
        self.events
            .report_pending_events(ring, batch, chain)
            .map(|_| ())
    }

    /// Event, address, reason.
    fn event(&self, at: u64) -> (u32, [u8; 8], u32) {
        let bytes = self.memory.read(at, 16);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (word(0), bytes[4..12].try_into().unwrap(), word(12))
    }
}

#[test]
fn added_removed_and_resized_units_are_reported() {
    let mut rig = Rig::new();
    let buffers: Vec<u64> = (0..4).map(|_| rig.add_event_buffer(16)).collect();
    rig.tell_events().unwrap();
    assert!(!rig.events.take_has_unpublished(), "nothing has happened");
    assert!(!rig.events.has_events_to_report());
    rig.device
        .add_unit_and_report(at(5, 1), unit("new"))
        .unwrap();
    rig.device.remove_unit_and_report(DISKS[1]).unwrap();
    assert!(
        rig.device
            .resize_unit(DISKS[2], (BLOCKS * BLOCK * 2) as u64)
    );
    assert!(
        !rig.device
            .resize_unit(DISKS[2], (BLOCKS * BLOCK * 2) as u64),
        "it has that size"
    );
    assert_eq!(rig.event_mail.take().len(), 3, "the queue is notified");
    assert!(rig.events.has_events_to_report());
    rig.tell_events().unwrap();
    assert!(rig.events.take_has_unpublished());
    assert_eq!(rig.event(buffers[0]), (1, [1, 5, 0, 1, 0, 0, 0, 0], 1));
    assert_eq!(rig.event(buffers[1]), (1, [1, 0, 0, 1, 0, 0, 0, 0], 2));
    assert_eq!(
        rig.event(buffers[2]),
        (3, [1, 3, 0x41, 44, 0, 0, 0, 0], 0x092a)
    );
    assert_eq!(rig.byte(buffers[3]), UNANSWERED);
    // Commands to the unit report it as well.
    let (answer, _) = rig.command(DISKS[2], &[0; 6], &[], 0);
    assert_eq!(answer.sense, Some((6, 0x2a09)));
    let (answer, _) = rig.command(DISKS[0], &[0; 6], &[], 0);
    assert_eq!(answer.sense, Some((6, 0x3f0e)));
}

#[test]
fn events_wait_for_buffers_and_too_many_are_missed() {
    let mut rig = Rig::new();
    for lun in 0..70 {
        rig.device
            .add_unit_and_report(at(6, lun), unit("many"))
            .unwrap();
    }
    rig.tell_events().unwrap();
    let buffers: Vec<u64> = (0..16).map(|_| rig.add_event_buffer(16)).collect();
    rig.tell_events().unwrap();
    assert_eq!(
        rig.event(buffers[0]),
        (1 | MISSED, [1, 6, 0, 0, 0, 0, 0, 0], 1),
        "said once"
    );
    assert_eq!(rig.event(buffers[1]).0, 1);
    assert!(rig.events.has_events_to_report());
    rig.device.reset_with_units();
    assert!(
        !rig.events.has_events_to_report(),
        "a new driver looks by itself"
    );
}

#[test]
fn a_driver_without_the_features_gets_no_events() {
    let mut rig = Rig::new();
    rig.device.set_features(0);
    let buffer = rig.add_event_buffer(16);
    rig.device
        .add_unit_and_report(at(6, 0), unit("new"))
        .unwrap();
    rig.tell_events().unwrap();
    assert_eq!(rig.byte(buffer), UNANSWERED);
}

#[test]
fn a_buffer_without_room_breaks_the_event_queue() {
    let mut rig = Rig::new();
    rig.add_event_buffer(15);
    rig.device
        .add_unit_and_report(at(6, 0), unit("new"))
        .unwrap();
    assert_eq!(
        rig.tell_events(),
        Err(AdmitError::Request(RequestError::ShortEvent(15)))
    );
}
