//! Identity of a unit: vendor, product, revision, serial number and world wide names, with the checks of their lengths.

/// The longest designator (SPC-4, section 7.8.6).
const MAX_DESIGNATOR_BYTES: usize = 255;

const VENDOR_BYTES: usize = 8;

/// Longest serial number: in a designator it follows the vendor.
pub const MAX_SERIAL_BYTES: usize = MAX_DESIGNATOR_BYTES - VENDOR_BYTES;

/// Names of a unit: printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitIdentity {
    /// At most 8 characters.
    pub vendor: String,
    /// At most 16 characters.
    pub product: String,
    /// At most 4 characters.
    pub revision: String,
    /// At most [`MAX_SERIAL_BYTES`] characters; may be empty.
    pub serial: String,
    /// A world wide name, in the NAA format of its first digit.
    pub naa: Option<u64>,
    /// An EUI-64.
    pub eui: Option<u64>,
    /// A vendor-specific designator, which replaces that of vendor and serial number. May be empty.
    pub vendor_specific: String,
}

impl Default for UnitIdentity {
    fn default() -> Self {
        UnitIdentity {
            vendor: "BLKPLANE".to_owned(),
            product: "DISK".to_owned(),
            revision: "1".to_owned(),
            serial: String::new(),
            naa: None,
            eui: None,
            vendor_specific: String::new(),
        }
    }
}

/// Error of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It does not fit its field.
    #[error("{what} has {found} characters: at most {most} fit")]
    TooLong {
        /// The field.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The longest that fits.
        most: usize,
    },
    /// Guests may not be able to show it.
    #[error("{0} has characters other than letters, digits and signs of ASCII")]
    NotAscii(&'static str),
    /// NAA formats are 2, 3, 5 (and 6, which is longer).
    #[error("{0:#x} is no world wide name of 64 bits: its first digit must be 2, 3 or 5")]
    Naa(u64),
}

impl UnitIdentity {
    /// Checks that each name fits its field, and consists of characters that guests can show.
    pub(crate) fn check_names_and_naa(&self) -> Result<(), IdentityError> {
        let names = [
            ("vendor", &self.vendor, VENDOR_BYTES),
            ("product", &self.product, 16),
            ("revision", &self.revision, 4),
            ("serial", &self.serial, MAX_SERIAL_BYTES),
            ("device-id", &self.vendor_specific, MAX_DESIGNATOR_BYTES),
        ];
        for (what, name, most) in names {
            if name.len() > most {
                let found = name.len();
                return Err(IdentityError::TooLong { what, found, most });
            }
            if !name.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
                return Err(IdentityError::NotAscii(what));
            }
        }
        match self.naa {
            Some(naa) if !matches!(naa >> 60, 2 | 3 | 5) => Err(IdentityError::Naa(naa)),
            _ => Ok(()),
        }
    }
}

/// A name, padded with spaces to the length of its field.
pub(crate) fn padded_with_spaces(name: &str, len: usize) -> impl Iterator<Item = u8> {
    name.bytes().chain(std::iter::repeat(b' ')).take(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_fit_their_fields() {
        let identity = UnitIdentity::default();
        assert_eq!(identity.check_names_and_naa(), Ok(()));
        let long = UnitIdentity {
            vendor: "TOO LONG FOR IT".to_owned(),
            ..identity.clone()
        };
        assert!(matches!(
            long.check_names_and_naa(),
            Err(IdentityError::TooLong { most: 8, .. })
        ));
        let strange = UnitIdentity {
            serial: "ä".to_owned(),
            ..identity.clone()
        };
        assert_eq!(
            strange.check_names_and_naa(),
            Err(IdentityError::NotAscii("serial"))
        );
        let naa = UnitIdentity {
            naa: Some(0x1234),
            ..identity
        };
        assert_eq!(naa.check_names_and_naa(), Err(IdentityError::Naa(0x1234)));
        assert_eq!(padded_with_spaces("AB", 4).collect::<Vec<u8>>(), *b"AB  ");
    }
}
