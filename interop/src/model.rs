//! Model of the disk: the contents that each sector must hold, and the bytes that prove it.
//!
//! A sector is stamped with its own number and a seed: the first two words carry both in the
//! clear, so that a failure can say which sector and which write it found instead; every other
//! word is scrambled from both, so that no byte is free of them. The model keeps one seed per
//! sector and no bytes.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::random::mix;
use crate::{SECTOR_BYTES, index};

/// The seed of a sector that reads as zeroes.
pub const ZEROES: u64 = 0;

/// Several sectors in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first sector.
    pub sector: u64,
    /// How many.
    pub sectors: u64,
}

impl Extent {
    /// The extent of `sectors` sectors from `sector` on.
    pub fn new(sector: u64, sectors: u64) -> Self {
        Self { sector, sectors }
    }

    /// Its length in bytes.
    pub fn bytes(self) -> usize {
        index(self.sectors) * SECTOR_BYTES
    }

    /// The sector behind it.
    pub fn end(self) -> u64 {
        self.sector + self.sectors
    }
}

/// Fills `bytes`, whole sectors, with what `seed` puts on the disk from `sector` on.
pub fn stamp(bytes: &mut [u8], sector: u64, seed: u64) {
    let (sectors, rest) = bytes.as_chunks_mut::<SECTOR_BYTES>();
    assert!(rest.is_empty(), "stamps are whole sectors");
    for (number, bytes) in (sector..).zip(sectors) {
        stamp_sector(bytes, number, seed);
    }
}

fn stamp_sector(bytes: &mut [u8; SECTOR_BYTES], sector: u64, seed: u64) {
    if seed == ZEROES {
        bytes.fill(0);
        return;
    }
    let key = mix(sector ^ mix(seed));
    let (words, _) = bytes.as_chunks_mut::<8>();
    for (i, word) in (0_u64..).zip(words) {
        *word = match i {
            0 => sector,
            1 => seed,
            _ => mix(key.wrapping_add(i)),
        }
        .to_le_bytes();
    }
}

/// A sector that does not hold what it must.
#[derive(Debug)]
pub struct Mismatch {
    sector: u64,
    expected_seed: u64,
    found: Box<[u8; SECTOR_BYTES]>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {} must hold ", self.sector)?;
        match self.expected_seed {
            ZEROES => write!(f, "zeroes")?,
            seed => write!(f, "the stamp of seed {seed}")?,
        }
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.found[i * 8..i * 8 + 8]);
            u64::from_le_bytes(word)
        };
        let (sector, seed) = (word(0), word(1));
        let mut whole = [0; SECTOR_BYTES];
        stamp_sector(&mut whole, sector, seed);
        if whole == *self.found {
            return match seed {
                ZEROES => write!(f, ", found zeroes"),
                seed => write!(f, ", found sector {sector} of seed {seed}"),
            };
        }
        stamp_sector(&mut whole, self.sector, self.expected_seed);
        let wrong = whole.iter().zip(self.found.iter()).filter(|(a, b)| a != b);
        let first = whole
            .iter()
            .zip(self.found.iter())
            .position(|(a, b)| a != b);
        write!(
            f,
            ", found something else: {} bytes differ, the first at {}; it starts with {:02x?}",
            wrong.count(),
            first.unwrap_or(0),
            &self.found[..16]
        )
    }
}

impl std::error::Error for Mismatch {}

/// What part of a disk must hold.
#[derive(Debug, Clone)]
pub struct Model {
    first: u64,
    seeds: Vec<u64>,
}

impl Model {
    /// A part of a disk that holds zeroes.
    pub fn zeroes(extent: Extent) -> Self {
        Self {
            first: extent.sector,
            seeds: vec![ZEROES; index(extent.sectors)],
        }
    }

    /// The part that it describes.
    pub fn extent(&self) -> Extent {
        Extent::new(self.first, self.seeds.len() as u64)
    }

    /// Notes that `extent` was written with `seed`, or zeroed with [`ZEROES`].
    pub fn set(&mut self, extent: Extent, seed: u64) {
        let start = index(extent.sector - self.first);
        self.seeds[start..start + index(extent.sectors)].fill(seed);
    }

    /// The seed that `sector` was last written with.
    pub fn seed(&self, sector: u64) -> u64 {
        self.seeds[index(sector - self.first)]
    }

    /// The bytes that `extent` must hold.
    pub fn bytes(&self, extent: Extent) -> Vec<u8> {
        let mut bytes = vec![0; extent.bytes()];
        let (sectors, _) = bytes.as_chunks_mut::<SECTOR_BYTES>();
        for (number, sector) in (extent.sector..).zip(sectors) {
            stamp_sector(sector, number, self.seed(number));
        }
        bytes
    }

    /// Compares `bytes`, read from `sector` on, with the model.
    ///
    /// # Errors
    /// The first sector that differs.
    pub fn check(&self, sector: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let (sectors, rest) = bytes.as_chunks::<SECTOR_BYTES>();
        assert!(rest.is_empty(), "only whole sectors are compared");
        let mut expected = [0; SECTOR_BYTES];
        for (number, found) in (sector..).zip(sectors) {
            let expected_seed = self.seed(number);
            stamp_sector(&mut expected, number, expected_seed);
            if expected != *found {
                return Err(Mismatch {
                    sector: number,
                    expected_seed,
                    found: Box::new(*found),
                });
            }
        }
        Ok(())
    }

    /// Compares an image with the model, past the server.
    ///
    /// # Panics
    /// When the file cannot be read or a sector differs.
    pub fn assert_file(&self, path: &Path) {
        let file = File::open(path).expect("the image can be opened");
        let mut bytes = vec![0; self.extent().bytes()];
        file.read_exact_at(&mut bytes, self.first * SECTOR_BYTES as u64)
            .expect("the image is as long as the model");
        if let Err(mismatch) = self.check(self.first, &bytes) {
            panic!("{}: {mismatch}", path.display());
        }
    }

    /// Writes what the model describes into a file, holes where it is zero.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        if file.metadata()?.len() < self.extent().end() * SECTOR_BYTES as u64 {
            file.set_len(self.extent().end() * SECTOR_BYTES as u64)?;
        }
        let mut sector = [0; SECTOR_BYTES];
        for number in self.first..self.extent().end() {
            if self.seed(number) != ZEROES {
                stamp_sector(&mut sector, number, self.seed(number));
                file.write_all_at(&sector, number * SECTOR_BYTES as u64)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> (Model, Vec<u8>) {
        let mut model = Model::zeroes(Extent::new(100, 8));
        model.set(Extent::new(102, 4), 7);
        let bytes = model.bytes(model.extent());
        (model, bytes)
    }

    fn complaint(model: &Model, bytes: &[u8]) -> String {
        let mismatch = model.check(100, bytes).expect_err("it differs");
        mismatch.to_string()
    }

    #[test]
    fn matching_data_passes() {
        let (model, bytes) = written();
        assert!(model.check(100, &bytes).is_ok());
        assert!(bytes[..1024].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn comparison_depends_on_every_byte() {
        let (model, bytes) = written();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert!(model.check(100, &bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_misplaced_sector_is_named() {
        let (model, mut bytes) = written();
        bytes.copy_within(3 * 512..4 * 512, 2 * 512);
        let text = complaint(&model, &bytes);
        assert!(
            text.contains("sector 102") && text.contains("sector 103 of seed 7"),
            "{text}"
        );
    }

    #[test]
    fn an_old_or_lost_write_is_named() {
        let (model, mut bytes) = written();
        stamp(&mut bytes[5 * 512..6 * 512], 105, 6);
        let text = complaint(&model, &bytes);
        assert!(text.contains("found sector 105 of seed 6"), "{text}");
        bytes[5 * 512..6 * 512].fill(0);
        let text = complaint(&model, &bytes);
        assert!(text.contains("found zeroes"), "{text}");
    }

    #[test]
    fn model_matches_a_written_file() {
        let (model, _) = written();
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("model");
        model.write_to(&path).expect("room");
        model.assert_file(&path);
        let file = File::options().write(true).open(&path).expect("the file");
        file.write_all_at(&[1], 104 * 512 + 511).expect("room");
        let caught = std::panic::catch_unwind(|| model.assert_file(&path));
        assert!(caught.is_err(), "one byte was changed");
    }
}
