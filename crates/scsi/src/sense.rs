//! Sense data (SPC-4, section 4.5): the errors that commands report, and their encoding in fixed or descriptor format.

use crate::bytes::put_bytes;

/// Most bytes of sense data of any format: the room that a transport's autosense needs.
pub const MAX_SENSE_BYTES: usize = 252;

/// The longest that we make: a header and two descriptors.
const OUR_SENSE_BYTES: usize = 28;

const FIXED_BYTES: usize = 18;

/// Sense keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SenseKey {
    /// None.
    NoSense = 0x0,
    /// The unit is not ready.
    NotReady = 0x2,
    /// The medium is broken there.
    MediumError = 0x3,
    /// The target is broken.
    HardwareError = 0x4,
    /// The command was wrong.
    IllegalRequest = 0x5,
    /// A unit attention: an event to report.
    UnitAttention = 0x6,
    /// The range must not be written.
    DataProtect = 0x7,
    /// The target has aborted the command, which may be retried.
    AbortedCommand = 0xb,
    /// The compared data differ.
    Miscompare = 0xe,
}

/// Details that depend on the sense key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenseKeySpecific {
    /// None.
    None,
    /// The field that was wrong.
    Field {
        /// In the CDB; else in the parameter list.
        cdb: bool,
        /// Its first byte.
        byte: u16,
        /// Its highest bit, if it is less than a byte.
        bit: Option<u8>,
    },
}

/// The reason for CHECK CONDITION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// What kind of trouble it is.
    pub key: SenseKey,
    /// Additional sense code, and its qualifier in the lower byte.
    pub code: u16,
    /// A number that the code explains: an LBA, or an offset.
    pub information: Option<u64>,
    /// Details.
    pub specific: SenseKeySpecific,
}

impl Sense {
    /// No error.
    pub const NONE: Sense = Sense::new(SenseKey::NoSense, 0);
    pub(crate) const INVALID_OPCODE: Sense = Sense::new(SenseKey::IllegalRequest, 0x2000);
    pub(crate) const LBA_OUT_OF_RANGE: Sense = Sense::new(SenseKey::IllegalRequest, 0x2100);
    pub(crate) const LUN_NOT_SUPPORTED: Sense = Sense::new(SenseKey::IllegalRequest, 0x2500);
    pub(crate) const PARAMETER_LIST_LENGTH: Sense = Sense::new(SenseKey::IllegalRequest, 0x1a00);
    pub(crate) const INVALID_RELEASE: Sense = Sense::new(SenseKey::IllegalRequest, 0x2604);
    pub(crate) const SAVING_NOT_SUPPORTED: Sense = Sense::new(SenseKey::IllegalRequest, 0x3900);
    pub(crate) const NO_RESERVATION_LEFT: Sense = Sense::new(SenseKey::IllegalRequest, 0x5502);
    pub(crate) const NO_REGISTRATION_LEFT: Sense = Sense::new(SenseKey::IllegalRequest, 0x5504);
    /// The initiator's buffer is not as long as the command says.
    pub(crate) const DATA_LENGTH: Sense = Sense::new(SenseKey::IllegalRequest, 0x0e03);
    pub(crate) const STOPPED: Sense = Sense::new(SenseKey::NotReady, 0x0402);
    pub(crate) const WRITE_PROTECTED: Sense = Sense::new(SenseKey::DataProtect, 0x2700);
    pub(crate) const SOFTWARE_WRITE_PROTECTED: Sense = Sense::new(SenseKey::DataProtect, 0x2702);
    pub(crate) const TARGET_FAILURE: Sense = Sense::new(SenseKey::HardwareError, 0x4400);

    /// Without details.
    #[must_use]
    pub const fn new(key: SenseKey, code: u16) -> Self {
        Sense {
            key,
            code,
            information: None,
            specific: SenseKeySpecific::None,
        }
    }

    /// INVALID FIELD IN CDB.
    pub(crate) const fn invalid_cdb_field(byte: u16, bit: Option<u8>) -> Self {
        Sense {
            specific: SenseKeySpecific::Field {
                cdb: true,
                byte,
                bit,
            },
            ..Sense::new(SenseKey::IllegalRequest, 0x2400)
        }
    }

    /// INVALID FIELD IN PARAMETER LIST.
    pub(crate) fn invalid_parameter(byte: usize, bit: Option<u8>) -> Self {
        Sense {
            specific: SenseKeySpecific::Field {
                cdb: false,
                byte: crate::bytes::saturated_u16(byte),
                bit,
            },
            ..Sense::new(SenseKey::IllegalRequest, 0x2600)
        }
    }

    /// What was compared differs at this byte of the initiator's data.
    pub(crate) fn miscompare(offset: u64) -> Self {
        Sense {
            information: Some(offset),
            ..Sense::new(SenseKey::Miscompare, 0x1d00)
        }
    }

    /// A unit attention.
    pub(crate) const fn attention(code: u16) -> Self {
        Sense::new(SenseKey::UnitAttention, code)
    }

    /// Encodes the sense data in descriptor format, or in fixed format.
    #[must_use]
    pub fn encode(&self, descriptor_format: bool) -> SenseData {
        if descriptor_format {
            self.encode_descriptors()
        } else {
            self.encode_fixed()
        }
    }

    /// Encodes in fixed format.
    fn encode_fixed(&self) -> SenseData {
        let mut bytes = [0; OUR_SENSE_BYTES];
        bytes[0] = 0x70;
        // The field has four bytes; a larger value is marked as not valid.
        if let Some(information) = self.information
            && let Ok(information) = u32::try_from(information)
        {
            bytes[0] |= 0x80;
            put_bytes(&mut bytes, 3, &information.to_be_bytes());
        }
        bytes[2] = self.key as u8;
        bytes[7] = 10;
        put_bytes(&mut bytes, 12, &self.code.to_be_bytes());
        put_bytes(&mut bytes, 15, &self.encode_specific());
        SenseData {
            bytes,
            len: FIXED_BYTES,
        }
    }

    /// Encodes in descriptor format: only details that there are have a descriptor.
    fn encode_descriptors(&self) -> SenseData {
        let mut bytes = [0; OUR_SENSE_BYTES];
        let mut len = 8;
        bytes[0] = 0x72;
        bytes[1] = self.key as u8;
        put_bytes(&mut bytes, 2, &self.code.to_be_bytes());
        if let Some(information) = self.information {
            put_bytes(&mut bytes, len, &[0x00, 0x0a, 0x80, 0]);
            put_bytes(&mut bytes, len + 4, &information.to_be_bytes());
            len += 12;
        }
        if self.specific != SenseKeySpecific::None {
            put_bytes(&mut bytes, len, &[0x02, 0x06]);
            put_bytes(&mut bytes, len + 4, &self.encode_specific());
            len += 8;
        }
        bytes[7] = crate::bytes::saturated_u8(len - 8);
        SenseData { bytes, len }
    }

    /// The sense-key specific bytes.
    fn encode_specific(&self) -> [u8; 3] {
        match self.specific {
            SenseKeySpecific::None => [0; 3],
            SenseKeySpecific::Field { cdb, byte, bit } => {
                let [high, low] = byte.to_be_bytes();
                let in_cdb = if cdb { 0x40 } else { 0 };
                let bit = bit.map_or(0, |bit| 0x08 | bit);
                [0x80 | in_cdb | bit, high, low]
            }
        }
    }
}

/// Encoded sense data.
#[derive(Clone, Copy, Debug)]
pub struct SenseData {
    bytes: [u8; OUR_SENSE_BYTES],
    len: usize,
}

impl SenseData {
    pub(crate) const EMPTY: SenseData = SenseData {
        bytes: [0; OUR_SENSE_BYTES],
        len: 0,
    };

    /// The bytes, at most [`MAX_SENSE_BYTES`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_format_has_eighteen_bytes() {
        let sense = Sense::invalid_cdb_field(1, Some(3)).encode(false);
        assert_eq!(
            sense.as_bytes(),
            [
                0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcb, 0, 1
            ]
        );
        let sense = Sense::miscompare(0x1234).encode(false);
        assert_eq!(sense.as_bytes()[..8], [0xf0, 0, 14, 0, 0, 0x12, 0x34, 10]);
        let sense = Sense::miscompare(1 << 32).encode(false);
        assert_eq!(sense.as_bytes()[0], 0x70, "information does not fit");
    }

    #[test]
    fn descriptors_follow_one_another() {
        let mut sense = Sense::invalid_parameter(258, None);
        sense.information = Some(1 << 40);
        let data = sense.encode(true);
        let expected = [
            0x72, 5, 0x26, 0, 0, 0, 0, 20, // header
            0, 10, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0, // information
            2, 6, 0, 0, 0x80, 1, 2, 0, // field
        ];
        assert_eq!(data.as_bytes(), expected);
        assert_eq!(Sense::NONE.encode(true).as_bytes().len(), 8);
    }
}
