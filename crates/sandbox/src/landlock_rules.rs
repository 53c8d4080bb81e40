//! Applies Landlock (landlock(7)) to the process: restricts the files that it may open, make and remove, and forbids
//! connections over TCP and signals to other processes.

use std::fmt;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};

/// The newest version of Landlock that this code knows; an older kernel restricts less.
const NEWEST_ABI: ABI = ABI::V6;

/// Permitted operations on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read a file, or everything in a folder.
    Read,
    /// Read and write a file or a device.
    Write,
    /// Make sockets in a folder, and remove what is in it.
    Sockets,
    /// Make files in a folder, write and remove what is in it.
    Files,
}

/// A path that stays accessible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule<'a> {
    /// A file, or a folder with all that is in it. A path that does not exist is ignored: it cannot be opened anyway.
    pub path: &'a Path,
    /// Permitted operations.
    pub access: Access,
}

/// The files that stay accessible.
#[derive(Clone, Copy, Debug)]
pub enum AccessibleFiles<'a> {
    /// All that the process's user may open. Nothing can be executed, and no folder, link or device be made.
    Any,
    /// Those of the rules.
    Only(&'a [PathRule<'a>]),
}

/// The restriction of files that the kernel enforces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileRestriction {
    /// None: the kernel has no Landlock, or it is switched off.
    Nothing,
    /// All files can be opened.
    Any,
    /// So many paths are accessible.
    Only(usize),
}

impl FileRestriction {
    /// Whether the kernel has Landlock and restricts files.
    pub fn is_enforced(&self) -> bool {
        *self != FileRestriction::Nothing
    }
}

impl fmt::Display for FileRestriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileRestriction::Nothing => {
                f.write_str("files: all, since this kernel has no Landlock")
            }
            FileRestriction::Any => {
                f.write_str("files: all, none to execute (Landlock; a monitor may add disks)")
            }
            FileRestriction::Only(count) => write!(f, "files: {count} paths (Landlock)"),
        }
    }
}

/// Restricts the calling thread, and the threads that it starts, to these files, without signals to other processes.
pub(crate) fn apply_landlock_allowing_tcp(rules: &[PathRule<'_>]) -> Result<(), RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(NEWEST_ABI))?;
    let mut ruleset = ruleset.scope(Scope::Signal)?.create()?;
    for PathRule { path, access } in rules {
        if let Ok(path) = PathFd::new(path) {
            ruleset = ruleset.add_rule(PathBeneath::new(path, landlock_rights_of(*access)))?;
        }
    }
    ruleset.restrict_self()?;
    Ok(())
}

/// Adds to the restrictions: no connections over TCP, no signals to other processes.
fn forbid_tcp_and_signals(ruleset: Ruleset) -> Result<Ruleset, RulesetError> {
    ruleset
        .handle_access(AccessNet::ConnectTcp)?
        .scope(Scope::Signal)
}

/// Restricts the calling thread, and the threads that it starts, to these files, without connections over TCP and
/// without signals to other processes. What no rule permits is refused.
pub(crate) fn apply_landlock(files: AccessibleFiles<'_>) -> Result<FileRestriction, RulesetError> {
    let mut restricted_rights = AccessFs::from_all(NEWEST_ABI);
    if let AccessibleFiles::Any = files {
        restricted_rights &= AccessFs::Execute
            | AccessFs::MakeBlock
            | AccessFs::MakeChar
            | AccessFs::MakeDir
            | AccessFs::MakeFifo
            | AccessFs::MakeSym
            | AccessFs::RemoveDir
            | AccessFs::Refer;
    }
    let ruleset = forbid_tcp_and_signals(Ruleset::default().handle_access(restricted_rights)?)?;
    let mut ruleset = ruleset.create()?;
    let mut path_count = 0;
    if let AccessibleFiles::Only(rules) = files {
        for PathRule { path, access } in rules {
            let Ok(path) = PathFd::new(path) else {
                continue;
            };
            ruleset = ruleset.add_rule(PathBeneath::new(path, landlock_rights_of(*access)))?;
            path_count += 1;
        }
    }
    let status = ruleset.restrict_self()?;
    Ok(match (status.landlock, files) {
        (LandlockStatus::NotEnabled | LandlockStatus::NotImplemented, _) => {
            FileRestriction::Nothing
        }
        (_, AccessibleFiles::Any) => FileRestriction::Any,
        (_, AccessibleFiles::Only(_)) => FileRestriction::Only(path_count),
    })
}

/// The rights of Landlock that an access needs.
fn landlock_rights_of(access: Access) -> BitFlags<AccessFs> {
    match access {
        Access::Read => AccessFs::ReadFile | AccessFs::ReadDir,
        Access::Write => {
            AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev
        }
        Access::Sockets => AccessFs::MakeSock | AccessFs::RemoveFile,
        Access::Files => {
            AccessFs::ReadFile
                | AccessFs::ReadDir
                | AccessFs::WriteFile
                | AccessFs::Truncate
                | AccessFs::MakeReg
                | AccessFs::RemoveFile
        }
    }
}
