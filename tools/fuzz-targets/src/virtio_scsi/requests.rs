//! Requests that a driver puts into the rings.

use super::{DISKS, Rig, at};
use crate::driver::Buffer;
use crate::guest::{address, length};
use crate::input::Input;
use crate::scsi_disk::cdb;

/// This length, and now and then another.
fn usually(len: u32, input: &mut Input) -> u32 {
    match input.below(16) {
        0 => length(input),
        _ => len,
    }
}

impl Rig {
    fn lun(input: &mut Input) -> [u8; 8] {
        match input.below(8) {
            0 => input.array(),
            1 => at(input.byte(), u16::from(input.byte())).encode(),
            which => DISKS[which % 3].encode(),
        }
    }

    /// A command that mostly means something.
    pub(super) fn command(&mut self, input: &mut Input) {
        let header = 0x1_3000 + 128 * u64::from(input.byte() & 0x3f);
        self.tag += 1;
        let mut bytes = Rig::lun(input).to_vec();
        bytes.extend(self.tag.to_le_bytes());
        bytes.extend([input.byte() % 5, 0, 0]);
        bytes.extend(cdb(input));
        bytes.resize(19 + 32, 0);
        self.memory.write(header, &bytes);
        let header_len = usually(19 + 32, input);
        let response_len = usually(12 + 96, input);
        let mut list = vec![Buffer::readable(header, header_len)];
        let (count, writable) = (input.below(4), input.flag());
        let mut data = |_| Buffer {
            addr: address(input),
            len: length(input),
            writable,
        };
        let data: Vec<_> = (0..count).map(&mut data).collect();
        let response = Buffer::writable(header + 0x2000, response_len);
        if writable {
            list.push(response);
            list.extend(data);
        } else {
            list.extend(data);
            list.push(response);
        }
        let indirect = input.flag();
        self.rings[0].driver.add(&self.memory, &list, indirect);
    }

    /// A task management function, or another request of the control queue.
    pub(super) fn function(&mut self, input: &mut Input) {
        let request = 0x1_7000 + 64 * u64::from(input.byte() & 0x1f);
        let kind = if input.below(8) == 0 { input.u32() } else { 0 };
        let mut bytes = kind.to_le_bytes().to_vec();
        if kind == 0 {
            bytes.extend(u32::from(input.byte() % 9).to_le_bytes());
        }
        bytes.extend(Rig::lun(input));
        bytes.extend(
            self.tag
                .wrapping_sub(u64::from(input.byte() % 4))
                .to_le_bytes(),
        );
        self.memory.write(request, &bytes);
        let len = usually(24, input);
        let answer = Buffer::writable(request + 40, 5);
        let request = Buffer::readable(request, len);
        self.rings[1]
            .driver
            .add(&self.memory, &[request, answer], false);
    }
}
