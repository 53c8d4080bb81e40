//! Contents of the package.

use crate::machine::{Machine, binary, has_tools, output, package};

fn field(name: &str) -> String {
    let arguments = ["-f".as_ref(), package().as_os_str(), name.as_ref()];
    output("dpkg-deb", &arguments).trim().to_owned()
}

/// Mode, owner and path of everything in it.
fn listed() -> Vec<(String, String, String)> {
    let list = output("dpkg-deb", &["-c".as_ref(), package().as_os_str()]);
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [mode, owner, .., path] = words[..] else {
            panic!("{line}");
        };
        (mode.to_owned(), owner.to_owned(), path.to_owned())
    };
    list.lines().map(entry).collect()
}

#[test]
fn control_file_describes_the_package_and_its_dependencies() {
    if !has_tools(&[]) {
        return;
    }
    assert_eq!(field("Package"), "blockplane");
    assert_eq!(field("Version"), env!("CARGO_PKG_VERSION"));
    let architecture = output("dpkg", &["--print-architecture"]);
    assert_eq!(field("Architecture"), architecture.trim());
    let depends = field("Depends");
    assert!(depends.contains("libc6 (>= 2."), "{depends}");
    assert!(depends.contains("systemd"), "{depends}");
    assert!(field("Installed-Size").parse::<u64>().unwrap() > 1000);
}

#[test]
fn files_belong_to_root_and_only_programs_are_executable() {
    if !has_tools(&[]) {
        return;
    }
    for (mode, owner, path) in listed() {
        assert_eq!(owner, "root/root", "{path}");
        let expected = match &*path {
            "./usr/bin/blockplane" | "./usr/bin/blockplane-bench" => "-rwxr-xr-x",
            folder if folder.ends_with('/') => "drwxr-xr-x",
            _ => "-rw-r--r--",
        };
        assert_eq!(mode, expected, "{path}");
    }
}

#[test]
fn what_people_look_for_is_where_they_look() {
    if !has_tools(&[]) {
        return;
    }
    let paths: Vec<String> = listed().into_iter().map(|(_, _, path)| path).collect();
    for path in [
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
    ] {
        assert!(paths.iter().any(|listed| listed == path), "{path}");
    }
}

#[test]
fn authors_of_linked_crates_are_named() {
    if !has_tools(&[]) {
        return;
    }
    let text = Machine::installed().text("usr/share/doc/blockplane/copyright");
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
    assert!(
        !text.contains("Files: syn-"),
        "a macro is not in the program"
    );
    // The first is what tests of the linked programs need; the last is needed by a feature that only tests use.
    for of_tests in ["roxmltree", "proptest", "expect-test", "arc-swap"] {
        let begin = format!("Files: {of_tests}-");
        assert!(!text.contains(&begin), "{of_tests} is for tests");
    }
}

#[test]
fn lintian_has_no_warnings() {
    if !has_tools(&["lintian"]) {
        return;
    }
    let checked = std::process::Command::new("lintian")
        .args(["--fail-on", "warning", "--allow-root"])
        .arg(package())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}");
}

#[test]
fn package_contains_the_packed_files() {
    if !has_tools(&[]) {
        return;
    }
    let machine = Machine::installed();
    // It prints what differs.
    let root = format!("--root={}", machine.root().display());
    assert_eq!(output("dpkg", &[&*root, "--verify", "blockplane"]), "");
}

#[test]
fn program_is_stripped_except_for_probe_notes() {
    if !has_tools(&[]) {
        return;
    }
    let machine = Machine::installed();
    let sections = |path: &std::path::Path| output("readelf", &["-SW".as_ref(), path.as_os_str()]);
    let packed = sections(&machine.join("usr/bin/blockplane"));
    assert!(!packed.contains(".symtab"), "{packed}");
    assert!(!packed.contains(".debug_info"), "{packed}");
    let has_notes = |sections: &str| sections.contains(".note.stapsdt");
    assert_eq!(has_notes(&packed), has_notes(&sections(&binary())));
}
