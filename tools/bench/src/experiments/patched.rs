//! The second server of an experiment: blockplane, built with a patch that changes one mechanism.

use std::path::PathBuf;

/// One `--patched NAME=PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patched {
    /// The patch: its file name in `experiments/patches`, without the extension.
    pub patch: String,
    /// The program that was built with it.
    pub program: PathBuf,
}

impl Patched {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((patch, program)) if !patch.is_empty() && !program.is_empty() => Ok(Patched {
                patch: patch.to_owned(),
                program: program.into(),
            }),
            _ => Err("not NAME=PATH, such as late-notify=target/patched/blockplane".to_owned()),
        }
    }
}
