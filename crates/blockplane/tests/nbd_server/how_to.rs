//! The script of `docs/incremental-backup.md`, as it is there.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use test_support::report;

use crate::process::{Folder, Process, program};
use crate::raw_client::RawClient;
use crate::{MIB, disk_line, start};

const PAGE: &str = include_str!("../../../../docs/incremental-backup.md");

/// The script: the lines from its first one on that are indented.
fn script() -> String {
    let begin = PAGE.find("    #!/bin/sh").unwrap();
    let lines = PAGE[begin..].lines();
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    lines
        .map(|line| format!("{}\n", line.get(4..).unwrap_or_default()))
        .collect()
}

fn write(folder: &Folder, offset: u64, byte: u8) {
    RawClient::enter(folder, "writer").write(offset, 100_000, byte);
}

#[test]
fn the_nightly_backup_of_the_how_to_is_the_disk_also_after_a_night_that_failed() {
    for needed in ["nbdinfo", "nbdcopy", "qemu-img"] {
        if !report::installed(needed) {
            return;
        }
    }
    let folder = Folder::new();
    folder.image("disk", 4 * MIB);
    let line =
        disk_line(",name=writer").replace("filename=disk,", "filename=disk,bitmap-file=bits,");
    let (server, mut client) = start(&folder, &line);
    std::fs::write(folder.join("nightly-backup.sh"), script()).unwrap();
    for bin in ["bin", "broken"] {
        std::fs::create_dir(folder.join(bin)).unwrap();
    }
    symlink(program(), folder.join("bin").join("blockplane")).unwrap();
    let broken = folder.join("broken").join("nbdinfo");
    std::fs::write(&broken, "#!/bin/sh\nexit 1\n").unwrap();
    std::fs::set_permissions(broken, std::fs::Permissions::from_mode(0o755)).unwrap();

    let run = |bins: &str| {
        let path = format!("{bins}:{}", std::env::var("PATH").unwrap());
        let mut script = Command::new("sh");
        script
            .arg("nightly-backup.sh")
            .args(["qmp", "nbd", "d", "backup"])
            .arg(folder.join("old-data"));
        script.env("PATH", path).current_dir(folder.path());
        Process::spawn(script).ended()
    };
    let bin = folder.join("bin").display().to_string();
    let succeeds = || {
        let output = run(&bin);
        assert!(output.code == Some(0), "{output:?}");
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        assert!(read("backup") == read("disk"));
    };
    write(&folder, 0, 1);
    succeeds();
    write(&folder, MIB, 2);
    succeeds();
    write(&folder, 2 * MIB, 3);
    let broken = format!("{}:{bin}", folder.join("broken").display());
    assert!(run(&broken).code != Some(0));
    write(&folder, 3 * MIB, 4);
    succeeds();
    assert!(!folder.has("old-data"));
    // A full copy that fails when there is an old backup.
    client.execute("block-dirty-bitmap-remove node=d name=nightly");
    write(&folder, 0, 5);
    let broken_copy = folder.join("broken").join("nbdcopy");
    std::fs::copy(folder.join("broken").join("nbdinfo"), &broken_copy).unwrap();
    std::fs::remove_file(folder.join("broken").join("nbdinfo")).unwrap();
    assert!(run(&broken).code != Some(0));
    write(&folder, MIB, 6);
    succeeds();
    server.stop();
}
