//! A package that was made once for all tests, and folders that stand for machines.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;
use test_support::process::measuring_program;
use test_support::report::installed;

/// The package of the blockplane under test.
pub fn package() -> &'static Path {
    static PACKAGE: LazyLock<PathBuf> = LazyLock::new(|| {
        // Each run overwrites the last one's.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let programs = xtask::package::Programs {
            daemon: &binary(),
            measuring: measuring_program(),
        };
        // Quick rather than small.
        xtask::package::debian(programs, folder, &["-Zgzip", "-z1"])
            .unwrap_or_else(|error| panic!("{error}"))
    });
    &PACKAGE
}

pub fn binary() -> PathBuf {
    guest::blockplane().unwrap()
}

/// Whether there is what makes and installs packages, and these programs besides; reports that the calling test does not run if
/// one is missing.
pub fn has_tools(more: &[&str]) -> bool {
    let packages = ["dpkg", "dpkg-deb", "gzip", "readelf", "strip"];
    packages.iter().chain(more).all(|tool| installed(tool))
}

/// What a tool prints; it must succeed.
#[track_caller]
pub fn output<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).env("LC_ALL", "C").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A folder that dpkg takes for the root of a machine on which nothing is installed.
pub struct Machine(TempDir);

impl Machine {
    pub fn new() -> Self {
        let machine = Machine(tempfile::tempdir().unwrap());
        for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
            fs::create_dir_all(machine.join(folder)).unwrap();
        }
        fs::write(machine.join("var/lib/dpkg/status"), "").unwrap();
        machine
    }

    /// One with the package.
    pub fn installed() -> Self {
        let machine = Machine::new();
        machine.dpkg(&["--install".as_ref(), package().as_os_str()]);
        machine
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub fn has(&self, path: &str) -> bool {
        self.join(path).exists()
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The scripts of the package run here, with a variable for the root; there is no C library in it.
    #[track_caller]
    pub fn dpkg<S: AsRef<OsStr>>(&self, arguments: &[S]) {
        let mut command = Command::new("dpkg");
        command
            .arg(format!("--root={}", self.root().display()))
            .args(["--force-script-chrootless", "--force-depends"])
            .args(["--force-not-root", "--force-bad-path", "--force-unsafe-io"])
            .args(arguments);
        let output = command.output().unwrap();
        let [said, wrong] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{command:?}: {said}{wrong}");
    }
}
