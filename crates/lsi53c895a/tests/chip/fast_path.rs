//! A program in the chip's own memory, which uses the fast path, has the same effects as one in guest memory, wherever its runs end.

use lsi53c895a::chip::{Bar, BarAddresses};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::assemble::Program;
use crate::machine::*;

/// Where the program stands, and its words at most.
const BASE: u32 = 0x4000;
const WORDS: u32 = 200;
/// Where its data is.
const DATA: u32 = 0x1000;
const DATA_BYTES: u32 = 0x100;
/// The registers from CTEST0 on; one of them shows where the chip's memory is.
const NOT_WRITTEN: std::ops::Range<u32> = 0x18..0x1c;

fn register() -> impl Strategy<Value = u32> {
    // SFBR, DSA, TEMP, SCRATCHA and SCRATCHC; and DCNTL, SCNTL2 and SFS, which change how programs go on.
    let often = prop::sample::select(vec![0x08u32, 0x10, 0x1c, 0x34, 0x60, 0x3b, 0x02, 0xa8]);
    let any_of = prop_oneof![3 => often, 1 => 0..0x100u32];
    any_of.prop_filter("not where the memory is", |at| !NOT_WRITTEN.contains(at))
}

fn place() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => (0..DATA_BYTES / 4).prop_map(|word| DATA + 4 * word),
        1 => (0..DATA_BYTES).prop_map(|byte| DATA + byte),
        1 => (0..WORDS).prop_map(|word| BASE + 4 * word),
    ]
}

/// The words of any instruction, whether the fast path executes it or not.
fn instruction() -> impl Strategy<Value = Vec<u32>> {
    let to = (0..WORDS).prop_map(|word| BASE + 4 * word);
    let near = (0..16u32).prop_map(|words| 4 * words);
    prop_oneof![
        4 => (5..8u32, 0..8u32, register(), any::<u8>(), any::<bool>()).prop_map(|(o, f, r, data, sfbr)| {
            let with_sfbr = u32::from(sfbr) << 23;
            vec![0x4000_0000 | o << 27 | f << 24 | with_sfbr | (r & 0x7f) << 16 | u32::from(data) << 8 | r & 0x80, 0]
        }),
        4 => (0..4u32, 0..8u32, 0..0x40u32, 0..4u32, to.clone()).prop_map(|(o, p, bits, data, a)| {
            vec![0x8000_0000 | o << 27 | p << 24 | bits << 16 | 0xf000 | data, a]
        }),
        2 => (0..2u32, 0..8u32, 0..0x40u32, near).prop_map(|(o, p, bits, a)| {
            vec![0x8080_0000 | o << 27 | p << 24 | bits << 16, a]
        }),
        6 => (0..2u32, register(), prop_oneof![3 => Just(4u32), 1 => 0..6u32], place())
            .prop_map(|(load, r, n, a)| vec![0xe000_0000 | load << 24 | r << 16 | n, a]),
        2 => (0..2u32, register(), 0..DATA_BYTES / 4)
            .prop_map(|(load, r, word)| vec![0xf000_0000 | load << 24 | (r & 0xfc) << 16 | 4, 4 * word]),
        2 => (0..5u32, 0..8u32, any::<u32>(), to)
            .prop_map(|(o, t, w, a)| vec![0x4000_0000 | o << 27 | t << 16 | w & 0x0100_0648, a]),
        3 => (0..8u32, 1..5u32, 0..DATA_BYTES)
            .prop_map(|(p, n, a)| vec![p << 24 | n, DATA + a]),
        1 => (1..16u32, 0..DATA_BYTES / 4, 0..DATA_BYTES / 4)
            .prop_map(|(n, a, b)| vec![0xc000_0000 | n, DATA + 4 * a, DATA + 4 * b]),
        1 => Just(vec![0]),
    ]
}

/// A command that gets somewhere.
fn opening(target: u32) -> Vec<u32> {
    let mut p = Program::at(0);
    p.select(target)
        .move_direct(6, 3, DATA)
        .move_direct(2, 6, DATA + 8);
    p.words.clone()
}

/// A machine with the program in guest memory, or with the chip's own memory in that place.
fn machine(in_ram: bool, bytes: &[u8], data: &[u8]) -> Machine {
    let mut machine = Machine::new();
    machine.chip.set_bars(BarAddresses {
        ram: if in_ram { BASE } else { 0 },
        ..BARS
    });
    match in_ram {
        true => machine.chip.write_window(Bar::Ram, 0, bytes),
        false => machine.poke(BASE, bytes),
    }
    machine.poke(DATA, data);
    machine.write32(DSA, DATA);
    machine.write32(DSP, BASE);
    machine
}

/// All that can be seen of it. (Reading registers changes some, the same ones in both.)
fn seen(machine: &mut Machine, in_ram: bool) -> (Vec<u8>, Vec<u8>, Vec<u8>, bool) {
    let registers = machine.read(0, 0, 0x100);
    let program = match in_ram {
        true => machine.read(2, 0, 0x2000),
        false => machine.peek(BASE, 0x2000),
    };
    let memory = machine.peek(0, BASE as usize);
    (registers, memory, program, machine.irq_level())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_program_does_the_same_in_either_memory(
        program in vec(prop_oneof![6 => instruction(), 1 => (0..7u32).prop_map(opening)], 1..50),
        data in vec(prop_oneof![(0..DATA_BYTES / 4).prop_map(|word| DATA + 4 * word), any::<u32>()], DATA_BYTES as usize / 4),
        tag in any::<u8>(),
        limits in vec(1..100u32, 1..12),
    ) {
        let bytes: Vec<u8> = program.concat().iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut data: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).collect();
        data[..3].copy_from_slice(&[0xc0, 0x20, tag]);
        data[8..14].fill(0);
        let mut both = [false, true].map(|in_ram| machine(in_ram, &bytes, &data));
        for limit in limits {
            let runs = both.each_mut().map(|machine| {
                machine.limit = limit;
                let run = machine.run();
                let memory = machine.answer_memory(true);
                let first = machine.world.running.first().copied();
                if let Some(id) = first {
                    machine.finish_quietly(id, GOOD);
                }
                machine.now_ns += 100_000;
                (run, memory, first, machine.chip.wants_run())
            });
            prop_assert_eq!(&runs[0], &runs[1]);
            let [there, here] = &mut both;
            prop_assert_eq!(seen(there, false), seen(here, true));
        }
    }
}
