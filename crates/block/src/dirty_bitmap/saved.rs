//! Bitmaps as bytes: for the file of persistent bitmaps, and for the successor in a live upgrade.
//!
//! All numbers are little endian. A header of 56 bytes:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `BPBITMAP` |
//! | 8 | 4 | version: 2 |
//! | 12 | 4 | flags; 1: in use, so the bits are not up to date |
//! | 16 | 8 | length of what follows the header |
//! | 24 | 24 | the [image](ImageStamp) when it was saved: inode, seconds and nanoseconds of its last change; 0: unknown |
//! | 48 | 4 | CRC-32C of what follows the header |
//! | 52 | 4 | CRC-32C of the 52 bytes before |
//!
//! Then one record for each bitmap, the newest first:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | flags; 1: enabled, 2: persistent, 4: inconsistent |
//! | 4 | 4 | log2 of the granularity |
//! | 8 | 8 | size of the disk in bytes |
//! | 16 | 8 | length of the name |
//! | 24 | | the name; then 8 bytes for each 64 bits, the lowest bit first |

use super::recorder::NamedBitmap;
use super::{BitmapBits, BitmapError, MAX_NAME_BYTES, NodeBitmaps};

const MAGIC: &[u8; 8] = b"BPBITMAP";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 56;
const IN_USE: u32 = 1;
const ENABLED: u32 = 1;
const PERSISTENT: u32 = 2;
const INCONSISTENT: u32 = 4;

/// Why saved bitmaps cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedBitmapsError {
    /// It does not begin as saved bitmaps do.
    #[error("it is no file of dirty bitmaps: choose another path, or remove it")]
    Magic,
    /// A version that this program does not know.
    #[error(
        "it has version {0}, and this program knows version {VERSION}: use the program that wrote it, or remove it"
    )]
    Version(u32),
    /// A part is missing, too long or changed.
    #[error("it is damaged ({0}): remove it, and begin with new bitmaps and a full copy")]
    Damaged(&'static str),
    /// A bitmap cannot be restored.
    #[error("bitmap '{name}': {error}")]
    Bitmap {
        /// The bitmap.
        name: String,
        /// Why.
        error: BitmapError,
    },
}

/// Which bitmaps are saved, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveKind {
    /// Persistent bitmaps, with bits that will not be up to date while the node is in use.
    InUse,
    /// Persistent bitmaps, at an orderly end, with the image as it is then.
    AtEnd(ImageStamp),
    /// All bitmaps, for another process that takes over.
    Handover,
}

/// The image file of a disk at a moment. Another one says that the file was written since, or is another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStamp {
    /// Its inode; 0: the disk is no file.
    pub inode: u64,
    /// When its content was changed.
    pub changed_seconds: i64,
    /// Nanoseconds of that.
    pub changed_nanoseconds: u32,
}

impl NodeBitmaps {
    /// The bitmaps as bytes.
    #[must_use]
    pub fn save(&self, kind: SaveKind) -> Vec<u8> {
        save_list(&self.lock_state().list, kind)
    }

    /// Replaces the bitmaps by those that were saved; the node has `size` bytes. What was saved while it was in use is
    /// inconsistent, and so are bitmaps of another size, or of another image than this one, if it is given.
    ///
    /// # Errors
    /// [`SavedBitmapsError`]; nothing has changed then.
    pub fn restore(
        &self,
        saved: &[u8],
        size: u64,
        image: Option<ImageStamp>,
    ) -> Result<(), SavedBitmapsError> {
        let (header, body) = split_checked(saved)?;
        let is_stale =
            header.flags & IN_USE != 0 || image.is_some_and(|image| image != header.image);
        let mut reader = Reader(body);
        let mut list: Vec<NamedBitmap> = Vec::new();
        while !reader.0.is_empty() {
            let mut bitmap = reader.bitmap()?;
            bitmap.inconsistent |= is_stale || bitmap.bits.size() != size;
            if list.iter().any(|other| other.name == bitmap.name) {
                return Err(SavedBitmapsError::Damaged("a name is there twice"));
            }
            list.push(bitmap);
        }
        self.lock_state().replace_list(list);
        Ok(())
    }
}

/// Bitmaps of a list as bytes.
pub(super) fn save_list(list: &[NamedBitmap], kind: SaveKind) -> Vec<u8> {
    let mut body = Vec::new();
    for bitmap in list {
        if bitmap.persistent || kind == SaveKind::Handover {
            append_bitmap(&mut body, bitmap);
        }
    }
    let (flags, image) = match kind {
        SaveKind::InUse => (IN_USE, ImageStamp::default()),
        SaveKind::AtEnd(image) => (0, image),
        SaveKind::Handover => (0, ImageStamp::default()),
    };
    let mut all = Vec::with_capacity(HEADER_BYTES + body.len());
    all.extend(MAGIC);
    all.extend(VERSION.to_le_bytes());
    all.extend(flags.to_le_bytes());
    all.extend((body.len() as u64).to_le_bytes());
    all.extend(image.inode.to_le_bytes());
    all.extend(image.changed_seconds.to_le_bytes());
    all.extend(u64::from(image.changed_nanoseconds).to_le_bytes());
    all.extend(crc32c(&body).to_le_bytes());
    all.extend(crc32c(&all).to_le_bytes());
    all.extend(body);
    all
}

/// The fields of a header that are not checked with it.
struct Header {
    flags: u32,
    image: ImageStamp,
}

/// Checks header and checksums; returns the header, and what follows it.
fn split_checked(saved: &[u8]) -> Result<(Header, &[u8]), SavedBitmapsError> {
    let mut reader = Reader(saved);
    if reader.take(8).ok() != Some(MAGIC) {
        return Err(SavedBitmapsError::Magic);
    }
    let version = reader.u32()?;
    if version != VERSION {
        return Err(SavedBitmapsError::Version(version));
    }
    let (flags, len) = (reader.u32()?, reader.u64()?);
    let image = ImageStamp {
        inode: reader.u64()?,
        changed_seconds: reader.u64()?.cast_signed(),
        changed_nanoseconds: u32::try_from(reader.u64()?).unwrap_or(u32::MAX),
    };
    let (body_sum, header_sum) = (reader.u32()?, reader.u32()?);
    if crc32c(&saved[..HEADER_BYTES - 4]) != header_sum {
        return Err(SavedBitmapsError::Damaged("the header's checksum"));
    }
    if reader.0.len() as u64 != len {
        return Err(SavedBitmapsError::Damaged("its length"));
    }
    if crc32c(reader.0) != body_sum {
        return Err(SavedBitmapsError::Damaged("the checksum"));
    }
    Ok((Header { flags, image }, reader.0))
}

/// Appends the record of a bitmap.
fn append_bitmap(body: &mut Vec<u8>, bitmap: &NamedBitmap) {
    let flag = |set, flag| if set { flag } else { 0 };
    let flags = flag(bitmap.enabled, ENABLED)
        | flag(bitmap.persistent, PERSISTENT)
        | flag(bitmap.inconsistent, INCONSISTENT);
    body.extend(flags.to_le_bytes());
    body.extend(bitmap.bits.granularity().trailing_zeros().to_le_bytes());
    body.extend(bitmap.bits.size().to_le_bytes());
    body.extend((bitmap.name.len() as u64).to_le_bytes());
    body.extend(bitmap.name.as_bytes());
    body.extend(bitmap.bits.words().flat_map(u64::to_le_bytes));
}

/// What is not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], SavedBitmapsError> {
        let len = usize::try_from(len).ok();
        let split = len.and_then(|len| self.0.split_at_checked(len));
        let (taken, rest) = split.ok_or(SavedBitmapsError::Damaged("it ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, SavedBitmapsError> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, SavedBitmapsError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn bitmap(&mut self) -> Result<NamedBitmap, SavedBitmapsError> {
        let (flags, shift, size, name_len) = (self.u32()?, self.u32()?, self.u64()?, self.u64()?);
        let name = std::str::from_utf8(self.take(name_len)?);
        let name = name.map_err(|_| SavedBitmapsError::Damaged("a name"))?;
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(SavedBitmapsError::Damaged("the length of a name"));
        }
        let failed = |error| SavedBitmapsError::Bitmap {
            name: name.to_owned(),
            error,
        };
        let granularity = 1_u64.checked_shl(shift).unwrap_or(0);
        let shortest = size.div_ceil(granularity.max(1)).div_ceil(64);
        if shortest > self.0.len() as u64 / 8 {
            // Before memory is allocated for it.
            return Err(SavedBitmapsError::Damaged("it ends early"));
        }
        let bits = BitmapBits::new(size, granularity).map_err(failed)?;
        let words = self.take(bits.words().len() as u64 * 8)?.chunks_exact(8);
        bits.set_words(words.map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        }));
        let (enabled, persistent) = (flags & ENABLED != 0, flags & PERSISTENT != 0);
        let mut bitmap = NamedBitmap::new(name, bits, enabled, persistent);
        bitmap.inconsistent = flags & INCONSISTENT != 0;
        Ok(bitmap)
    }
}

/// Remainders of all bytes, for CRC-32C in its reflected form.
const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut value = byte;
        let mut bit = 0;
        while bit < 8 {
            value = value >> 1 ^ if value & 1 != 0 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[byte as usize] = value;
        byte += 1;
    }
    table
};

/// CRC-32C, as in iSCSI and ext4.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        let index = (sum ^ u32::from(*byte)) & 0xff;
        sum >> 8 ^ CRC_TABLE[index as usize]
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dirty_bitmap::{BitmapAction, BitmapChange, switch};

    const SIZE: u64 = 1 << 20;

    fn add(node: &Arc<NodeBitmaps>, name: &str, enabled: bool, persistent: bool) {
        let change = BitmapChange::Add {
            size: SIZE,
            granularity: 4096,
            enabled,
            persistent,
        };
        let action = BitmapAction {
            node: node.clone(),
            bitmap: name.to_owned(),
            change,
        };
        switch(&[action]).unwrap();
    }

    /// Three bitmaps, each with other bits.
    fn node() -> Arc<NodeBitmaps> {
        let node = Arc::new(NodeBitmaps::default());
        for (name, enabled, persistent, start) in [
            ("one", true, true, 0),
            ("two", false, true, 8192),
            ("volatile", true, false, 16_384),
        ] {
            add(&node, name, enabled, persistent);
            let bits = node.begin_use(name).unwrap().bits().unwrap();
            bits.mark(start..start + 1);
        }
        node
    }

    const IMAGE: ImageStamp = ImageStamp {
        inode: 7,
        changed_seconds: -1,
        changed_nanoseconds: 999_999_999,
    };

    fn restored(saved: &[u8], size: u64) -> Result<Arc<NodeBitmaps>, SavedBitmapsError> {
        let node = Arc::new(NodeBitmaps::default());
        node.restore(saved, size, Some(IMAGE)).map(|()| node)
    }

    #[test]
    fn checksum_is_crc_32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn bitmaps_are_restored_as_they_were_saved() {
        let node = node();
        let copy = Arc::new(NodeBitmaps::default());
        copy.restore(&node.save(SaveKind::Handover), SIZE, None)
            .unwrap();
        assert_eq!(copy.statuses(), node.statuses());
        for name in ["one", "two", "volatile"] {
            let bits = |node: &Arc<NodeBitmaps>| node.begin_use(name).unwrap().bits().unwrap();
            let (bits, expected) = (bits(&copy), bits(&node));
            assert!(bits.dirty_ranges().eq(expected.dirty_ranges()), "{name}");
        }
        let at_end = restored(&node.save(SaveKind::AtEnd(IMAGE)), SIZE).unwrap();
        let statuses = at_end.statuses();
        assert!(statuses.iter().all(|status| !status.inconsistent));
        let names = statuses.iter().map(|status| &*status.name);
        assert!(names.eq(["two", "one"]));
    }

    #[test]
    fn bitmaps_that_were_in_use_or_of_another_size_or_image_are_inconsistent() {
        let node = node();
        let written_since = ImageStamp {
            changed_nanoseconds: 0,
            ..IMAGE
        };
        let replaced = ImageStamp { inode: 8, ..IMAGE };
        for (kind, size) in [
            (SaveKind::InUse, SIZE),
            (SaveKind::AtEnd(IMAGE), SIZE + 4096),
            (SaveKind::AtEnd(written_since), SIZE),
            (SaveKind::AtEnd(replaced), SIZE),
        ] {
            let copy = restored(&node.save(kind), size).unwrap();
            let statuses = copy.statuses();
            assert_eq!(statuses.len(), 2);
            assert!(statuses.iter().all(|it| it.inconsistent && !it.recording));
            assert!(copy.begin_use("one").is_err());
            // They stay so.
            let saved = copy.save(SaveKind::AtEnd(IMAGE));
            let statuses = restored(&saved, size).unwrap().statuses();
            assert!(statuses.iter().all(|status| status.inconsistent));
        }
    }

    #[test]
    fn damaged_bytes_are_refused_wherever_they_are() {
        let saved = node().save(SaveKind::AtEnd(IMAGE));
        for len in 0..saved.len() {
            assert!(restored(&saved[..len], SIZE).is_err(), "{len} bytes");
        }
        for at in 0..saved.len() {
            let mut damaged = saved.clone();
            damaged[at] ^= 0x10;
            assert!(restored(&damaged, SIZE).is_err(), "byte {at}");
        }
    }

    /// With the right checksums.
    #[test]
    fn hostile_records_are_refused_without_allocating_for_them() {
        let record = |flags: u32, shift: u32, size: u64, name_len: u64| {
            let mut body = [flags.to_le_bytes(), shift.to_le_bytes()].concat();
            body.extend([size, name_len].map(u64::to_le_bytes).concat());
            body.extend(*b"name");
            body
        };
        for body in [
            record(0, 9, u64::MAX, 4),
            record(0, 200, 512, 4),
            record(0, 0, 512, 4),
            record(0, 9, 512, u64::MAX),
            record(0, 9, 512, 0),
            record(0, 9, 512, 4),
        ] {
            let mut saved = node().save(SaveKind::AtEnd(IMAGE));
            saved.truncate(16);
            saved.extend((body.len() as u64).to_le_bytes());
            saved.extend([0; 24]);
            saved.extend(crc32c(&body).to_le_bytes());
            saved.extend(crc32c(&saved).to_le_bytes());
            saved.extend(&body);
            assert!(restored(&saved, SIZE).is_err());
        }
    }
}
