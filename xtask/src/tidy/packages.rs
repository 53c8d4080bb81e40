//! The packages of all workspaces, as cargo knows them.

use std::path::Path;

use serde_json::Value;

use super::{Files, ending_with};
use crate::cargo;

/// A package. Paths are relative to the repository's root.
pub(super) struct Package {
    pub(super) name: String,
    pub(super) manifest: String,
    /// The root files of its targets.
    pub(super) roots: Vec<String>,
    /// Names of the packages that it is built with, tests aside.
    pub(super) dependencies: Vec<String>,
}

pub(super) fn packages(root: &Path, files: &Files) -> Result<Vec<Package>, String> {
    let mut packages: Vec<Package> = Vec::new();
    for (manifest, _) in ending_with(files, "Cargo.toml") {
        if !packages.iter().any(|known| known.manifest == manifest) {
            packages.extend(workspace(root, manifest)?);
        }
    }
    Ok(packages)
}

/// The packages of a manifest's workspace.
fn workspace(root: &Path, manifest: &str) -> Result<Vec<Package>, String> {
    let mut metadata = cargo(&[
        "metadata",
        "--no-deps",
        "--format-version=1",
        "--manifest-path",
    ]);
    let output = metadata.arg(root.join(manifest)).output();
    let output = output.map_err(|error| format!("cannot start cargo: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(list(&metadata["packages"])
        .map(|json| package(root, json))
        .collect())
}

fn package(root: &Path, json: &Value) -> Package {
    let relative = |path: &Value| {
        let path = Path::new(path.as_str().unwrap_or_default());
        path.strip_prefix(root)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    let dependencies = list(&json["dependencies"]).filter(|used| used["kind"] != "dev");
    Package {
        name: text(&json["name"]),
        manifest: relative(&json["manifest_path"]),
        roots: list(&json["targets"])
            .map(|target| relative(&target["src_path"]))
            .collect(),
        dependencies: dependencies.map(|used| text(&used["name"])).collect(),
    }
}

fn list(json: &Value) -> impl Iterator<Item = &Value> {
    json.as_array().into_iter().flatten()
}

fn text(json: &Value) -> String {
    json.as_str().unwrap_or_default().to_owned()
}
