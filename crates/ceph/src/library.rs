//! Ceph's libraries, loaded once per process, and their functions.

mod functions;

use std::sync::OnceLock;

use functions::{Libraries, LoadedLibrary};
use libloading::Library;

pub(crate) use functions::{
    DIFF_STOPPED, EXCLUSIVE_LOCK_FEATURE, FAST_DIFF_FEATURE, FAST_DIFF_INVALID_FLAG, Functions,
    ImageInfo, JOURNALING_FEATURE, LOCK_MODE_EXCLUSIVE, RawCluster, RawCompletion, RawImage,
    RawPool, Watcher, ZEROES_THICK_PROVISION,
};

const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

/// Failure to load Ceph's libraries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A library is missing or cannot be loaded.
    #[error(
        "cannot load {library}: {error}; install Debian's package librbd1, which brings librados2"
    )]
    Library {
        /// Its file.
        library: &'static str,
        /// The dynamic linker's error.
        error: String,
    },
    /// A library lacks a function.
    #[error("{library} has no function {function}: Ceph 16 (Pacific) or newer is needed")]
    Function {
        /// Its file.
        library: &'static str,
        /// The function.
        function: &'static str,
    },
}

/// Loads the libraries, unless they are loaded: connecting does it too, but a sandbox may deny it by then.
///
/// # Errors
/// [`LoadError`]; a later call tries again.
pub fn load() -> Result<(), LoadError> {
    functions().map(|_| ())
}

/// The functions of the libraries, which are loaded if they are not.
pub(crate) fn functions() -> Result<&'static Functions, LoadError> {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    if let Some(functions) = FUNCTIONS.get() {
        return Ok(functions);
    }
    let loaded = Functions::resolve(Libraries {
        rados: open(RADOS)?,
        rbd: open(RBD)?,
    })?;
    Ok(FUNCTIONS.get_or_init(|| loaded))
}

/// Loads a library, which then stays loaded: its threads may run until the process ends.
fn open(file: &'static str) -> Result<LoadedLibrary, LoadError> {
    // SAFETY: the initialisers of Ceph's libraries run here; they need nothing of the process.
    let library = unsafe { Library::new(file) }.map_err(|error| LoadError::Library {
        library: file,
        error: error.to_string(),
    })?;
    Ok(LoadedLibrary {
        file,
        library: Box::leak(Box::new(library)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_the_package_that_has_it() {
        let error = open("librbd.so.missing").err().unwrap().to_string();
        for part in ["librbd.so.missing", "install", "librbd1"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_library_that_lacks_a_function_is_too_old() {
        let other = open("libc.so.6").unwrap();
        let (rados, rbd) = (other, other);
        let error = Functions::resolve(Libraries { rados, rbd }).err().unwrap();
        assert!(error.to_string().contains("Ceph 16"), "{error}");
    }
}
