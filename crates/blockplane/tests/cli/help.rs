//! `--help`, `--version`, and their output in pipes.

use crate::process::{Folder, Process, words};

/// They act before all others, as in qemu-storage-daemon.
#[test]
fn help_and_version_are_printed_and_nothing_is_started() {
    let folder = Folder::new();
    let version = format!("blockplane version {}\n", env!("CARGO_PKG_VERSION"));
    let help = folder.run("--help");
    assert!(help.assert_success().contains("--pidfile") && help.stdout.ends_with('\n'));
    let others = "--blockdev null-co,node-name=d,size=1M --daemonize --pidfile pid";
    for (line, expected) in [
        ("help", &help.stdout),
        ("", &help.stdout),
        (&*format!("{others} --help"), &help.stdout),
        (&*format!("{others} --version"), &version),
    ] {
        assert_eq!(folder.run(line).assert_success(), expected, "{line}");
    }
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn bench_command_names_the_bench_program() {
    let folder = Folder::new();
    let ended = folder.run("bench run x --depth 0");
    ended.assert_fails_naming(&["write 'blockplane-bench run x --depth 0'"]);
    let help = folder.measure("--help");
    assert!(help.assert_success().contains("compare"), "{help:?}");
    let wrong = folder.measure("run x --depth 0");
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(1), ""));
    let is_named = wrong.stderr.starts_with("blockplane-bench: ");
    assert!(is_named && wrong.stderr.contains("--depth"), "{wrong:?}");
}

#[test]
fn closed_pipe_is_no_error_for_help() {
    for line in ["--help", "--version", "serve --help", "--blockdev help"] {
        let folder = Folder::new();
        let command = folder.command(words(line));
        Process::spawn_with_stdout_unread(command)
            .ended()
            .assert_success();
    }
}

#[test]
fn manual_pages_and_completions_are_generated() {
    let folder = Folder::new();
    assert_eq!(folder.run("generate man pages").assert_success(), "");
    assert_eq!(folder.run("generate completions .").assert_success(), "");
    for (file, words) in [
        ("pages/blockplane.1", &["blockplane\\-qmp(1)"][..]),
        ("pages/blockplane-qmp.1", &["qmp"]),
        ("pages/blockplane.toml.5", &["iothread"]),
        (
            "pages/blockplane-qmp.7",
            &["object\\-del", "id=str", "BLOCK_EXPORT_DELETED"],
        ),
        ("blockplane.bash", &["upgrade", "qmp"]),
        // A blank before a function keeps `_arguments` from calling it with arguments of its own (zshcompsys(1)).
        (
            "_blockplane",
            &["upgrade", "qmp", ": : _blockplane_keys --blockdev'"],
        ),
        ("blockplane.fish", &["upgrade", "qmp"]),
    ] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        for word in words {
            assert!(text.contains(word), "no {word} in {file}");
        }
    }
}
