//! `--help`, `--version`, and their output in pipes.

use crate::process::{Folder, Process, words};

#[test]
fn version_is_one_line() {
    let expected = format!("blockplane version {}\n", env!("CARGO_PKG_VERSION"));
    for line in ["-V", "--version", "--vers"] {
        assert_eq!(Folder::new().run(line).assert_success(), expected, "{line}");
    }
}

#[test]
fn help_is_printed_for_h_help_and_no_arguments() {
    let help = Folder::new().run("--help");
    for option in [
        "serve DISK",
        "--object",
        "--blockdev",
        "--export",
        "--daemonize",
        "--pidfile",
        "--version",
        "--help",
    ] {
        assert!(help.assert_success().contains(option), "no {option}");
    }
    assert!(help.stdout.ends_with('\n'));
    for line in ["-h", "help", ""] {
        assert_eq!(
            Folder::new().run(line).assert_success(),
            help.stdout,
            "{line}"
        );
    }
}

#[test]
fn bench_command_names_the_bench_program() {
    let folder = Folder::new();
    for (line, instead) in [
        ("bench run x --depth 0", "blockplane-bench run x --depth 0"),
        ("help bench", "blockplane-bench --help"),
    ] {
        let ended = folder.run(line);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
        assert!(
            ended.stderr.contains(&format!("write '{instead}'")),
            "{ended:?}"
        );
    }
    let help = folder.measure("--help");
    for what in ["run", "compare", "--json"] {
        assert!(help.assert_success().contains(what), "no {what}");
    }
    let wrong = folder.measure("run x --depth 0");
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(1), ""));
    assert!(
        wrong.stderr.starts_with("blockplane-bench: ") && wrong.stderr.contains("--depth"),
        "{wrong:?}"
    );
}

/// They act before all others, as in qemu-storage-daemon.
#[test]
fn help_and_version_take_precedence_over_earlier_options() {
    let folder = Folder::new();
    let line = "--blockdev null-co,node-name=d,size=1M --daemonize --pidfile pid";
    assert!(
        folder
            .run(&format!("{line} --help"))
            .assert_success()
            .contains("--export")
    );
    assert!(
        folder
            .run(&format!("{line} --version"))
            .assert_success()
            .contains("blockplane ")
    );
    assert_eq!(folder.names(), [""; 0]);
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
fn manual_pages_exist_for_every_command() {
    let folder = Folder::new();
    assert_eq!(folder.run("generate man pages").assert_success(), "");
    let page = std::fs::read_to_string(folder.join("pages/blockplane.1")).unwrap();
    for command in ["check", "info", "qmp"] {
        assert!(
            page.contains(&format!("blockplane\\-{command}(1)")),
            "{command}"
        );
        assert!(
            folder.has(&format!("pages/blockplane-{command}.1")),
            "{command}"
        );
    }
    assert!(folder.has("pages/blockplane.toml.5"));
    let monitors = std::fs::read_to_string(folder.join("pages/blockplane-qmp.7")).unwrap();
    for name in ["object\\-del", "id=str", "BLOCK_EXPORT_DELETED"] {
        assert!(monitors.contains(name), "{name}: {monitors}");
    }
    assert_eq!(folder.run("generate completions .").assert_success(), "");
    for script in ["blockplane.bash", "_blockplane", "blockplane.fish"] {
        let script = std::fs::read_to_string(folder.join(script)).unwrap();
        assert!(script.contains("upgrade") && script.contains("qmp"));
    }
}
