//! Packages of a Debian release on a machine that may run another: downloaded and verified by apt, unpacked, never
//! installed.
//!
//! apt resolves them as for an empty system, with lists and archives of its own. No root rights are needed. The system's
//! packages and lists stay as they are; its settings of apt count, such as a proxy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::error::{Error, Result, debian_program, run};

const MIRROR: &str = "http://deb.debian.org/debian";
/// The keys that sign the releases.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A source of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
    /// Debian 13 with newer versions of some packages.
    TrixieBackports,
}

impl Release {
    /// The suites of the mirror; the last one is preferred.
    const fn suites(self) -> &'static [&'static str] {
        match self {
            Self::Bookworm => &["bookworm"],
            Self::Trixie => &["trixie"],
            Self::TrixieBackports => &["trixie", "trixie-backports"],
        }
    }

    const fn preferred(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::TrixieBackports => "trixie-backports",
        }
    }
}

/// apt for one release. It knows of no installed package and leaves the system's files alone.
pub(crate) struct Apt {
    release: Release,
    scratch: tempfile::TempDir,
}

impl Apt {
    /// Fetches the release's lists of packages, into a folder of the cache that goes with the value.
    pub(crate) fn new(cache: &Cache, release: Release) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::NotDebian {
                found: std::env::consts::ARCH.to_owned(),
            });
        }
        if !Path::new(KEYRING).is_file() {
            return Err(Error::NoPackages {
                release: release.preferred(),
                detail: format!("{KEYRING} is missing: apt-get install debian-archive-keyring"),
            });
        }
        let apt = Self {
            release,
            scratch: cache.scratch()?,
        };
        for name in ["lists/partial", "archives/partial", "root"] {
            let path = apt.path(name);
            fs::create_dir_all(&path).map_err(Error::io(format!("create {}", path.display())))?;
        }
        let sources: String = release
            .suites()
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {MIRROR} {suite} main\n"))
            .collect();
        for (name, content) in [("status", String::new()), ("sources.list", sources)] {
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

    /// The tree of all packages that were unpacked.
    pub(crate) fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// Unpacks the packages and what they depend on.
    pub(crate) fn unpack_with_dependencies(&self, packages: &[&str]) -> Result<()> {
        let mut install = vec![
            "--yes",
            "--no-install-recommends",
            "--download-only",
            "--target-release",
            self.release.preferred(),
            "install",
        ];
        install.extend(packages);
        self.run("apt-get", &install)?;
        self.unpack_archives()
    }

    /// Unpacks one package and nothing that it depends on.
    pub(crate) fn unpack_alone(&self, package: &str) -> Result<()> {
        self.run("apt-get", &["download", package])?;
        self.unpack_archives()
    }

    /// The versions of those that were unpacked, as Debian writes them.
    pub(crate) fn versions(&self, packages: &[&str]) -> Result<Vec<(String, String)>> {
        let dpkg_deb = debian_program("dpkg-deb")?;
        let mut versions = Vec::new();
        for archive in self.archives()? {
            let fields = run(Command::new(&dpkg_deb)
                .args(["--show", "--showformat", "${Package} ${Version}"])
                .arg(&archive))?;
            let fields = String::from_utf8_lossy(&fields).into_owned();
            if let Some((name, version)) = fields.split_once(' ')
                && packages.contains(&name)
            {
                versions.push((name.to_owned(), version.to_owned()));
            }
        }
        Ok(versions)
    }

    /// What `apt-cache` prints.
    pub(crate) fn query(&self, arguments: &[&str]) -> Result<String> {
        self.run("apt-cache", arguments)
    }

    fn unpack_archives(&self) -> Result<()> {
        let dpkg_deb = debian_program("dpkg-deb")?;
        for archive in self.archives()? {
            run(Command::new(&dpkg_deb)
                .arg("-x")
                .arg(&archive)
                .arg(self.root()))?;
        }
        Ok(())
    }

    fn archives(&self) -> Result<Vec<PathBuf>> {
        let folder = self.path("archives");
        let reading = || Error::io(format!("read {}", folder.display()));
        let mut archives = Vec::new();
        for entry in fs::read_dir(&folder).map_err(reading())? {
            let path = entry.map_err(reading())?.path();
            if path.extension().is_some_and(|ending| ending == "deb") {
                archives.push(path);
            }
        }
        Ok(archives)
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
        match run(command.args(arguments)) {
            Ok(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Err(Error::CommandFailed { output, .. }) => Err(Error::NoPackages {
                release: self.release.preferred(),
                detail: format!(
                    "from {MIRROR}, `{program} {}`:\n{output}",
                    arguments.join(" ")
                ),
            }),
            Err(other) => Err(other),
        }
    }
}
