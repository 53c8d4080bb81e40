//! Exports as a client learns of them in the handshake.

/// Block sizes of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this: a power of two up to 64 KiB.
    pub minimum: u32,
    /// Offsets and lengths are best multiples of this: a power of two.
    pub preferred: u32,
}

/// The number of an export, which no other one has or has had, also none of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExportNumber(pub u64);

/// An export as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportDescription {
    /// Its number.
    pub number: ExportNumber,
    /// Its name, at most 4096 bytes.
    pub name: String,
    /// Its description for people, at most 4096 bytes; may be empty.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Its [`transmission_flag`](crate::wire::transmission_flag)s. `SEND_DF` is added for connections that allow it.
    pub flags: u16,
    /// Its block sizes.
    pub block_sizes: BlockSizes,
    /// Its metadata contexts, such as `base:allocation`. The index of a context is its number in the protocol.
    pub contexts: Vec<String>,
}

/// The exports of a server.
pub trait ExportDirectory {
    /// All exports.
    fn list(&self) -> Vec<ExportDescription>;

    /// The export of this name.
    fn find(&self, name: &str) -> Option<ExportDescription> {
        let mut exports = self.list().into_iter();
        exports.find(|export| export.name == name)
    }
}
