//! A table of which registers have side effects when they are read or written; it holds no values. The others are
//! accessed like memory: programs store addresses in them, and half of all instructions read or write one.

use crate::chip::registers::*;

/// Whether reading a register has a side effect, or returns another value than was written (see `register_access.rs`). This
/// includes registers that show the present instruction, which are not up to date during the fast path.
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

/// Whether writing a register has a side effect, or stores another value than is written. This includes the upper half
/// of programs' addresses, which the fast path ignores.
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

// Properties of registers, as bits.
const READ_WITHOUT_EFFECT: u8 = 1;
const WRITE_WITHOUT_EFFECT: u8 = 2;
/// The same for all four bytes of a word that begins here.
const WORD_SHIFT: u32 = 2;

/// Computes [`PROPERTIES`] of all registers from the two functions above.
const fn compute_register_properties() -> [u8; COUNT] {
    let mut properties = [0; COUNT];
    let mut at = u8::MAX;
    loop {
        let read = if has_read_effect(at) {
            0
        } else {
            READ_WITHOUT_EFFECT
        };
        let written = if has_write_effect(at) {
            0
        } else {
            WRITE_WITHOUT_EFFECT
        };
        let index = at as usize;
        properties[index] = read | written;
        if at.is_multiple_of(4) {
            let all = properties[index]
                & properties[index + 1]
                & properties[index + 2]
                & properties[index + 3];
            properties[index] |= (all & (READ_WITHOUT_EFFECT | WRITE_WITHOUT_EFFECT)) << WORD_SHIFT;
        }
        if at == 0 {
            return properties;
        }
        at -= 1;
    }
}

/// The properties of each register, by its offset.
static PROPERTIES: [u8; COUNT] = compute_register_properties();

/// Whether a register has one of the properties in this mask.
fn has_register_property(at: u8, property: u8) -> bool {
    PROPERTIES[usize::from(at)] & property != 0
}

/// Whether reading this register returns the stored byte and does nothing else.
#[inline]
pub fn reads_without_effect(at: u8) -> bool {
    has_register_property(at, READ_WITHOUT_EFFECT)
}

/// Whether writing this register stores the byte and does nothing else.
#[inline]
pub fn writes_without_effect(at: u8) -> bool {
    has_register_property(at, WRITE_WITHOUT_EFFECT)
}

/// Whether reading the word that begins at this multiple of four has no side effect.
#[inline]
pub fn word_reads_without_effect(at: u8) -> bool {
    has_register_property(at, READ_WITHOUT_EFFECT << WORD_SHIFT)
}

/// Whether writing the word that begins at this multiple of four has no side effect.
#[inline]
pub fn word_writes_without_effect(at: u8) -> bool {
    has_register_property(at, WRITE_WITHOUT_EFFECT << WORD_SHIFT)
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
            if reads_without_effect(at) {
                assert_eq!(chip.read_with_effects(at), 0x5a ^ at, "{at:#x}");
            }
            if writes_without_effect(at) {
                let irq = chip.irq_level();
                chip.write_with_effects(at, at);
                assert_eq!(chip.regs.get(at), at, "{at:#x}");
                assert_eq!(
                    (chip.irq_level(), chip.wants_run()),
                    (irq, false),
                    "{at:#x}"
                );
            }
            for other in (0..=u8::MAX).filter(|other| !(writes_without_effect(at) && *other == at))
            {
                assert_eq!(chip.regs.get(other), 0x5a ^ other, "{at:#x}, {other:#x}");
            }
        }
    }
}
