//! Contents of the package, laid out below a folder as they are to be below `/`.

use std::fs;
use std::path::Path;

use crate::package::tools::{files, run, set_mode};
use crate::package::{Programs, cannot, notices, source};

/// Files of the project, and where they go.
const COPIED: &str = "
packaging/systemd/blockplane.service  usr/lib/systemd/system/blockplane.service
packaging/systemd/blockplane@.service usr/lib/systemd/system/blockplane@.service
packaging/systemd/blockplane@.socket  usr/lib/systemd/system/blockplane@.socket
packaging/systemd/sysusers.conf       usr/lib/sysusers.d/blockplane.conf
packaging/systemd/tmpfiles.conf       usr/lib/tmpfiles.d/blockplane.conf
packaging/debian/blockplane.toml      etc/blockplane/blockplane.toml
packaging/debian/lintian-overrides    usr/share/lintian/overrides/blockplane
docs/blockplane.toml                  usr/share/doc/blockplane/examples/blockplane.toml
docs/configuration.md                 usr/share/doc/blockplane/configuration.md
docs/install.md                       usr/share/doc/blockplane/install.md
docs/qmp.md                           usr/share/doc/blockplane/qmp.md
docs/tuning.md                        usr/share/doc/blockplane/tuning.md
";

/// The same, compressed on the way.
const COMPRESSED: &str = "
packaging/debian/changelog usr/share/doc/blockplane/changelog
CHANGELOG.md               usr/share/doc/blockplane/CHANGELOG.md
";

/// What `generate completions` writes, and where the shells look.
const COMPLETIONS: &str = "
blockplane.bash       usr/share/bash-completion/completions/blockplane
_blockplane           usr/share/zsh/vendor-completions/_blockplane
blockplane.fish       usr/share/fish/vendor_completions.d/blockplane.fish
blockplane-bench.bash usr/share/bash-completion/completions/blockplane-bench
_blockplane-bench     usr/share/zsh/vendor-completions/_blockplane-bench
blockplane-bench.fish usr/share/fish/vendor_completions.d/blockplane-bench.fish
";

fn places(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = table.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(from, to)| (from, to.trim_start()))
}

/// Lays out everything below `root`, which is made.
pub(crate) fn lay_out(programs: Programs, root: &Path) -> Result<(), String> {
    program(programs.daemon, &root.join("usr/bin/blockplane"))?;
    program(programs.measuring, &root.join("usr/bin/blockplane-bench"))?;
    for (from, to) in places(COPIED) {
        put(&source(from), &root.join(to))?;
    }
    for (from, to) in places(COMPRESSED) {
        put(&source(from), &root.join(to))?;
        compress(&root.join(to))?;
    }
    generated(programs, root)?;
    let copyright = root.join("usr/share/doc/blockplane/copyright");
    let text = notices::copyright()?;
    fs::write(&copyright, text).map_err(cannot(format!("write {}", copyright.display())))?;
    permissions(root, &root.join("usr/bin"))
}

/// Symbols are left out; what tracers find probes by (`.note.stapsdt`) is not a symbol, and stays.
fn program(binary: &Path, to: &Path) -> Result<(), String> {
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

fn generated(programs: Programs, root: &Path) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(cannot("make a temporary folder"))?;
    let generate = |what: &str| -> Result<(), String> {
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
    for (from, to) in places(COMPLETIONS) {
        let from = folder.path().join(from);
        put(&from, &root.join(to))?;
        fs::remove_file(&from).map_err(cannot(format!("remove {}", from.display())))?;
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

fn put(from: &Path, to: &Path) -> Result<(), String> {
    make_parent(to)?;
    let copied = fs::copy(from, to);
    copied.map_err(cannot(format!(
        "copy {} to {}",
        from.display(),
        to.display()
    )))?;
    Ok(())
}

fn make_parent(path: &Path) -> Result<(), String> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(parent).map_err(cannot(format!("make {}", parent.display())))
}

/// Without the time and name, so that the same input makes the same package.
fn compress(path: &Path) -> Result<(), String> {
    run("gzip", &["-9n".as_ref(), path.as_os_str()]).map(drop)
}

/// Files are for reading, programs and folders for everybody's use; whatever the umask of the build was.
fn permissions(folder: &Path, programs: &Path) -> Result<(), String> {
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
