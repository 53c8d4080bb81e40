//! Contents of the package, laid out below a folder as they are to be below `/`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::package::tools::run;
use crate::package::{Error, Programs, notices, source};

/// Files of the project, and where they go.
const COPIED: &[(&str, &str)] = &[
    (
        "packaging/systemd/blockplane.service",
        "usr/lib/systemd/system/blockplane.service",
    ),
    (
        "packaging/systemd/blockplane@.service",
        "usr/lib/systemd/system/blockplane@.service",
    ),
    (
        "packaging/systemd/blockplane@.socket",
        "usr/lib/systemd/system/blockplane@.socket",
    ),
    (
        "packaging/systemd/sysusers.conf",
        "usr/lib/sysusers.d/blockplane.conf",
    ),
    (
        "packaging/systemd/tmpfiles.conf",
        "usr/lib/tmpfiles.d/blockplane.conf",
    ),
    (
        "packaging/debian/blockplane.toml",
        "etc/blockplane/blockplane.toml",
    ),
    (
        "packaging/debian/lintian-overrides",
        "usr/share/lintian/overrides/blockplane",
    ),
    (
        "docs/blockplane.toml",
        "usr/share/doc/blockplane/examples/blockplane.toml",
    ),
    (
        "docs/configuration.md",
        "usr/share/doc/blockplane/configuration.md",
    ),
    ("docs/install.md", "usr/share/doc/blockplane/install.md"),
    ("docs/qmp.md", "usr/share/doc/blockplane/qmp.md"),
    ("docs/tuning.md", "usr/share/doc/blockplane/tuning.md"),
];

/// The same, compressed on the way.
const COMPRESSED: &[(&str, &str)] = &[
    (
        "packaging/debian/changelog",
        "usr/share/doc/blockplane/changelog",
    ),
    ("CHANGELOG.md", "usr/share/doc/blockplane/CHANGELOG.md"),
];

/// What `generate completions` writes, and where the shells look.
const COMPLETIONS: &[(&str, &str)] = &[
    (
        "blockplane.bash",
        "usr/share/bash-completion/completions/blockplane",
    ),
    (
        "_blockplane",
        "usr/share/zsh/vendor-completions/_blockplane",
    ),
    (
        "blockplane.fish",
        "usr/share/fish/vendor_completions.d/blockplane.fish",
    ),
    (
        "blockplane-bench.bash",
        "usr/share/bash-completion/completions/blockplane-bench",
    ),
    (
        "_blockplane-bench",
        "usr/share/zsh/vendor-completions/_blockplane-bench",
    ),
    (
        "blockplane-bench.fish",
        "usr/share/fish/vendor_completions.d/blockplane-bench.fish",
    ),
];

/// Lays out everything below `root`, which is made.
pub(crate) fn lay_out(programs: Programs, root: &Path) -> Result<(), Error> {
    program(programs.daemon, &root.join("usr/bin/blockplane"))?;
    program(programs.measuring, &root.join("usr/bin/blockplane-bench"))?;
    for (from, to) in COPIED {
        put(&source(from), &root.join(to))?;
    }
    for (from, to) in COMPRESSED {
        put(&source(from), &root.join(to))?;
        compress(&root.join(to))?;
    }
    generated(programs, root)?;
    let copyright = root.join("usr/share/doc/blockplane/copyright");
    let text = notices::copyright()?;
    fs::write(&copyright, text).map_err(Error::io(format!("write {}", copyright.display())))?;
    permissions(root, &root.join("usr/bin"))
}

/// Symbols are left out; what tracers find probes by (`.note.stapsdt`) is not a symbol, and stays.
fn program(binary: &Path, to: &Path) -> Result<(), Error> {
    make_parent(to)?;
    let arguments = [
        "--strip-unneeded".as_ref(),
        "--remove-section=.comment".as_ref(),
        "-o".as_ref(),
        to.as_os_str(),
        binary.as_os_str(),
    ];
    run("strip", &arguments).map(drop)
}

fn generated(programs: Programs, root: &Path) -> Result<(), Error> {
    let folder = tempfile::tempdir().map_err(Error::io("make a temporary folder"))?;
    let generate = |what: &str| -> Result<(), Error> {
        let arguments = [
            "generate".as_ref(),
            what.as_ref(),
            folder.path().as_os_str(),
        ];
        for program in [programs.daemon, programs.measuring] {
            run(program, &arguments)?;
        }
        Ok(())
    };
    generate("completions")?;
    for (from, to) in COMPLETIONS {
        let from = folder.path().join(from);
        put(&from, &root.join(to))?;
        fs::remove_file(&from).map_err(Error::io(format!("remove {}", from.display())))?;
    }
    generate("man")?;
    for page in files(folder.path())? {
        let name = page.file_name().unwrap_or_default();
        let section = page.extension().unwrap_or_default().to_string_lossy();
        let to = root.join(format!("usr/share/man/man{section}")).join(name);
        put(&page, &to)?;
        compress(&to)?;
    }
    Ok(())
}

fn put(from: &Path, to: &Path) -> Result<(), Error> {
    make_parent(to)?;
    let copied = fs::copy(from, to);
    copied.map_err(Error::io(format!(
        "copy {} to {}",
        from.display(),
        to.display()
    )))?;
    Ok(())
}

fn make_parent(path: &Path) -> Result<(), Error> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(parent).map_err(Error::io(format!("make {}", parent.display())))
}

/// Without the time and name, so that the same input makes the same package.
fn compress(path: &Path) -> Result<(), Error> {
    run("gzip", &["-9n".as_ref(), path.as_os_str()]).map(drop)
}

/// Files are for reading, programs and folders for everybody's use; whatever the umask of the build was.
fn permissions(folder: &Path, programs: &Path) -> Result<(), Error> {
    for path in files(folder)? {
        let is_folder = path.is_dir();
        if is_folder {
            permissions(&path, programs)?;
        }
        let mode = if is_folder || path.starts_with(programs) {
            0o755
        } else {
            0o644
        };
        set_mode(&path, mode)?;
    }
    set_mode(folder, 0o755)
}

/// Gives a file or folder a mode.
pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    let set = fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(Error::io(format!("set the mode of {}", path.display())))
}

/// What is in a folder, sorted.
pub(crate) fn files(folder: &Path) -> Result<Vec<std::path::PathBuf>, Error> {
    let failed = || Error::io(format!("read {}", folder.display()));
    let entries = fs::read_dir(folder).map_err(failed())?;
    let paths = entries.map(|entry| Ok(entry.map_err(failed())?.path()));
    let mut paths = paths.collect::<Result<Vec<_>, Error>>()?;
    paths.sort();
    Ok(paths)
}
