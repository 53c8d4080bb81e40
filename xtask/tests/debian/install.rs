//! Installed, installed again, removed, purged: by dpkg itself.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::machine::{Machine, has_tools, output, package};

const CONFIGURATION: &str = "etc/blockplane/blockplane.toml";

#[test]
fn installation_creates_user_and_folders_and_removal_keeps_what_is_not_its_own() {
    if !has_tools(&[]) {
        return;
    }
    let machine = Machine::installed();
    let install = || machine.dpkg(&["--install".as_ref(), package().as_os_str()]);
    let status = machine.text("var/lib/dpkg/status");
    assert!(status.contains("Status: install ok installed"), "{status}");
    let passwd = machine.text("etc/passwd");
    let user = passwd.lines().find(|line| line.starts_with("blockplane:"));
    let user = user.unwrap_or_else(|| panic!("{passwd}"));
    assert!(user.contains(":/var/lib/blockplane:"), "{user}");
    assert!(user.ends_with("/nologin"), "{user}");
    let groups = machine.text("etc/group");
    let has_group = groups.lines().any(|line| line.starts_with("blockplane:"));
    assert!(has_group, "{groups}");
    for (folder, mode) in [
        ("var/lib/blockplane", 0o750),
        ("run/blockplane", 0o750),
        ("run/blockplane/monitors", 0o700),
    ] {
        let metadata = fs::metadata(machine.join(folder)).unwrap();
        assert_eq!(metadata.mode() & 0o777, mode, "{folder}");
    }

    // The configuration is kept until a purge.
    fs::write(machine.join(CONFIGURATION), "# mine\n").unwrap();
    install();
    assert_eq!(machine.text(CONFIGURATION), "# mine\n");
    machine.dpkg(&["--remove", "blockplane"]);
    assert!(!machine.has("usr/bin/blockplane"));
    assert!(!machine.has("usr/lib/systemd/system/blockplane.service"));
    assert_eq!(machine.text(CONFIGURATION), "# mine\n");
    machine.dpkg(&["--purge", "blockplane"]);
    for empty in ["etc/blockplane", "var/lib/blockplane"] {
        assert!(!machine.has(empty), "there was nothing in {empty}");
    }

    // Images and files of other people are kept by a purge as well.
    install();
    let mine = ["var/lib/blockplane/web.img", "etc/blockplane/web.toml"];
    for mine in mine {
        fs::write(machine.join(mine), "mine").unwrap();
    }
    machine.dpkg(&["--purge", "blockplane"]);
    for mine in mine {
        assert_eq!(machine.text(mine), "mine");
    }
    install();
}

#[test]
fn purge_disables_enabled_services() {
    if !has_tools(&["systemctl"]) {
        return;
    }
    let machine = Machine::installed();
    let root = format!("--root={}", machine.root().display());
    let units = ["blockplane.service", "blockplane@web.socket"];
    let links = [
        "etc/systemd/system/multi-user.target.wants/blockplane.service",
        "etc/systemd/system/sockets.target.wants/blockplane@web.socket",
    ];
    output("systemctl", &[&[&*root, "enable"], &units[..]].concat());
    for link in links {
        assert!(machine.join(link).is_symlink(), "{link}");
    }
    machine.dpkg(&["--purge", "blockplane"]);
    for link in links {
        assert!(!machine.join(link).is_symlink(), "{link}");
    }
}
