//! Registers without side effects. Programs store addresses in them, and half of all instructions read or
//! write one, so they are accessed like memory.

use crate::chip::registers::*;

/// Whether reading a register has a side effect, or returns another value than was written (see `access.rs`). This includes
/// registers that show the present instruction, which are not up to date during the fast path.
const fn has_read_effect(at: u8) -> bool {
    matches!(
        at,
        SCNTL1
            | GPREG
            | SOCL
            | SBCL
            | DSTAT
            | SSTAT0
            | SSTAT2
            | ISTAT0
            | ISTAT1
            | CTEST0..=CTEST2
            | DFIFO
            | CTEST5
            | CTEST6
            | DBC..DMODE
            | SIST0
            | SIST1
            | STEST0
            | STEST4
            | SBDL
            | SCRATCHB..SCRATCHC
            | DFBC
    )
}

/// Whether writing a register has a side effect, or stores another value than is written. This includes the upper half of programs'
/// addresses, which the fast path ignores.
const fn has_write_effect(at: u8) -> bool {
    matches!(
        at,
        SCNTL0..=SCNTL2
            | SSID
            | SBCL
            | DSTAT
            | SSTAT0..=SSTAT2
            | ISTAT0
            | ISTAT1
            | CTEST0..=CTEST3
            | DFIFO
            | CTEST6
            | DBC..SCRATCHA
            | DCNTL
            | SIST0
            | SIST1
            | STIME1
            | STEST0
            | STEST3
            | SIDL
            | STEST4
            | SBDL
            | SFS..DRS
            | SBC..
    )
}

// Properties of registers.
const READ: u8 = 1;
const WRITTEN: u8 = 2;
/// The same for all four bytes of a word that begins here.
const WORDS: u32 = 2;

const fn kinds() -> [u8; COUNT] {
    let mut kinds = [0; COUNT];
    let mut at = u8::MAX;
    loop {
        let read = if has_read_effect(at) { 0 } else { READ };
        let written = if has_write_effect(at) { 0 } else { WRITTEN };
        let index = at as usize;
        kinds[index] = read | written;
        if at.is_multiple_of(4) {
            let all = kinds[index] & kinds[index + 1] & kinds[index + 2] & kinds[index + 3];
            kinds[index] |= (all & (READ | WRITTEN)) << WORDS;
        }
        if at == 0 {
            return kinds;
        }
        at -= 1;
    }
}

static KINDS: [u8; COUNT] = kinds();

fn is(at: u8, kind: u8) -> bool {
    KINDS[usize::from(at)] & kind != 0
}

/// Whether reading this register returns its byte.
#[inline]
pub fn is_read(at: u8) -> bool {
    is(at, READ)
}

/// Whether writing this register stores a byte.
#[inline]
pub fn is_written(at: u8) -> bool {
    is(at, WRITTEN)
}

/// The same for the word that begins at this multiple of four.
#[inline]
pub fn is_word_read(at: u8) -> bool {
    is(at, READ << WORDS)
}

/// And for writing it.
#[inline]
pub fn is_word_written(at: u8) -> bool {
    is(at, WRITTEN << WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::Chip;

    #[test]
    fn plain_registers_store_bytes_without_side_effects() {
        for at in 0..=u8::MAX {
            let mut chip = Chip::new();
            for other in 0..=u8::MAX {
                chip.regs.set(other, 0x5a ^ other);
            }
            if is_read(at) {
                assert_eq!(chip.read_special(at), 0x5a ^ at, "{at:#x}");
            }
            if is_written(at) {
                let irq = chip.irq_level();
                chip.write_special(at, at);
                assert_eq!(chip.regs.get(at), at, "{at:#x}");
                assert_eq!(
                    (chip.irq_level(), chip.wants_run()),
                    (irq, false),
                    "{at:#x}"
                );
            }
            for other in (0..=u8::MAX).filter(|other| !(is_written(at) && *other == at)) {
                assert_eq!(chip.regs.get(other), 0x5a ^ other, "{at:#x}, {other:#x}");
            }
        }
    }

    #[test]
    fn a_word_is_plain_if_its_bytes_are() {
        assert!(is_word_read(DSA) && is_word_written(DSA));
        assert!(!is_word_read(DSP) && !is_word_written(DSP));
        assert!(!is_word_read(ISTAT0) && !is_word_written(ISTAT0));
        assert!(!is_word_read(DSA + 1), "no word begins there");
    }
}
