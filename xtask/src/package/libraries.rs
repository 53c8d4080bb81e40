//! Packages that the programs need, from what their linker wrote into them.

use std::path::Path;

use crate::package::tools::run;

/// For the field `Depends`: the packages of its libraries, the C library's with the oldest version that
/// has all symbols.
pub(crate) fn needed(programs: &[&Path]) -> Result<Vec<String>, String> {
    let mut arguments = vec!["-dVW".as_ref()];
    arguments.extend(programs.iter().map(|program| program.as_os_str()));
    packages(&run("readelf", &arguments)?)
}

fn packages(readelf: &str) -> Result<Vec<String>, String> {
    let mut packages = Vec::new();
    for name in libraries(readelf) {
        let package = match name {
            "libc.so.6" | "libm.so.6" | "ld-linux-x86-64.so.2" | "ld-linux-aarch64.so.1" => {
                match c_library(readelf) {
                    Some((major, minor)) => format!("libc6 (>= {major}.{minor})"),
                    None => "libc6".to_owned(),
                }
            }
            "libgcc_s.so.1" => "libgcc-s1".to_owned(),
            _ => {
                return Err(format!(
                    "blockplane needs {name}, and the package that has it is unknown: add it to xtask/src/package/libraries.rs"
                ));
            }
        };
        if !packages.contains(&package) {
            packages.push(package);
        }
    }
    packages.sort();
    Ok(packages)
}

/// ` 0x… (NEEDED)  Shared library: [libc.so.6]`
fn libraries(readelf: &str) -> impl Iterator<Item = &str> {
    let needed = readelf.lines().filter(|line| line.contains("(NEEDED)"));
    needed.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0))
}

/// `  0x0010:   Name: GLIBC_2.34  Flags: none  Version: 4`
fn c_library(readelf: &str) -> Option<(u32, u32)> {
    let versions = readelf.split_whitespace().filter_map(|word| {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        // The oldest have a third number, which does not matter.
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

    use super::*;

    const READELF: &str = "\
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libm.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
  0x0010:   Name: GCC_3.0  Flags: none  Version: 12
  0x0060:   Name: GLIBC_2.9  Flags: none  Version: 3
  0x0070:   Name: GLIBC_2.34  Flags: none  Version: 4
  0x0080:   Name: GLIBC_2.2.5  Flags: none  Version: 2
  0x0090:   Name: GLIBC_PRIVATE  Flags: none  Version: 5
";

    #[test]
    fn packages_of_libraries_once_each_with_the_newest_version_that_is_needed() {
        let expected = ["libc6 (>= 2.34)", "libgcc-s1"];
        assert_eq!(packages(READELF).unwrap(), expected);
    }

    #[test]
    fn library_without_a_known_package_is_an_error() {
        let line = " 0x1 (NEEDED)  Shared library: [libodd.so.3]";
        assert!(packages(line).unwrap_err().contains("libodd.so.3"));
    }
}
