//! Tracepoints in the program match `docs/tracing.md`.

#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;

use test_support::probes::{SHF_WRITE_ALLOC, SHT_PROGBITS, notes, sections};
use test_support::process::program;

const DOCUMENT: &str = include_str!("../../../../docs/tracing.md");

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
fn documented_probes_exist_with_their_arguments() {
    let file = std::fs::read(program()).unwrap();
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
