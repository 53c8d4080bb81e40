//! The tracepoints that a tool finds in the program are those of `docs/tracing.md`.

#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;

const DOCUMENT: &str = include_str!("../../../../docs/tracing.md");

/// Section types and flags of ELF.
const SHT_PROGBITS: u32 = 1;
const SHF_WRITE_ALLOC: u64 = 3;

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(word)
}

fn place<const N: usize>(bytes: &[u8], at: usize) -> usize {
    usize::try_from(number::<N>(bytes, at)).unwrap()
}

/// A string that ends with a zero byte.
fn string(bytes: &[u8], at: usize) -> String {
    let bytes = &bytes[at..];
    let len = bytes.iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8(bytes[..len].to_vec()).unwrap()
}

struct Section<'a> {
    kind: u32,
    flags: u64,
    address: u64,
    size: u64,
    contents: &'a [u8],
}

impl Section<'_> {
    fn holds(&self, address: u64) -> bool {
        (self.address..self.address + self.size).contains(&address)
    }
}

/// The sections of an ELF file, by name.
fn sections(file: &[u8]) -> BTreeMap<String, Section<'_>> {
    let (table, size, count) = (
        place::<8>(file, 0x28),
        place::<2>(file, 0x3a),
        place::<2>(file, 0x3c),
    );
    let header = |index: usize| &file[table + index * size..][..size];
    let names = place::<8>(header(place::<2>(file, 0x3e)), 0x18);
    (0..count)
        .map(|index| {
            let header = header(index);
            let kind = u32::try_from(number::<4>(header, 4)).unwrap();
            let contents = match kind {
                SHT_PROGBITS | 7 => &file[place::<8>(header, 0x18)..][..place::<8>(header, 0x20)],
                _ => &[],
            };
            let section = Section {
                kind,
                flags: number::<8>(header, 8),
                address: number::<8>(header, 0x10),
                size: number::<8>(header, 0x20),
                contents,
            };
            (string(file, names + place::<4>(header, 0)), section)
        })
        .collect()
}

/// A probe as its note describes it.
#[derive(Debug)]
struct Note {
    provider: String,
    name: String,
    arguments: String,
    address: u64,
    base: u64,
    semaphore: u64,
}

/// The notes of a section `.note.stapsdt`.
fn notes(mut bytes: &[u8]) -> Vec<Note> {
    let mut notes = Vec::new();
    while !bytes.is_empty() {
        let (name_len, len) = (place::<4>(bytes, 0), place::<4>(bytes, 4));
        assert_eq!(
            (number::<4>(bytes, 8), string(bytes, 12)),
            (3, "stapsdt".to_owned())
        );
        let begin = 12 + name_len.next_multiple_of(4);
        let note = &bytes[begin..begin + len];
        let provider = string(note, 24);
        let name = string(note, 24 + provider.len() + 1);
        let arguments = string(note, 24 + provider.len() + name.len() + 2);
        notes.push(Note {
            provider,
            name,
            arguments,
            address: number::<8>(note, 0),
            base: number::<8>(note, 8),
            semaphore: number::<8>(note, 16),
        });
        bytes = &bytes[begin + len.next_multiple_of(4)..];
    }
    notes
}

/// The probes of the document's table: the name, and of each argument whether it may be negative.
fn documented() -> BTreeMap<String, Vec<bool>> {
    let rows = DOCUMENT
        .lines()
        .skip_while(|line| !line.starts_with("| probe |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let arguments = cells[2].split(", ");
        let name = cells[1].trim_matches('`').to_owned();
        (name, arguments.map(|text| text.contains('±')).collect())
    })
    .collect()
}

#[test]
fn a_tracer_finds_the_probes_that_are_documented_with_their_arguments() {
    let file = std::fs::read(env!("CARGO_BIN_EXE_blockplane")).unwrap();
    let sections = sections(&file);
    let notes = notes(sections[".note.stapsdt"].contents);

    let found: BTreeMap<_, Vec<bool>> = notes
        .iter()
        .map(|note| {
            let arguments = note.arguments.split(' ');
            let signs = arguments.map(|argument| match argument.split_once('@') {
                Some(("8", register)) if register.starts_with("%r") => false,
                Some(("-8", register)) if register.starts_with("%r") => true,
                _ => panic!("{note:?}"),
            });
            (note.name.clone(), signs.collect())
        })
        .collect();
    assert_eq!(found, documented());
    assert_eq!(found.len(), notes.len(), "each has one place: {notes:#?}");

    let (text, semaphores) = (&sections[".text"], &sections[".probes"]);
    // The kernel finds a semaphore by its place in the file.
    assert_eq!(
        (semaphores.kind, semaphores.flags),
        (SHT_PROGBITS, SHF_WRITE_ALLOC)
    );
    for note in &notes {
        assert_eq!(note.provider, "blockplane");
        assert!(semaphores.holds(note.semaphore), "{note:?}");
        assert_eq!(note.base, sections[".stapsdt.base"].address);
        let nop = usize::try_from(note.address - text.address).unwrap();
        assert_eq!(text.contents[nop], 0x90, "{note:?}");
    }
    let mut distinct: Vec<_> = notes.iter().map(|note| note.semaphore).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(
        distinct.len(),
        notes.len(),
        "each is switched on by its own tracers only"
    );
}
