//! Contents of the package.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::machine::{Machine, binary, has_tools, output, package};

const PATHS: [&str; 19] = [
    "./usr/bin/blockplane",
    "./usr/bin/blockplane-bench",
    "./usr/lib/systemd/system/blockplane.service",
    "./usr/lib/systemd/system/blockplane@.service",
    "./usr/lib/systemd/system/blockplane@.socket",
    "./usr/lib/sysusers.d/blockplane.conf",
    "./usr/lib/tmpfiles.d/blockplane.conf",
    "./etc/blockplane/blockplane.toml",
    "./usr/share/man/man1/blockplane.1.gz",
    "./usr/share/man/man1/blockplane-bench.1.gz",
    "./usr/share/man/man5/blockplane.toml.5.gz",
    "./usr/share/man/man7/blockplane-qmp.7.gz",
    "./usr/share/bash-completion/completions/blockplane",
    "./usr/share/bash-completion/completions/blockplane-bench",
    "./usr/share/zsh/vendor-completions/_blockplane",
    "./usr/share/fish/vendor_completions.d/blockplane.fish",
    "./usr/share/doc/blockplane/copyright",
    "./usr/share/doc/blockplane/changelog.gz",
    "./usr/share/doc/blockplane/examples/blockplane.toml",
];

#[test]
fn package_has_its_description_and_what_people_look_for() {
    if !has_tools(&[]) {
        return;
    }
    let fields = output("dpkg-deb", &["-f".as_ref(), package().as_os_str()]);
    let lines = fields.lines().filter_map(|line| line.split_once(": "));
    let fields: BTreeMap<&str, &str> = lines.collect();
    assert_eq!(fields["Package"], "blockplane");
    assert_eq!(fields["Version"], env!("CARGO_PKG_VERSION"));
    let architecture = output("dpkg", &["--print-architecture"]);
    assert_eq!(fields["Architecture"], architecture.trim());
    let depends = fields["Depends"];
    assert!(depends.contains("libc6 (>= 2."), "{depends}");
    assert!(depends.contains("systemd"), "{depends}");
    assert!(fields["Installed-Size"].parse::<u64>().unwrap() > 1000);

    // Files belong to root, and only programs are executable.
    let list = output("dpkg-deb", &["-c".as_ref(), package().as_os_str()]);
    let mut paths = Vec::new();
    for line in list.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [mode, owner, .., path] = words[..] else {
            panic!("{line}");
        };
        let expected = match path {
            "./usr/bin/blockplane" | "./usr/bin/blockplane-bench" => "-rwxr-xr-x",
            folder if folder.ends_with('/') => "drwxr-xr-x",
            _ => "-rw-r--r--",
        };
        assert_eq!((mode, owner), (expected, "root/root"), "{path}");
        paths.push(path);
    }
    for path in PATHS {
        assert!(paths.contains(&path), "{path}");
    }
}

#[test]
fn lintian_has_no_warnings() {
    if !has_tools(&["lintian"]) {
        return;
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "warning", "--allow-root"]);
    let checked = lintian.arg(package()).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}");
}

#[test]
fn files_are_unchanged_programs_stripped_and_authors_named() {
    if !has_tools(&[]) {
        return;
    }
    let machine = Machine::installed();
    // It prints what differs.
    let root = format!("--root={}", machine.root().display());
    assert_eq!(output("dpkg", &[&*root, "--verify", "blockplane"]), "");

    let sections = |path: &Path| output("readelf", &["-SW".as_ref(), path.as_os_str()]);
    let packed = sections(&machine.join("usr/bin/blockplane"));
    assert!(!packed.contains(".symtab"), "{packed}");
    assert!(!packed.contains(".debug_info"), "{packed}");
    let has_notes = |sections: &str| sections.contains(".note.stapsdt");
    assert_eq!(has_notes(&packed), has_notes(&sections(&binary())));

    let text = machine.text("usr/share/doc/blockplane/copyright");
    let of = |name: &str| {
        let begin = format!("\n\nFiles: {name}-");
        let stanza = text.split_once(&begin).map(|(_, rest)| rest);
        let stanza = stanza.unwrap_or_else(|| panic!("no {name} in {text}"));
        stanza.split("\n\n").next().unwrap()
    };
    assert!(of("clap").ends_with("\nLicense: MIT"), "{}", of("clap"));
    assert!(of("libc").contains("\nCopyright: (c) "), "{}", of("libc"));
    // Its license is unique, so its full text is included.
    assert!(of("vmm-sys-util").contains(" Redistribution and use"));
    // A macro, what tests of the linked programs need, and what a feature needs that only tests use.
    for absent in ["syn", "roxmltree", "proptest", "expect-test", "arc-swap"] {
        assert!(!text.contains(&format!("Files: {absent}-")), "{absent}");
    }
}
