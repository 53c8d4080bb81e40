//! Reads return what was written, in whatever way.

use proptest::prelude::*;
use scsi::Status;

use crate::rig::{BLOCK, Rig, cdb10, cdb16};

/// A part of the disk that is small enough for commands to meet.
const REACH: u64 = 40;

#[derive(Clone, Debug)]
enum Action {
    Read,
    Write,
    WriteAndVerify,
    WriteSame,
    WriteZeroes,
    Unmap,
    /// With the right old data, or with one bit of it wrong.
    CompareAndWrite(Option<usize>),
    OrWrite,
    Verify(Option<usize>),
}

fn action() -> impl Strategy<Value = Action> {
    let flip = || proptest::option::of(any::<usize>());
    prop_oneof![
        Just(Action::Read),
        Just(Action::Write),
        Just(Action::WriteAndVerify),
        Just(Action::WriteSame),
        Just(Action::WriteZeroes),
        Just(Action::Unmap),
        flip().prop_map(Action::CompareAndWrite),
        Just(Action::OrWrite),
        flip().prop_map(Action::Verify),
    ]
}

fn flipped(bytes: &[u8], flip: Option<usize>) -> (Vec<u8>, bool) {
    let mut bytes = bytes.to_vec();
    match flip {
        Some(at) if !bytes.is_empty() => {
            let at = at % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
            (bytes, false)
        }
        _ => (bytes, true),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn reads_return_what_was_written(
        actions in proptest::collection::vec(
            (action(), 0..REACH, 0..12u32, any::<u8>()), 1..40),
        segment in 1..2000usize,
    ) {
        let mut rig = Rig::plain();
        rig.segment = segment;
        let mut model = vec![0u8; (REACH as usize + 12) * BLOCK];
        for (action, lba, blocks, seed) in actions {
            let len = blocks as usize * BLOCK;
            let at = lba as usize * BLOCK;
            let new: Vec<u8> = (0..len).map(|at| seed ^ (at / 7) as u8).collect();
            let old = model[at..at + len].to_vec();
            match action {
                Action::Read => {
                    prop_assert_eq!(rig.data(&cdb16(0x88, 0, lba, blocks)), old);
                }
                Action::Write => {
                    rig.good(&cdb16(0x8a, 0, lba, blocks), &new);
                    model[at..at + len].copy_from_slice(&new);
                }
                Action::WriteAndVerify => {
                    rig.good(&cdb16(0x8e, 2, lba, blocks), &new);
                    model[at..at + len].copy_from_slice(&new);
                }
                Action::WriteSame if blocks > 0 => {
                    rig.good(&cdb16(0x93, 0, lba, blocks), &new[..BLOCK]);
                    for block in model[at..at + len].chunks_mut(BLOCK) {
                        block.copy_from_slice(&new[..BLOCK]);
                    }
                }
                Action::WriteZeroes if blocks > 0 => {
                    rig.good(&cdb16(0x93, 9, lba, blocks), &[]);
                    model[at..at + len].fill(0);
                }
                Action::Unmap => {
                    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
                    list.extend(lba.to_be_bytes());
                    list.extend(blocks.to_be_bytes());
                    list.extend([0; 4]);
                    rig.good(&cdb10(0x42, 0, 0, 24), &list);
                    model[at..at + len].fill(0xdd);
                }
                Action::CompareAndWrite(flip) => {
                    let (compared, same) = flipped(&old, flip);
                    let mut cdb = cdb16(0x89, 0, lba, 0);
                    cdb[13] = blocks as u8;
                    let reply = rig.send(&cdb, &[compared, new.clone()].concat());
                    prop_assert_eq!(reply.status == Status::Good, same);
                    if same {
                        model[at..at + len].copy_from_slice(&new);
                    } else {
                        prop_assert_eq!(reply.sense_code(), (0xe, 0x1d00));
                    }
                }
                Action::OrWrite => {
                    rig.good(&cdb16(0x8b, 0, lba, blocks), &new);
                    for (to, from) in model[at..].iter_mut().zip(&new) {
                        *to |= from;
                    }
                }
                Action::Verify(flip) => {
                    let (compared, same) = flipped(&old, flip);
                    let reply = rig.send(&cdb16(0x8f, 2, lba, blocks), &compared);
                    prop_assert_eq!(reply.status == Status::Good, same);
                }
                Action::WriteSame | Action::WriteZeroes => {}
            }
        }
        prop_assert!(rig.disk.starts_with(&model));
        prop_assert!(rig.disk[model.len()..].iter().all(|byte| *byte == 0));
    }
}
