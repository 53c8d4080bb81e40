//! A corpus of a fuzz target as one file: inputs one after the other, each behind its length in four bytes (little endian). Sorted, so
//! that the same inputs always make the same file.

use std::io;
use std::path::Path;

/// Longest input that is kept: what needs more is looked for anew.
const LONGEST: usize = 4096;

/// The largest file: the shortest inputs are kept.
const LARGEST: usize = 48 << 10;

/// Puts the inputs of a folder into a file. How many there are, and their bytes.
///
/// # Errors
/// The folder that cannot be read, or the file that cannot be written.
pub fn pack(folder: &Path, file: &Path) -> Result<(usize, usize), String> {
    let read = || -> io::Result<Vec<Vec<u8>>> {
        let entries = std::fs::read_dir(folder)?;
        entries.map(|entry| std::fs::read(entry?.path())).collect()
    };
    let mut inputs = read().map_err(|error| format!("{}: {error}", folder.display()))?;
    inputs.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    let (count, bytes) = join(&inputs);
    std::fs::write(file, &bytes).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok((count, bytes.len()))
}

fn join(inputs: &[Vec<u8>]) -> (usize, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut count = 0;
    for input in inputs {
        let Some(len) = u32::try_from(input.len())
            .ok()
            .filter(|_| input.len() <= LONGEST)
        else {
            continue;
        };
        if bytes.len() + 4 + input.len() > LARGEST {
            break;
        }
        bytes.extend(len.to_le_bytes());
        bytes.extend(input);
        count += 1;
    }
    (count, bytes)
}

/// Puts the inputs of a file into a folder, beside those that are there.
///
/// # Errors
/// The file that cannot be read or written.
pub fn unpack(file: &Path, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (number, input) in read(file)?.iter().enumerate() {
        let path = folder.join(format!("kept-{number}"));
        std::fs::write(&path, input).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// The inputs of a file.
///
/// # Errors
/// The file that cannot be read, or is no corpus.
pub fn read(file: &Path) -> Result<Vec<Vec<u8>>, String> {
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    split(&bytes).ok_or_else(|| format!("{}: no corpus: it ends within an input", file.display()))
}

fn split(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut inputs = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (input, rest) = rest.split_at_checked(len)?;
        inputs.push(input.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpus_round_trips_and_a_truncated_one_is_refused() {
        let inputs = vec![vec![], vec![1], vec![2; 300]];
        let (count, bytes) = join(&inputs);
        assert_eq!(count, 3);
        assert_eq!(split(&bytes).unwrap(), inputs);
        assert!(split(&bytes[..bytes.len() - 1]).is_none());
        assert!(split(&[1, 0]).is_none());
    }

    #[test]
    fn corpus_has_a_size_limit() {
        let inputs = vec![vec![7; 1000]; 1000];
        assert!(join(&inputs).1.len() <= LARGEST);
        assert_eq!(join(&[vec![0; LONGEST + 1]]).0, 0);
    }
}
