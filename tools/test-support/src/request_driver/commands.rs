//! SCSI commands, task management functions and events of that driver.

use virtqueue::testing::Buffer;

use super::{BLOCK, COMMAND_BYTES, NO_STATUS, RESPONSE_BYTES, RequestDriver};
use crate::vhost_user::wire::{u32_at, u32s};

/// Where the status is in a response, and sense data.
const SCSI_STATUS: usize = 10;
const SCSI_SENSE: usize = 12;
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;

/// What a SCSI command moves.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Nothing.
    None,
    /// To the device.
    Out(&'a [u8]),
    /// So many bytes from it.
    In(usize),
}

/// What it answers.
#[derive(Debug)]
pub struct Answer {
    /// The status of SAM.
    pub status: u8,
    /// Sense data.
    pub sense: Vec<u8>,
    /// What came from the device.
    pub data: Vec<u8>,
}

impl RequestDriver {
    /// A SCSI command from the first to the last, and its status. Reads and writes have one block.
    #[track_caller]
    pub fn command(&mut self, index: u32, unit: (u8, u8), cdb: &[u8]) -> u8 {
        let data = match cdb[0] {
            WRITE_10 => Data::Out(&[0; BLOCK]),
            READ_10 => Data::In(BLOCK),
            _ => Data::None,
        };
        self.carry_out(index, unit, cdb, data).status
    }

    /// The same with any data, and all that is answered.
    #[track_caller]
    pub fn carry_out(&mut self, index: u32, unit: (u8, u8), cdb: &[u8], data: Data<'_>) -> Answer {
        self.begin(index, unit, cdb, data);
        self.watch(index, 0);
        let slot = self.queues[index as usize].slots[0];
        let answer = self.memory.read(slot.status, RESPONSE_BYTES as usize);
        let sense_bytes = u32_at(&answer, 0) as usize;
        Answer {
            status: answer[SCSI_STATUS],
            sense: answer[SCSI_SENSE..][..sense_bytes].to_vec(),
            data: match data {
                Data::In(len) => self.memory.read(slot.data, len),
                _ => Vec::new(),
            },
        }
    }

    /// Makes a SCSI command available.
    pub fn begin(&mut self, index: u32, (target, lun): (u8, u8), cdb: &[u8], data: Data<'_>) {
        let queue = &mut self.queues[index as usize];
        let slot = queue.slots[0];
        let mut request = vec![1, target, 0x40, lun];
        request.resize(19, 0);
        request.extend(cdb);
        request.resize(COMMAND_BYTES, 0);
        self.memory.write(slot.header, &request);
        let len = |len| u32::try_from(len).unwrap();
        let mut buffers = vec![Buffer::readable(slot.header, len(COMMAND_BYTES))];
        if let Data::Out(bytes) = data {
            self.memory.write(slot.data, bytes);
            buffers.push(Buffer::readable(slot.data, len(bytes.len())));
        }
        buffers.push(Buffer::writable(slot.status, RESPONSE_BYTES));
        if let Data::In(wanted) = data {
            self.memory.fill(slot.data, wanted, 0);
            buffers.push(Buffer::writable(slot.data, len(wanted)));
        }
        queue.asked[0] = Some(queue.virtqueue.ring.add(&buffers));
        self.submit(index);
    }

    /// Asks a controller for a task management function; its answer is the [status](Self::status).
    pub fn manage(&mut self, subtype: u32, (target, lun): (u8, u8)) {
        let queue = &mut self.queues[0];
        let slot = queue.slots[0];
        let address = [1, target, 0x40, lun, 0, 0, 0, 0];
        let request = [&u32s(&[0, subtype])[..], &address, &[0; 8]].concat();
        self.memory.write(slot.header, &request);
        self.memory.write(slot.status, &[NO_STATUS]);
        queue.asked[0] = Some(queue.virtqueue.ring.add(&[
            Buffer::readable(slot.header, 24),
            Buffer::writable(slot.status, 1),
        ]));
        self.submit(0);
    }

    /// What a controller has to tell: event, target, unit and reason.
    #[track_caller]
    pub fn event(&mut self) -> (u32, u8, u8, u32) {
        let queue = &mut self.queues[1];
        let slot = queue.slots[0];
        queue.asked[0] = Some(queue.virtqueue.ring.add(&[Buffer::writable(slot.data, 16)]));
        self.submit(1);
        self.watch(1, 0);
        let event = self.memory.read(slot.data, 16);
        (u32_at(&event, 0), event[5], event[7], u32_at(&event, 12))
    }
}
