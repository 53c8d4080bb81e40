//! Requests that a driver puts into the rings.

use super::{DISKS, Rig, at};
use crate::driver::Buffer;
use crate::guest::{address, length};
use crate::input::Input;
use crate::scsi_disk::cdb;

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
        let header_len = if input.below(16) == 0 {
            length(input)
        } else {
            19 + 32
        };
        let response_len = if input.below(16) == 0 {
            length(input)
        } else {
            12 + 96
        };
        let mut list = vec![(header, header_len, false)];
        let (count, reads) = (input.below(4), input.flag());
        let data: Vec<_> = (0..count)
            .map(|_| (address(input), length(input), reads))
            .collect();
        if !reads {
            list.extend(&data);
        }
        list.push((header + 0x2000, response_len, true));
        if reads {
            list.extend(&data);
        }
        let list: Vec<_> = list
            .into_iter()
            .map(|(addr, len, writable)| Buffer {
                addr,
                len,
                writable,
            })
            .collect();
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
        let len = if input.below(16) == 0 {
            length(input)
        } else {
            24
        };
        let answer = Buffer {
            addr: request + 40,
            len: 5,
            writable: true,
        };
        let request = Buffer {
            addr: request,
            len,
            writable: false,
        };
        self.rings[1]
            .driver
            .add(&self.memory, &[request, answer], false);
    }
}
