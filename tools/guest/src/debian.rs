//! Packages of a Debian release on a machine that may run another: downloaded and verified by apt, unpacked, never
//! installed.
//!
//! apt resolves them as for an empty system, with lists and archives of its own. No root rights are needed. The system's
//! packages and lists stay as they are; its settings of apt count, such as a proxy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::error::{Error, Result, find_program, run};

const MIRROR: &str = "http://deb.debian.org/debian";
/// The keys that sign the releases.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt for one release. It knows of no installed package and leaves the system's files alone.
pub(crate) struct Apt {
    /// The release or its backports.
    preferred: &'static str,
    scratch: tempfile::TempDir,
}

impl Apt {
    /// Fetches the lists of packages of these suites, of which the last one is preferred, into a folder of the cache that goes
    /// with the value.
    pub(crate) fn new(cache: &Cache, suites: &[&'static str]) -> Result<Self> {
        if !Path::new(KEYRING).is_file() {
            return Err(Error::new(format!(
                "{KEYRING} is missing: apt-get install debian-archive-keyring"
            )));
        }
        let apt = Self {
            preferred: suites.last().copied().unwrap_or_default(),
            scratch: cache.scratch()?,
        };
        for name in ["lists/partial", "archives/partial", "root"] {
            let path = apt.path(name);
            fs::create_dir_all(&path).map_err(Error::io(format!("create {}", path.display())))?;
        }
        let sources: String = suites
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {MIRROR} {suite} main\n"))
            .collect();
        for (name, content) in [("status", ""), ("sources.list", &*sources)] {
            let path = apt.path(name);
            fs::write(&path, content).map_err(Error::io(format!("write {}", path.display())))?;
        }
        apt.run("apt-get", &["update"])?;
        Ok(apt)
    }

    /// A folder on the cache's file system, for what is to be renamed into it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Unpacks the packages and what they depend on; returns the root of the tree.
    pub(crate) fn unpack_with_dependencies(&self, packages: &[&str]) -> Result<PathBuf> {
        let mut install = vec!["--yes", "--no-install-recommends", "--download-only"];
        install.extend(["--target-release", self.preferred, "install"]);
        install.extend(packages);
        self.run("apt-get", &install)?;
        self.unpack()
    }

    /// Unpacks one package and nothing that it depends on; returns the root of the tree.
    pub(crate) fn unpack_alone(&self, package: &str) -> Result<PathBuf> {
        self.run("apt-get", &["download", package])?;
        self.unpack()
    }

    /// What `apt-cache` prints.
    pub(crate) fn query(&self, arguments: &[&str]) -> Result<String> {
        self.run("apt-cache", arguments)
    }

    fn unpack(&self) -> Result<PathBuf> {
        let root = self.path("root");
        unpack_archives(&self.path("archives"), &root)?;
        Ok(root)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let path = |name: &str| self.path(name).display().to_string();
        let settings = [
            format!("Dir::State={}", path("")),
            format!("Dir::State::lists={}", path("lists")),
            format!("Dir::State::status={}", path("status")),
            format!("Dir::Cache={}", path("")),
            format!("Dir::Cache::archives={}", path("archives")),
            format!("Dir::Etc::sourcelist={}", path("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures=amd64".to_owned(),
            // As root, apt would download as a user who cannot write here.
            "APT::Sandbox::User=root".to_owned(),
            // A list that cannot be fetched is an error and not a warning.
            "APT::Update::Error-Mode=any".to_owned(),
            // Of the lists, only those of packages.
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        let mut command = Command::new(debian_program(program)?);
        // `download` puts archives into the working folder.
        command
            .arg("-q")
            .env("LC_ALL", "C")
            .current_dir(self.path("archives"));
        for setting in settings {
            command.args(["-o", &setting]);
        }
        run(command.args(arguments))
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .map_err(|error| {
                Error::new(format!(
                    "Debian's packages of {} cannot be had: let this machine reach {MIRROR}\n{error}",
                    self.preferred
                ))
            })
    }
}

/// Unpacks each archive in a folder.
pub(crate) fn unpack_archives(archives: &Path, root: &Path) -> Result<()> {
    let dpkg_deb = debian_program("dpkg-deb")?;
    let reading = || Error::io(format!("read {}", archives.display()));
    for entry in fs::read_dir(archives).map_err(reading())? {
        let path = entry.map_err(reading())?.path();
        if path.extension().is_some_and(|ending| ending == "deb") {
            run(Command::new(&dpkg_deb).arg("-x").arg(&path).arg(root))?;
        }
    }
    Ok(())
}

/// A program that every Debian has: its absence means another distribution.
pub(crate) fn debian_program(program: &str) -> Result<PathBuf> {
    find_program(program, "apt dpkg").map_err(|error| {
        Error::new(format!(
            "guests here use Debian's kernel and programs, and this is no Debian: {error}"
        ))
    })
}
