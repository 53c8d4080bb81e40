//! Tests of memory that the front-end does not share: it is accessed by messages, while registers are answered.

use vfio_user::wire::{self, DmaAccess, Header, command};

use crate::assemble::{DATA_IN, MSG_IN, Program, STATUS, When};
use crate::machine::*;
use test_support::vfio_user::Message;

const FAR: u32 = 0x4000_0000;
const BYTES: usize = 0x1_0000;

/// Answers what the adapter asks for; how often it asked.
fn serve(machine: &mut Machine, far: &mut [u8]) -> usize {
    let mut asked = 0;
    loop {
        machine.rig.turn();
        machine.submit();
        while !machine.disks.waiting.is_empty() {
            machine.complete(0);
        }
        let Some(message) = machine.rig.receive() else {
            return asked;
        };
        asked += 1;
        let dma = DmaAccess::decode(&message.payload).unwrap();
        let at = usize::try_from(dma.address - u64::from(FAR)).unwrap();
        let range = at..at + usize::try_from(dma.count).unwrap();
        let mut payload = message.payload[..DmaAccess::BYTES].to_vec();
        match message.header.command {
            command::DMA_READ => payload.extend_from_slice(&far[range]),
            command::DMA_WRITE => {
                far[range].copy_from_slice(&message.payload[DmaAccess::BYTES..]);
            }
            other => panic!("command {other}"),
        }
        // Registers are answered before.
        assert_eq!(machine.read8(ISTAT1), 0x02);
        let header = Header {
            flags: wire::TYPE_REPLY,
            size: Header::SIZE + payload.len() as u32,
            ..message.header
        };
        let reply = Message { header, payload };
        assert!(machine.rig.send(&reply.bytes(), &[]));
    }
}

#[test]
fn programs_and_data_in_memory_that_is_not_shared() {
    let mut machine = Machine::new();
    machine.rig.map(FAR.into(), BYTES as u64, None).unwrap();
    let mut far = vec![0; BYTES];
    // INQUIRY, polled as firmware does it.
    far[0x1000] = 0x80;
    far[0x1010..0x1016].copy_from_slice(&[0x12, 0, 0, 0, 36, 0]);
    let mut program = Program::at(FAR);
    program
        .command(0, (1, FAR + 0x1000), (6, FAR + 0x1010))
        .move_direct(DATA_IN, 36, FAR + 0x2000)
        .move_direct(STATUS, 1, FAR + 0x1020)
        .move_direct(MSG_IN, 1, FAR + 0x1021)
        .wait_disconnect()
        .int(When::Always, 99);
    let bytes = program.bytes();
    far[..bytes.len()].copy_from_slice(&bytes);
    far[0x1020..0x1022].fill(0xff);
    machine.rig.post(1, DSP.into(), &FAR.to_le_bytes());
    assert!(serve(&mut machine, &mut far) > 10);
    assert_eq!(machine.read32(DSPS), 99);
    assert_eq!(far[0x1020..0x1022], [0, 0]);
    assert_eq!(&far[0x2008..0x2010], b"BLKPLANE");
}
