//! Pages and completions as a packager gets them, tried with the tools that read them.
#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use options::reference;
use tempfile::TempDir;

fn pages() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let other = clap::Command::new("blockplane other").about("something else");
    let commands = reference::commands().into_iter().chain([other]);
    manual::pages(folder.path(), commands.collect()).unwrap();
    folder
}

fn completions() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    manual::completions(folder.path(), reference::commands()).unwrap();
    folder
}

/// A page without what is roff's.
fn read(folder: &Path, name: &str) -> String {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    text.replace("\\-", "-").replace("\\(aq", "'")
}

#[test]
fn every_option_of_both_faces_is_in_the_page() {
    let folder = pages();
    let page = read(folder.path(), "blockplane.1");
    for option in reference::options() {
        assert!(
            page.contains(&format!("--{}", option.long)),
            "{}",
            option.long
        );
    }
    let file = read(folder.path(), "blockplane.toml.5");
    for group in reference::KEYS {
        for key in group.keys {
            assert!(page.contains(&format!("\\fB{}=", key.name)), "{}", key.name);
            let in_header = ["id", "node-name", "chardev"].contains(&key.name);
            assert!(
                in_header || file.contains(&format!("\\fB{} = ", key.name)),
                "{}",
                key.name
            );
        }
    }
    for command in reference::commands() {
        for arg in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(page.contains(&format!("--{arg}")), "{arg}");
        }
    }
    assert!(page.contains("blockplane-other(1)"));
    assert!(read(folder.path(), "blockplane-other.1").contains("something else"));
    assert!(!folder.path().join("blockplane-generate.1").exists());
}

#[test]
fn man_has_no_complaints() {
    if Command::new("man")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        println!("not tried: there is no man");
        return;
    }
    let folder = pages();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let shown = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l"])
            .arg(&path)
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&shown.stderr);
        assert!(
            shown.status.success() && complaints.is_empty(),
            "{}: {complaints}",
            path.display()
        );
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(text.contains("SEE ALSO"), "{}", path.display());
    }
}

/// What bash offers for a line, the cursor at its end. `words` is how bash splits it.
fn offered(words: &[&str], line: &str) -> Vec<String> {
    let folder = completions();
    let script = r#"
        source "$1"; COMP_LINE="$2"; COMP_POINT=${#COMP_LINE}; shift 2
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        function_of() { local spec; spec="$(complete -p blockplane)"; spec="${spec#* -F }"; echo "${spec%% *}"; }
        "$(function_of)" blockplane "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .arg(folder.path().join("blockplane.bash"))
        .arg(line)
        .args(words)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let out = String::from_utf8(output.stdout).unwrap();
    out.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    assert_eq!(offered(&["blockplane", "ser"], "blockplane ser"), ["serve"]);
    assert_eq!(
        offered(&["blockplane", "--blo"], "blockplane --blo"),
        ["--blockdev"]
    );
    let of_serve = ["blockplane", "serve", "--num"];
    assert_eq!(
        offered(&of_serve, "blockplane serve --num"),
        ["--num-queues"]
    );
    assert!(!offered(&["blockplane", ""], "blockplane ").contains(&"generate".to_owned()));
}

#[test]
fn bash_completes_keys_and_their_words() {
    let kind = ["blockplane", "--blockdev", "fil"];
    assert_eq!(
        offered(&kind, "blockplane --blockdev fil"),
        ["file,", "filename=", "file="]
    );
    let key = ["blockplane", "--blockdev", "file,filen"];
    assert_eq!(
        offered(&key, "blockplane --blockdev file,filen"),
        ["file,filename="]
    );
    // What is not a key of the kind is not offered.
    let other = ["blockplane", "--blockdev", "file,read-z"];
    assert!(
        !offered(&other, "blockplane --blockdev file,read-z")
            .join(" ")
            .contains("read-zeroes")
    );
    // After a value: bash has split the word at its '='.
    let later = [
        "blockplane",
        "--export",
        "vhost-user-blk,id",
        "=",
        "e,writa",
    ];
    let line = "blockplane --export vhost-user-blk,id=e,writa";
    assert_eq!(offered(&later, line), ["e,writable="]);
    let value = [
        "blockplane",
        "--export",
        "vhost-user-blk,writable",
        "=",
        "o",
    ];
    assert_eq!(
        offered(&value, "blockplane --export vhost-user-blk,writable=o"),
        ["on", "off"]
    );
    let path = ["blockplane", "--blockdev", "file,filename", "=", "_bl"];
    assert_eq!(
        offered(&path, "blockplane --blockdev file,filename=_bl"),
        ["_blockplane"]
    );
    let joined = ["blockplane", "--object", "=", "iothread,poll-m"];
    assert_eq!(
        offered(&joined, "blockplane --object=iothread,poll-m"),
        ["iothread,poll-max-ns="]
    );
}

#[test]
fn other_shells_know_the_commands() {
    let folder = completions();
    for name in ["_blockplane", "blockplane.fish"] {
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        for word in ["serve", "check", "num-queues", "blockdev"] {
            assert!(text.contains(word), "{name}: {word}");
        }
    }
}
