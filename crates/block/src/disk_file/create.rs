//! Creates sparse raw disk images, and leaves existing ones as they are.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use crate::error::NodeError;

/// Result of [`create_sparse_or_check_size`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The image was created.
    New,
    /// The image existed with the same size.
    Existed,
}

/// Creates a sparse image of `size` bytes unless it exists with that size. An existing file is never changed.
///
/// # Errors
/// [`NodeError::SizeDiffers`] when it exists with another size, [`NodeError::Empty`] for a size of 0;
/// otherwise the kernel's error.
pub fn create_sparse_or_check_size(path: &Path, size: u64) -> Result<CreateOutcome, NodeError> {
    if size == 0 {
        return Err(NodeError::Empty {
            path: path.to_owned(),
        });
    }
    match OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
    {
        Ok(file) => match file.set_len(size) {
            Ok(()) => Ok(CreateOutcome::New),
            Err(error) => {
                // A disk of the wrong size must not be left behind.
                let _ = std::fs::remove_file(path);
                Err(NodeError::Io {
                    path: path.to_owned(),
                    what: "setting its size",
                    error,
                })
            }
        },
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata = std::fs::metadata(path).map_err(|error| NodeError::Open {
                path: path.to_owned(),
                error,
            })?;
            let found = metadata.len();
            if metadata.is_file() && found != size {
                return Err(NodeError::SizeDiffers {
                    path: path.to_owned(),
                    found,
                    wanted: size,
                });
            }
            Ok(CreateOutcome::Existed)
        }
        Err(error) => Err(NodeError::Open {
            path: path.to_owned(),
            error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_new_disk_is_sparse_and_an_existing_one_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        let dangling = create_sparse_or_check_size(&link, 512).unwrap_err();
        assert!(matches!(dangling, NodeError::Open { .. }), "{dangling}");
        let created = create_sparse_or_check_size(&path, 10 << 30);
        assert_eq!(created.unwrap(), CreateOutcome::New);
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (10 << 30, 0));
        for path in [&path, &link] {
            let outcome = create_sparse_or_check_size(path, 10 << 30).unwrap();
            assert_eq!(outcome, CreateOutcome::Existed);
        }
        let error = create_sparse_or_check_size(&path, 11 << 30).unwrap_err();
        assert!(matches!(error, NodeError::SizeDiffers { .. }), "{error}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10 << 30);
    }

    #[test]
    fn a_disk_that_cannot_be_created_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        for (size, part) in [(0, "at least one sector"), (u64::MAX, "setting its size")] {
            let error = create_sparse_or_check_size(&path, size).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(!path.exists());
        }
    }
}
