//! I_T nexus: the number of an initiator, and the names of its initiator port (TransportID) and target port, which are encoded
//! and decoded here.

use crate::bytes::{be16, be64, put_bytes};

/// The number of an initiator. Adapters choose the numbers: all initiators of a unit need different ones, and small
/// ones are best (see the unit's documentation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusNumber(pub u16);

/// The TransportID of an initiator port (SPC-4, section 7.6.4), as used in reservations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransportId {
    /// On a parallel bus: its SCSI address.
    Parallel {
        /// The initiator's ID.
        address: u16,
    },
    /// By iSCSI name.
    Iscsi {
        /// 1 to 223 bytes of UTF-8.
        name: String,
    },
    /// By SAS address.
    Sas(u64),
}

const PARALLEL: u8 = 0x1;
const ISCSI: u8 = 0x5;
const SAS: u8 = 0x6;

/// Bytes of all formats but iSCSI's.
const FIXED_BYTES: usize = 24;

/// The longest iSCSI name.
const MAX_NAME_BYTES: usize = 223;

impl TransportId {
    /// The bytes in parameter data.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; FIXED_BYTES];
        match self {
            TransportId::Parallel { address } => {
                bytes[0] = PARALLEL;
                put_bytes(&mut bytes, 2, &address.to_be_bytes());
                bytes[7] = 1;
            }
            TransportId::Sas(address) => {
                bytes[0] = SAS;
                put_bytes(&mut bytes, 4, &address.to_be_bytes());
            }
            TransportId::Iscsi { name } => {
                // At least one zero byte ends the name, and it is a multiple of four, at least 20.
                let name = name.as_bytes();
                let padded = (name.len() + 1).next_multiple_of(4).max(20);
                bytes.resize(4 + padded, 0);
                bytes[0] = ISCSI;
                let len = crate::bytes::saturated_u16(padded);
                put_bytes(&mut bytes, 2, &len.to_be_bytes());
                put_bytes(&mut bytes, 4, name);
            }
        }
        bytes
    }

    /// Decodes the bytes in parameter data. `None`: the format is unknown, or they are malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = *bytes.first()?;
        match kind {
            PARALLEL if bytes.len() >= FIXED_BYTES => Some(TransportId::Parallel {
                address: be16(bytes, 2),
            }),
            SAS if bytes.len() >= FIXED_BYTES => Some(TransportId::Sas(be64(bytes, 4))),
            ISCSI => {
                let len = usize::from(be16(bytes, 2));
                let name = bytes.get(4..4 + len)?;
                let end = name.iter().position(|byte| *byte == 0)?;
                let name = std::str::from_utf8(&name[..end]).ok()?;
                (1..=MAX_NAME_BYTES)
                    .contains(&name.len())
                    .then(|| TransportId::Iscsi {
                        name: name.to_owned(),
                    })
            }
            _ => None,
        }
    }
}

/// The two ports of a nexus. Reservations refer to them, since they outlive connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NexusPorts {
    /// The initiator port.
    pub initiator: TransportId,
    /// The target port's relative identifier, from 1.
    pub target: u16,
}

/// The length of an encoded TransportID, from its first bytes.
pub(crate) fn transport_id_len(bytes: &[u8]) -> usize {
    match bytes.first() {
        Some(&ISCSI) => 4 + usize::from(be16(bytes, 2)),
        _ => FIXED_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_id_survives_the_wire() {
        let name = "iqn.2024-01.org.example:host".to_owned();
        for id in [
            TransportId::Parallel { address: 7 },
            TransportId::Sas(0x5000_1234_5678_9abc),
            TransportId::Iscsi { name },
        ] {
            let bytes = id.encode();
            assert_eq!(bytes.len() % 4, 0);
            assert!(bytes.len() >= FIXED_BYTES);
            assert_eq!(transport_id_len(&bytes), bytes.len());
            assert_eq!(TransportId::decode(&bytes), Some(id.clone()));
            assert_eq!(TransportId::decode(&bytes[..bytes.len() - 8]), None);
        }
        assert_eq!(TransportId::decode(&[]), None);
        assert_eq!(TransportId::decode(&[9; 24]), None);
        assert_eq!(
            TransportId::decode(&[5, 0, 0, 4, 0, 0, 0, 0]),
            None,
            "no name"
        );
    }
}
