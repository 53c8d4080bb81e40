//! `qemu.qmp`, the Python client of QEMU's own project for its monitors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The version that is tested with.
const PACKAGE: &str = "qemu.qmp==0.0.6";

/// The folder of its programs, `python3` and `qmp-shell` among them. It is installed when that is asked for the
/// first time, below the build folder, which takes python3 with venv, and the network.
///
/// # Errors
/// Why it cannot be had.
pub fn programs() -> Result<&'static Path, &'static str> {
    static PROGRAMS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(install);
    programs.as_deref().map_err(String::as_str)
}

fn install() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/qemu.qmp");
    let programs = folder.join("bin");
    let python = programs.join("python3");
    if run(Command::new(&python).args(["-c", "import qemu.qmp"])).is_ok() {
        return Ok(programs);
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&folder))?;
    let pip = [
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        PACKAGE,
    ];
    run(Command::new(&python).args(pip))?;
    Ok(programs)
}

/// The last line of what it said if it fails.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or("it failed and said nothing");
    Err(format!("{PACKAGE} is not to be had: {last}"))
}
