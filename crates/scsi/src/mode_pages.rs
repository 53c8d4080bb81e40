//! Encodes the mode pages (SPC-4 and SBC-3, mode parameters) with their current, default or changeable values, and applies
//! pages that an initiator has sent.

use crate::bytes::put_bytes;

/// PC, page control: the kind of values that MODE SENSE returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageControl {
    Current,
    /// A mask of the changeable bits.
    Changeable,
    Default,
}

/// The mode parameters that initiators can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeParameters {
    /// WCE: completed writes may be in a volatile cache.
    pub write_cache: bool,
    /// D_SENSE: sense data has descriptor format.
    pub descriptor_sense: bool,
    /// SWP: software write protection.
    pub software_write_protect: bool,
}

impl ModeParameters {
    pub fn new(write_through: bool) -> Self {
        ModeParameters {
            write_cache: !write_through,
            descriptor_sense: false,
            software_write_protect: false,
        }
    }
}

const READ_WRITE_ERROR_RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;

/// Codes of all pages.
pub(crate) const PAGE_CODES: [u8; 4] = [
    READ_WRITE_ERROR_RECOVERY,
    CACHING,
    CONTROL,
    INFORMATIONAL_EXCEPTIONS,
];

const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;

/// A page with its header; `None`: there is no such page.
pub(crate) fn encode_page(
    code: u8,
    values: PageControl,
    modes: &ModeParameters,
    defaults: &ModeParameters,
) -> Option<Vec<u8>> {
    let modes = match values {
        PageControl::Default => defaults,
        PageControl::Current | PageControl::Changeable => modes,
    };
    let fixed = values != PageControl::Changeable;
    let flag = |on: bool, bit: u8| if on || !fixed { bit } else { 0 };
    let mut page = vec![0; 12];
    match code {
        READ_WRITE_ERROR_RECOVERY => {
            if fixed {
                // AWRE, ARRE: the storage below replaces bad blocks by itself.
                page[2] = 0xc0;
            }
        }
        CACHING => {
            page.resize(20, 0);
            page[2] = flag(modes.write_cache, WCE);
        }
        CONTROL => {
            page[2] = flag(modes.descriptor_sense, D_SENSE);
            page[4] = flag(modes.software_write_protect, SWP);
            if fixed {
                // GLTSD: log parameters are not saved. Simple tasks may be reordered.
                page[2] |= 0x02;
                page[3] = 0x10;
                // Busy timeout: no limit.
                put_bytes(&mut page, 8, &[0xff, 0xff]);
            }
        }
        INFORMATIONAL_EXCEPTIONS => {
            if fixed {
                // DEXCPT: informational exceptions are disabled.
                page[2] = 0x08;
            }
        }
        _ => return None,
    }
    page[0] = code;
    page[1] = crate::bytes::saturated_u8(page.len() - 2);
    Some(page)
}

/// The position of an invalid field in a page of MODE SELECT: byte and bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidField {
    pub byte: usize,
    pub bit: Option<u8>,
}

/// Sets the changeable bits of a page. Others must be unchanged.
pub(crate) fn check_and_apply_page(
    sent: &[u8],
    modes: &mut ModeParameters,
    defaults: &ModeParameters,
) -> Result<(), InvalidField> {
    let code = sent[0] & 0x3f;
    let current = encode_page(code, PageControl::Current, modes, defaults);
    let changeable = encode_page(code, PageControl::Changeable, modes, defaults);
    let (Some(current), Some(changeable)) = (current, changeable) else {
        return Err(InvalidField {
            byte: 0,
            bit: Some(5),
        });
    };
    if sent.len() != current.len() {
        return Err(InvalidField { byte: 1, bit: None });
    }
    for at in 2..sent.len() {
        let differs = (sent[at] ^ current[at]) & !changeable[at];
        if differs != 0 {
            let bit = u8::try_from(differs.ilog2()).ok();
            return Err(InvalidField { byte: at, bit });
        }
    }
    match code {
        CACHING => modes.write_cache = sent[2] & WCE != 0,
        CONTROL => {
            modes.descriptor_sense = sent[2] & D_SENSE != 0;
            modes.software_write_protect = sent[4] & SWP != 0;
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changeable_bits_can_be_changed() {
        let defaults = ModeParameters::new(false);
        let mut modes = defaults;
        for code in PAGE_CODES {
            let current = encode_page(code, PageControl::Current, &modes, &defaults).unwrap();
            let changeable = encode_page(code, PageControl::Changeable, &modes, &defaults).unwrap();
            assert_eq!(current.len(), changeable.len());
            assert_eq!(usize::from(current[1]) + 2, current.len());
            for bit in 16..current.len() * 8 {
                let mut sent = current.clone();
                sent[bit / 8] ^= 1 << (bit % 8);
                let may = changeable[bit / 8] & 1 << (bit % 8) != 0;
                let done = check_and_apply_page(&sent, &mut modes, &defaults);
                assert_eq!(done.is_ok(), may, "page {code:#x}, bit {bit}");
                let now = encode_page(code, PageControl::Current, &modes, &defaults).unwrap();
                assert_eq!(now, if may { sent } else { current.clone() });
                modes = defaults;
            }
        }
        let caching = encode_page(CACHING, PageControl::Current, &modes, &defaults).unwrap();
        assert_eq!(
            check_and_apply_page(&caching[..19], &mut modes, &defaults),
            Err(InvalidField { byte: 1, bit: None })
        );
    }
}
