//! Model of the disk: the contents that each sector must hold, and the bytes that prove it.
//!
//! A sector is stamped with its own number and a seed: the first two words carry both in the
//! clear, so that a failure can say which sector and which write it found instead; every other
//! word is scrambled from both, so that no byte is free of them. The model keeps one seed per
//! sector and no bytes.

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

/// How a sector is wrong that must hold the stamp of a seed.
#[cold]
fn mismatch(
    sector: u64,
    seed: u64,
    expected: &[u8; SECTOR_BYTES],
    found: &[u8; SECTOR_BYTES],
) -> String {
    let named = |sector: u64, seed: u64| match seed {
        ZEROES => "zeroes".to_owned(),
        seed => format!("sector {sector} of seed {seed}"),
    };
    let (words, _) = found.as_chunks::<8>();
    let [its_sector, its_seed] = [words[0], words[1]].map(u64::from_le_bytes);
    let mut whole = [0; SECTOR_BYTES];
    stamp_sector(&mut whole, its_sector, its_seed);
    let differing = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    let found = match whole == *found {
        true => named(its_sector, its_seed),
        false => format!(
            "something else ({differing} bytes differ): {:02x?}",
            &found[..16]
        ),
    };
    format!(
        "sector {sector} must hold {}, found {found}",
        named(sector, seed)
    )
}

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

    /// Compares `bytes`, read from `sector` on, with the model.
    ///
    /// # Errors
    /// The first sector that differs.
    pub fn check(&self, sector: u64, bytes: &[u8]) -> Result<(), String> {
        let (sectors, rest) = bytes.as_chunks::<SECTOR_BYTES>();
        assert!(rest.is_empty(), "only whole sectors are compared");
        let mut expected = [0; SECTOR_BYTES];
        for (number, found) in (sector..).zip(sectors) {
            let expected_seed = self.seed(number);
            stamp_sector(&mut expected, number, expected_seed);
            if expected != *found {
                return Err(mismatch(number, expected_seed, &expected, found));
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

    #[test]
    fn comparison_depends_on_every_byte() {
        let mut model = Model::zeroes(Extent::new(100, 8));
        model.set(Extent::new(102, 4), 7);
        let mut bytes = vec![0; model.extent().bytes()];
        stamp(&mut bytes[2 * 512..6 * 512], 102, 7);
        assert!(model.check(100, &bytes).is_ok());
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(model.check(100, &bytes).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
        // an earlier write, a lost one, and one at a wrong place
        stamp(&mut bytes[5 * 512..6 * 512], 105, 6);
        let old = model.check(100, &bytes).expect_err("it differs");
        assert!(old.contains("found sector 105 of seed 6"), "{old}");
        bytes[5 * 512..6 * 512].fill(0);
        let lost = model.check(100, &bytes).expect_err("it differs");
        assert!(lost.contains("found zeroes"), "{lost}");
        bytes.copy_within(3 * 512..4 * 512, 2 * 512);
        let misplaced = model.check(100, &bytes).expect_err("it differs");
        assert!(misplaced.contains("sector 103 of seed 7"), "{misplaced}");
    }
}
