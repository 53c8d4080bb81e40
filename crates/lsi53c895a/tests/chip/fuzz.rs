//! Anything a guest may write, in any order: the chip never panics, always comes back, and loses no task.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::assemble::Program;
use crate::machine::*;

#[derive(Clone, Debug)]
enum Event {
    Write { register: u8, value: u8 },
    Read { register: u8 },
    Start { word: u16 },
    Run,
    AnswerMemory,
    Finish { which: usize },
}

/// Any event that a guest, its memory or a disk causes.
fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (any::<u8>(), any::<u8>()).prop_map(|(register, value)| Event::Write { register, value }),
        1 => any::<u8>().prop_map(|register| Event::Read { register }),
        2 => (0..256u16).prop_map(|word| Event::Start { word }),
        3 => Just(Event::Run),
        2 => Just(Event::AnswerMemory),
        2 => (0..8usize).prop_map(|which| Event::Finish { which }),
    ]
}

/// Addresses where something is.
fn address() -> impl Strategy<Value = u32> {
    prop_oneof![
        (0..0x1_0000u32).prop_map(|a| a & !3),
        (0..0x400u32).prop_map(|a| BARS.registers + a),
        (0..0x2000u32).prop_map(|a| BARS.ram + a),
        (0..0x1_0000u32).prop_map(|a| u32::try_from(FAR).unwrap() + a),
        any::<u32>(),
    ]
}

/// Instructions that mostly mean something.
fn instruction() -> impl Strategy<Value = Vec<u32>> {
    let phase = 0..8u32;
    prop_oneof![
        4 => (phase.clone(), 0..4u32, 1..2000u32, address()).prop_map(|(p, how, n, a)| vec![how << 28 | p << 24 | n, a]),
        3 => (0..5u32, 0..8u32, any::<u32>(), address())
            .prop_map(|(o, f, w, a)| vec![0x4000_0000 | o << 27 | f << 24 | w & 0x000f_0748, a]),
        2 => (5..8u32, 0..8u32, any::<u32>()).prop_map(|(o, f, w)| vec![0x4000_0000 | o << 27 | f << 24 | w & 0x00ff_ff80, 0]),
        3 => (0..3u32, phase, any::<u32>(), address()).prop_map(|(o, p, w, a)| vec![0x8000_0000 | o << 27 | p << 24 | w & 0x00bf_ffff, a]),
        1 => (1..5000u32, address(), address()).prop_map(|(n, a, b)| vec![0xc000_0000 | n, a, b]),
        1 => (0..2u32, 0..2u32, any::<u8>(), 1..5u32, address())
            .prop_map(|(d, l, r, n, a)| vec![0xe000_0000 | d << 28 | l << 24 | u32::from(r) << 16 | n, a]),
        1 => any::<[u32; 2]>().prop_map(|words| words.to_vec()),
    ]
}

/// A command that gets somewhere, so that what follows meets a target in some phase.
fn opening(target: u32) -> Vec<u32> {
    let mut p = Program::at(0);
    p.select(target & 7)
        .move_direct(6, 3, 0xf000)
        .move_direct(2, 10, 0xf010);
    p.words.clone()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_breaks_the_chip(
        program in vec(prop_oneof![3 => instruction(), 1 => (0..8u32).prop_map(opening)], 1..60),
        message in vec(any::<u8>(), 3),
        opcode in prop_oneof![Just(0x28u8), Just(0x2a), Just(0x12), Just(0x35), any::<u8>()],
        far in any::<bool>(),
        holds_on in any::<bool>(),
        enabled in any::<[u8; 3]>(),
        events in vec(event(), 1..80),
    ) {
        let mut machine = Machine::new();
        machine.limit = 200;
        machine.world.holds_on = holds_on;
        let bytes: Vec<u8> = program.concat().iter().flat_map(|word| word.to_le_bytes()).collect();
        machine.poke(0, &bytes);
        machine.poke(BARS.ram, &bytes);
        machine.world.far[..bytes.len()].copy_from_slice(&bytes);
        machine.poke(0xf000, &[0xc0, 0x20, 1]);
        machine.poke(0xf003, &message);
        machine.poke(0xf010, &[opcode, 0, 0, 0, 0, 1, 0, 0, 4, 0]);
        for (register, value) in [SIEN0, SIEN1, DIEN].into_iter().zip(enabled) {
            machine.write8(register, value);
        }
        machine.write8(SCID, 0x47);
        machine.write32(DSP, if far { u32::try_from(FAR).unwrap() } else { 0 });
        for event in events {
            match event {
                Event::Write { register, value } => machine.write8(register, value),
                Event::Read { register } => { machine.read8(register); }
                Event::Start { word } => machine.write32(DSP, 4 * u32::from(word)),
                Event::Run => { machine.run(); }
                Event::AnswerMemory => { machine.answer_memory(); }
                Event::Finish { which } => {
                    if let Some(id) = machine.world.running.get(which).copied() {
                        machine.finish_quietly(id);
                    }
                }
            }
            machine.now_ns += 100_000;
        }
        // What is in flight is what the disk has; after a reset and the disk's last word nothing is.
        prop_assert_eq!(machine.chip.in_flight_task_count(), machine.world.running.len());
        machine.chip.reset_and_clear_ram();
        machine.run();
        while let Some(id) = machine.world.running.first().copied() {
            machine.finish_quietly(id);
        }
        prop_assert_eq!(machine.chip.in_flight_task_count(), 0);
        prop_assert!(!machine.chip.irq_level());
    }
}
