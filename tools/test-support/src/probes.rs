//! The program's tracepoints, as a tool finds them in its file.

use std::collections::BTreeMap;

/// A section that holds what the program defines (ELF).
pub const SHT_PROGBITS: u32 = 1;
/// Writable, and in memory.
pub const SHF_WRITE_ALLOC: u64 = 3;

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

/// A section of an ELF file.
#[derive(Debug)]
pub struct Section<'a> {
    /// Its type.
    pub kind: u32,
    /// Its flags.
    pub flags: u64,
    /// Where it is in memory.
    pub address: u64,
    size: u64,
    offset: u64,
    /// What it holds, of those types that are read here.
    pub contents: &'a [u8],
}

impl Section<'_> {
    /// Whether an address is inside of it.
    #[must_use]
    pub fn holds(&self, address: u64) -> bool {
        (self.address..self.address + self.size).contains(&address)
    }

    /// Where in the file this address is.
    #[must_use]
    pub fn place(&self, address: u64) -> u64 {
        address - self.address + self.offset
    }
}

/// The sections of an ELF file, by name.
#[must_use]
pub fn sections(file: &[u8]) -> BTreeMap<String, Section<'_>> {
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
                offset: number::<8>(header, 0x18),
                contents,
            };
            (string(file, names + place::<4>(header, 0)), section)
        })
        .collect()
}

/// A probe as its note describes it.
#[derive(Debug)]
pub struct Note {
    /// Who has it.
    pub provider: String,
    /// Its name.
    pub name: String,
    /// Where its arguments are: `SIZE@%REGISTER`, separated by blanks.
    pub arguments: String,
    /// Where it is in the code.
    pub address: u64,
    /// Where `.stapsdt.base` was when it was linked.
    pub base: u64,
    /// Its counter of tracers.
    pub semaphore: u64,
}

/// The notes of a section `.note.stapsdt`.
#[must_use]
pub fn notes(mut bytes: &[u8]) -> Vec<Note> {
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
