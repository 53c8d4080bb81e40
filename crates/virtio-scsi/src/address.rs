//! Address of a logical unit (target and LUN), decoded from and encoded to eight bytes: VIRTIO 1.3, section 5.6.6.1.

use std::fmt;

use scsi::{decode_lun, encode_lun};

/// A target and a unit of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The target.
    pub target: u8,
    /// The unit, at most [`scsi::MAX_LUN`].
    pub lun: u16,
}

impl Address {
    /// Decodes eight bytes: 1, the target, and a unit by peripheral or flat addressing. `None`: another format.
    #[inline]
    #[must_use]
    pub fn decode(bytes: [u8; 8]) -> Option<Self> {
        let [1, target, a, b, c, d, e, f] = bytes else {
            return None;
        };
        let lun = decode_lun([a, b, c, d, e, f, 0, 0])?;
        Some(Address { target, lun })
    }

    /// Encodes an address as REPORT LUNS does: drivers compare addresses in events with it.
    #[must_use]
    pub fn encode(self) -> [u8; 8] {
        let [a, b, ..] = encode_lun(self.lun);
        [1, self.target, a, b, 0, 0, 0, 0]
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "target {} LUN {}", self.target, self.lun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_wire() {
        for (target, lun) in [(0, 0), (255, 1), (3, 255), (4, 256), (5, scsi::MAX_LUN)] {
            let address = Address { target, lun };
            assert_eq!(Address::decode(address.encode()), Some(address));
        }
        let five = Address { target: 2, lun: 5 };
        assert_eq!(five.encode(), [1, 2, 0, 5, 0, 0, 0, 0]);
        assert_eq!(
            Address::decode([1, 2, 0x40, 5, 0, 0, 0, 0]),
            Some(five),
            "flat"
        );
        assert_eq!(Address::decode([0, 2, 0, 5, 0, 0, 0, 0]), None);
        assert_eq!(Address::decode([1, 2, 1, 5, 0, 0, 0, 0]), None, "a bus");
        assert_eq!(
            Address::decode([1, 2, 0, 5, 0, 9, 0, 0]),
            None,
            "below a unit"
        );
        assert_eq!(
            Address::decode([0xc1, 1, 0, 0, 0, 0, 0, 0]),
            None,
            "well known"
        );
    }
}
