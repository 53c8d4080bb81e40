//! The options of `cargo xtask guests`.

use guest::matrix::{Device, Filter};
use guest::{Firmware, KernelVersion, QemuVersion};

pub const USAGE: &str = "\
usage: cargo xtask guests --all
       cargo xtask guests [--qemu VERSION] [--firmware NAME] [--device NAME] [--kernel VERSION]

Boots real guests from a served disk, twice each, and kills the daemon while they work. Two guests run at a time.
What is needed of Debian's releases is fetched into target/guest, 350 MB for all.

  --all               every cell
  --qemu VERSION      only 7.2, 10.0 or 11.1
  --firmware NAME     only seabios or ovmf
  --device NAME       only split or packed (virtio-blk), scsi (virtio-scsi) or lsi (LSI 53C895A)
  --kernel VERSION    only 6.1 or 6.12
  --list              print the cells and run none
  --json              print the results as one JSON object
  --help              print this

BLOCKPLANE_BIN names another daemon than a release build of this tree.
The exit status is 0 if no cell failed, 1 if one did, 2 for a wrong option.
";

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    Run(Options),
    Help,
}

#[derive(Debug, Default)]
pub struct Options {
    pub filter: Filter,
    pub json: bool,
    pub list: bool,
}

impl Options {
    /// The error is for people.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Action, String> {
        let mut options = Self::default();
        let mut selected = false;
        while let Some(option) = arguments.next() {
            let mut value = || {
                selected = true;
                arguments
                    .next()
                    .ok_or_else(|| format!("{option} needs a value"))
            };
            let filter = &mut options.filter;
            match &*option {
                "--all" => selected = true,
                "--qemu" => {
                    filter.qemu = Some(one_of(
                        QemuVersion::ALL,
                        QemuVersion::name,
                        &option,
                        &value()?,
                    )?);
                }
                "--firmware" => {
                    filter.firmware =
                        Some(one_of(Firmware::ALL, Firmware::name, &option, &value()?)?);
                }
                "--device" => {
                    filter.device = Some(one_of(Device::ALL, Device::name, &option, &value()?)?);
                }
                "--kernel" => {
                    filter.kernel = Some(one_of(
                        KernelVersion::ALL,
                        KernelVersion::name,
                        &option,
                        &value()?,
                    )?);
                }
                "--list" => options.list = true,
                "--json" => options.json = true,
                "-h" | "--help" => return Ok(Action::Help),
                other => return Err(format!("{other} is no option")),
            }
        }
        if !selected && !options.list {
            return Err("which guests? --all, or some of them".to_owned());
        }
        Ok(Action::Run(options))
    }
}

fn one_of<T: Copy>(
    all: impl IntoIterator<Item = T>,
    name: impl Fn(T) -> &'static str,
    option: &str,
    value: &str,
) -> Result<T, String> {
    let mut names = Vec::new();
    for candidate in all {
        if name(candidate) == value {
            return Ok(candidate);
        }
        names.push(name(candidate));
    }
    Err(format!(
        "{option} {value}: it is one of {}",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Action, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_select_cells() {
        let line = "--qemu 10.0 --firmware ovmf --device packed --kernel 6.12 --json";
        let Ok(Action::Run(options)) = parse(line) else {
            panic!("{line}")
        };
        assert!(options.json && !options.list);
        assert_eq!(options.filter.qemu, Some(QemuVersion::V10_0));
        assert_eq!(options.filter.firmware, Some(Firmware::Ovmf));
        assert_eq!(options.filter.device, Some(Device::BlkPacked));
        assert_eq!(options.filter.kernel, Some(KernelVersion::V6_12));
        assert!(matches!(parse("--all"), Ok(Action::Run(_))));
        assert!(matches!(parse("--all --help"), Ok(Action::Help)));
    }

    #[test]
    fn a_wrong_option_is_named_with_what_is_possible() {
        for (line, expected) in [
            ("", "--all"),
            ("--json", "--all"),
            ("--qemu", "needs a value"),
            ("--qemu 9.2", "7.2, 10.0, 11.1"),
            ("--frobnicate", "--frobnicate"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
