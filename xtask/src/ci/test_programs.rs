//! The test programs of a build.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A built program of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestProgram {
    /// Its package and its target, as `blockplane qmp`.
    pub name: String,
    pub executable: PathBuf,
    /// The folder of its package, in which it is run.
    pub folder: PathBuf,
}

/// Programs of the product that tests start.
const PROGRAMS: [&str; 2] = ["blockplane", "blockplane-bench"];
/// Packages whose programs take longest begin first.
const FIRST: [&str; 3] = ["guest ", "blockplane ", "ceph "];

/// The test programs in what `cargo test --no-run --message-format=json-render-diagnostics` prints on standard output.
pub(super) fn listed(messages: &str) -> Vec<TestProgram> {
    let mut programs: Vec<_> = messages.lines().filter_map(test_program).collect();
    let place = |name: &str| FIRST.iter().position(|first| name.starts_with(first));
    programs.sort_by_key(|program| place(&program.name).unwrap_or(FIRST.len()));
    programs
}

/// A program of the product that Cargo has put elsewhere than in `folder`, where the tests look for it: they would test an older one.
pub(super) fn misplaced_program(messages: &str, folder: &Path) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?;
        let is_program = message["profile"]["test"] == false && PROGRAMS.contains(&name);
        let executable = PathBuf::from(message["executable"].as_str()?);
        (is_program && executable != folder.join(name)).then_some(executable)
    })
}

fn test_program(line: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?)
        .parent()?
        .to_owned();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    let name = match kind {
        "test" => format!("{package} {target}"),
        "bin" => format!("{package} (unit tests of the program)"),
        _ => format!("{package} (unit tests)"),
    };
    Some(TestProgram {
        name,
        executable,
        folder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_those_that_cargo_built_for_tests() {
        let artifact = |test: bool, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/p/crates/qmp/Cargo.toml","target":{{"kind":["{kind}"],"name":"server"}},"profile":{{"test":{test}}},"executable":"/p/target/debug/deps/server-1"}}"#
            )
        };
        let messages = [
            artifact(true, "test"),
            artifact(false, "bin"),
            artifact(true, "lib"),
        ]
        .join("\n");
        let names: Vec<String> = listed(&messages)
            .into_iter()
            .map(|program| program.name)
            .collect();
        assert_eq!(names, ["qmp server", "qmp (unit tests)"]);
    }

    #[test]
    fn program_that_cargo_has_built_elsewhere_is_found() {
        let artifact = r#"{"target":{"name":"blockplane"},"profile":{"test":false},"executable":"/t/debug/blockplane"}"#;
        let misplaced = |folder| misplaced_program(artifact, Path::new(folder));
        assert_eq!(misplaced("/t/debug"), None);
        assert_eq!(
            misplaced("/other/debug"),
            Some("/t/debug/blockplane".into())
        );
    }
}
