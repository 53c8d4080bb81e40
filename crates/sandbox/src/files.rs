//! Files (landlock(7)): what may be opened, made and removed from now on.

use std::fmt;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};

/// The newest that was read; a kernel that has less does less.
const READ: ABI = ABI::V6;

/// What may be done with what a path names.
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

/// One thing that stays allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule<'a> {
    /// A file, or a folder with all that is in it. What does not exist is left out: it cannot be opened either.
    pub path: &'a Path,
    /// What may be done.
    pub access: Access,
}

/// Which files stay reachable.
#[derive(Clone, Copy, Debug)]
pub enum Files<'a> {
    /// All that the process's user may open, but nothing is executed, and no folder, link or device is made.
    Any,
    /// These.
    Only(&'a [Rule<'a>]),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Enforced {
    /// The kernel has no Landlock, or it is switched off.
    NotThere,
    /// All files can be opened.
    Any,
    /// As many paths.
    Only(usize),
}

impl Enforced {
    pub fn is_complete(&self) -> bool {
        *self != Enforced::NotThere
    }
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Enforced::NotThere => f.write_str("files: all, since this kernel has no Landlock"),
            Enforced::Any => {
                f.write_str("files: all, none to execute (Landlock; a monitor may add disks)")
            }
            Enforced::Only(count) => write!(f, "files: {count} paths (Landlock)"),
        }
    }
}

/// No connections over TCP, no signals to other processes.
fn nothing_connects(ruleset: Ruleset) -> Result<Ruleset, RulesetError> {
    ruleset
        .handle_access(AccessNet::ConnectTcp)?
        .scope(Scope::Signal)
}

/// Restricts the calling thread, and those that it starts.
pub(crate) fn restrict(files: Files<'_>) -> Result<Enforced, RulesetError> {
    let mut handled = AccessFs::from_all(READ);
    if let Files::Any = files {
        handled &= AccessFs::Execute
            | AccessFs::MakeBlock
            | AccessFs::MakeChar
            | AccessFs::MakeDir
            | AccessFs::MakeFifo
            | AccessFs::MakeSym
            | AccessFs::RemoveDir
            | AccessFs::Refer;
    }
    let ruleset = nothing_connects(Ruleset::default().handle_access(handled)?)?;
    let mut ruleset = ruleset.create()?;
    let mut count = 0;
    if let Files::Only(rules) = files {
        for Rule { path, access } in rules {
            let Ok(path) = PathFd::new(path) else {
                continue;
            };
            ruleset = ruleset.add_rule(PathBeneath::new(path, rights(*access)))?;
            count += 1;
        }
    }
    let status = ruleset.restrict_self()?;
    Ok(match (status.landlock, files) {
        (LandlockStatus::NotEnabled | LandlockStatus::NotImplemented, _) => Enforced::NotThere,
        (_, Files::Any) => Enforced::Any,
        (_, Files::Only(_)) => Enforced::Only(count),
    })
}

fn rights(access: Access) -> BitFlags<AccessFs> {
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
