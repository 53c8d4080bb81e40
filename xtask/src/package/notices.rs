//! The file `copyright`: ours, and what has to be said of the crates that are linked into the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::package::tools::{files, run_in};
use crate::package::{cannot, source};

/// Licenses that the program may be distributed under: of those that a crate offers, the first here is taken. With
/// those marked, `packaging/debian/copyright` has the text; of others, each crate's own text is shown.
const LICENSES: [(&str, bool); 6] = [
    ("MIT", true),
    ("Apache-2.0", true),
    ("BSD-2-Clause", false),
    ("BSD-3-Clause", false),
    ("ISC", false),
    ("Zlib", false),
];

const METADATA: &str = "`cargo tree` and `cargo metadata` do not describe the same crates: is this cargo of the version in \
    rust-toolchain.toml?";

/// A crate that is linked into the program.
#[derive(Debug)]
struct LinkedCrate {
    name: String,
    version: String,
    license: String,
    authors: Vec<String>,
    folder: std::path::PathBuf,
}

/// The text of the file, in Debian's format for it.
pub(crate) fn copyright() -> Result<String, String> {
    let path = source("packaging/debian/copyright");
    let text = fs::read_to_string(&path);
    let mut text = text.map_err(cannot(format!("read {}", path.display())))?;
    for linked in linked()? {
        text.push_str(&stanza(&linked)?);
    }
    Ok(text)
}

/// What cargo prints.
fn cargo(arguments: &[&str]) -> Result<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run_in(&source(""), cargo, arguments)
}

/// All but ours, by name. Macros and build scripts, and what only these need, are not in the programs.
fn linked() -> Result<Vec<LinkedCrate>, String> {
    let tree = cargo(&[
        "tree",
        "--locked",
        "--package=blockplane",
        "--package=bench",
        "--edges=normal,no-proc-macro",
        "--prefix=none",
        "--format={p}",
    ])?;
    // Without those of other systems, which need not be there.
    let host = run_in(Path::new("."), "rustc", &["--print=host-tuple"])?;
    let host = format!("--filter-platform={}", host.trim());
    let metadata = cargo(&["metadata", "--locked", "--format-version=1", &host])?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|_| METADATA)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    // Lines such as "clap v4.6.7", some of them more than once, and ours with a path.
    let names: BTreeSet<&str> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .collect();
    let names = names
        .into_iter()
        .filter(|name| !name.is_empty() && !name.contains('('));
    names
        .map(|name| {
            let package = packages.iter().find(|package| {
                let (name_of, version) = (text(&package["name"]), text(&package["version"]));
                format!("{name_of} v{version}") == name
            });
            let package = package.ok_or(METADATA)?;
            let manifest = text(&package["manifest_path"]);
            Ok(LinkedCrate {
                name: text(&package["name"]),
                version: text(&package["version"]),
                license: text(&package["license"]),
                authors: list(&package["authors"]).iter().map(text).collect(),
                folder: Path::new(&manifest).parent().ok_or(METADATA)?.to_owned(),
            })
        })
        .collect()
}

fn stanza(linked: &LinkedCrate) -> Result<String, String> {
    let LinkedCrate { name, version, .. } = linked;
    let taken = taken_licenses(&linked.license).ok_or_else(|| {
        format!(
            "{name} is under the license '{}', which xtask/src/package/notices.rs does not know: look whether the \
             program may be distributed with it, then add it there",
            linked.license
        )
    })?;
    let texts = license_texts(linked)?;
    let holders = holders(linked, &texts).join("\n           ");
    let names: Vec<&str> = taken.iter().map(|(license, _)| *license).collect();
    let license = names.join(" and ");
    let mut out =
        format!("\nFiles: {name}-{version}/*\nCopyright: {holders}\nLicense: {license}\n");
    if taken.iter().any(|(_, is_shared)| !is_shared) {
        let texts: Vec<String> = texts.iter().map(|text| without_apache(text)).collect();
        for line in texts.iter().flat_map(|text| text.lines()) {
            let line = line.trim_end();
            out.push_str(&format!(" {}\n", if line.is_empty() { "." } else { line }));
        }
    }
    Ok(out)
}

/// The licenses that a crate is taken under: more than one where its parts have different ones. `None`: none that is known.
fn taken_licenses(license: &str) -> Option<Vec<(&'static str, bool)>> {
    if license.contains('(') {
        return None;
    }
    let rank = |one: &str| LICENSES.iter().position(|(known, _)| *known == one);
    let offered = license.split(" OR ").flat_map(|one| one.split('/'));
    let offered = offered.filter_map(|one| one.split(" AND ").map(rank).collect());
    let taken: Vec<usize> = offered.min()?;
    Some(taken.into_iter().map(|rank| LICENSES[rank]).collect())
}

/// Refers to Debian's copy in place of the text of Apache-2.0, as Debian's policy wants it.
fn without_apache(text: &str) -> String {
    let end = "limitations under the License.\n";
    let found = text
        .split_once("Apache License\n")
        .and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    match found {
        Some((before, after)) => {
            let before = before.trim_end();
            format!("{before}\nApache-2.0: /usr/share/common-licenses/Apache-2.0\n{after}")
        }
        None => text.to_owned(),
    }
}

/// Whom its licenses name; else whom its manifest names.
fn holders(linked: &LinkedCrate, texts: &[String]) -> Vec<String> {
    let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim);
    let notices = lines.filter(|line| line.to_lowercase().starts_with("copyright "));
    // Some are templates that were not filled in, and one is a heading.
    let notices =
        notices.filter(|line| line.chars().any(|c| c.is_ascii_digit()) || line.contains("(c)"));
    let notices = notices.filter(|line| !line.contains("[yyyy]") && !line.contains("{yyyy}"));
    let mut holders: Vec<String> = Vec::new();
    for notice in notices {
        let holder = notice["copyright ".len()..].to_owned();
        if !holders.contains(&holder) {
            holders.push(holder);
        }
    }
    if holders.is_empty() {
        holders.clone_from(&linked.authors);
    }
    if holders.is_empty() {
        holders.push(format!("the authors of {}", linked.name));
    }
    holders
}

fn license_texts(linked: &LinkedCrate) -> Result<Vec<String>, String> {
    let mut texts = Vec::new();
    for path in files(&linked.folder)? {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        let is_text = ["LICENSE", "COPYING", "COPYRIGHT", "NOTICE"]
            .iter()
            .any(|begin| name.starts_with(begin));
        if is_text && path.is_file() {
            let text = fs::read(&path).map_err(cannot(format!("read {}", path.display())))?;
            texts.push(String::from_utf8_lossy(&text).into_owned());
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(license: &str, text: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("LICENSE"), text).unwrap();
        stanza(&LinkedCrate {
            name: "some".to_owned(),
            version: "1.2.3".to_owned(),
            license: license.to_owned(),
            authors: vec!["Ann".to_owned()],
            folder: folder.path().to_owned(),
        })
    }

    #[test]
    fn copyright_names_holders_and_includes_unique_license_texts() {
        let mit = of(
            "Apache-2.0 OR MIT",
            "Copyright (c) 2020 Bob\n\nPermission is",
        )
        .unwrap();
        assert_eq!(
            mit,
            "\nFiles: some-1.2.3/*\nCopyright: (c) 2020 Bob\nLicense: MIT\n"
        );
        let bsd = of("BSD-3-Clause", "Copyright [yyyy]\n\nRedistribution").unwrap();
        assert!(bsd.contains("Copyright: Ann\n"), "{bsd}");
        assert!(bsd.ends_with("\n .\n Redistribution\n"), "{bsd}");
    }

    #[test]
    fn crates_with_parts_of_others_have_the_licenses_of_both() {
        let apache = "  Apache License\n  Version 2.0\n limitations under the License.\n";
        let text = format!("{apache}\nOther parts:\nCopyright 2015 Bob\n");
        let both = of("Apache-2.0 AND ISC", &text).unwrap();
        let expected = "\nFiles: some-1.2.3/*\nCopyright: 2015 Bob\nLicense: Apache-2.0 and ISC\n .\n \
             Apache-2.0: /usr/share/common-licenses/Apache-2.0\n .\n Other parts:\n Copyright 2015 Bob\n";
        assert_eq!(both, expected);
        let chosen = of("Apache-2.0 AND GPL-3.0 OR MIT AND ISC", "").unwrap();
        assert!(chosen.contains("License: MIT and ISC\n"), "{chosen}");
    }

    #[test]
    fn license_without_review_is_refused() {
        let in_brackets = "GPL-3.0 AND (ISC OR MIT OR Zlib)";
        for unknown in ["GPL-3.0", "MIT AND Unicode-3.0", in_brackets, ""] {
            let error = of(unknown, "").unwrap_err();
            assert!(error.contains("look whether the program may"), "{error}");
        }
    }
}
