//! Errors of making a package.

use std::io;
use std::process::ExitStatus;

/// What went wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tool is not there.
    #[error("`{program}` cannot be run ({source}): apt-get install dpkg binutils gzip coreutils")]
    Missing {
        /// Its name.
        program: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// A tool failed.
    #[error("`{command}` failed ({status})\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to standard error.
        output: String,
    },
    /// A file or folder.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was being done, and with which file.
        doing: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The package of a library is unknown.
    #[error(
        "blockplane needs {name}, and the package that has it is unknown: add it to xtask/src/package/libraries.rs"
    )]
    UnknownLibrary {
        /// Its name.
        name: String,
    },
    /// A crate under a license that is not known here.
    #[error(
        "{name} is under the license '{license}', which xtask/src/package/notices.rs does not know: look whether the \
         program may be distributed with it, then add it there"
    )]
    UnknownLicense {
        /// The crate.
        name: String,
        /// What its manifest says.
        license: String,
    },
    /// What cargo tells of the programs' crates is not what is expected.
    #[error(
        "`cargo tree` and `cargo metadata` do not describe the same crates: is this cargo of the version in rust-toolchain.toml?"
    )]
    Metadata,
    /// The changelog speaks of another version.
    #[error(
        "packaging/debian/changelog begins with '{first}', but this is version {version}: add an entry for it"
    )]
    Changelog {
        /// Its first line.
        first: String,
        /// The workspace's version.
        version: &'static str,
    },
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        |source| Error::Io { doing, source }
    }
}
