//! `--config FILE`: a configuration file, whose TOML tables are the objects of the command line, and its errors.
//!
//! `[export.e0]` is `--export vhost-user-blk,id=e0`, with the same keys; the order of tables does not matter. An option on the
//! command line replaces the table of an object of the same kind and name.

mod document;
mod location;
mod order;
mod read;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use location::Lines;
pub use location::Location;

use crate::{
    Confinement, DaemonSettingsAndDirectives, LogFormat, LogLevel, MetricsAddr,
    directive::RawDirective,
};

/// A configuration file that is still to be parsed, with the options beside it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigFileWithOptions {
    /// The path of the file.
    pub path: PathBuf,
    /// `--daemonize`
    pub daemonize: bool,
    /// `--pidfile`
    pub pidfile: Option<PathBuf>,
    /// `--metrics`, which replaces that of the file.
    pub metrics: Option<MetricsAddr>,
    /// `--sandbox` and `--user`
    pub confinement: Confinement,
    /// The log level, with `serve`. `None` = as the environment says.
    pub log_level: Option<LogLevel>,
    /// `--log-format` of `serve`. `None` = as the environment says.
    pub log_format: Option<LogFormat>,
    /// Directives of the command line.
    pub(crate) directives: Vec<RawDirective>,
}

impl ConfigFileWithOptions {
    /// A file without other options.
    #[must_use]
    pub fn for_path(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            ..Self::default()
        }
    }

    /// The same with another path in errors.
    #[must_use]
    pub fn with_other_path_in_errors(self, path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            ..self
        }
    }

    /// Parses the text of the file, together with the options.
    ///
    /// # Errors
    /// All problems of both.
    pub fn parse(self, text: &str) -> Result<DaemonSettingsAndDirectives, ConfigError> {
        match read::parse_text_with_options(text, self.directives, self.metrics) {
            Ok((directives, metrics)) => Ok(DaemonSettingsAndDirectives {
                daemonize: self.daemonize,
                pidfile: self.pidfile,
                metrics,
                confinement: self.confinement,
                directives,
            }),
            Err(findings) => Err(ConfigError {
                path: self.path,
                findings,
            }),
        }
    }
}

/// The problems of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// The problems, in the order of the file; never empty.
    pub findings: Vec<ConfigProblem>,
}

impl ConfigError {
    /// The text of a configuration file, from its bytes.
    ///
    /// # Errors
    /// The first byte that is not UTF-8, with its location.
    pub fn decode_utf8(path: &Path, bytes: Vec<u8>) -> Result<String, Self> {
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let byte = error.as_bytes()[at];
            let text = String::from_utf8_lossy(error.as_bytes());
            // The text before it is unchanged, and one replacement character takes its place.
            let end = text.ceil_char_boundary(at + 1);
            Self {
                path: path.to_owned(),
                findings: vec![ConfigProblem {
                    location: Some(Lines::of(&text).location_of_range(&(at..end))),
                    message: format!(
                        "not UTF-8: the byte {byte:#04x} begins no character; save the file as UTF-8"
                    ),
                }],
            }
        })
    }
}

/// A problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Its location in the file; `None`: in an option, which the message names.
    pub location: Option<Location>,
    /// The problem, and what is expected.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = commands::printable_path(&self.path);
        let (number, s) = match self.findings.len() {
            1 => ("one problem".to_owned(), ""),
            several => (several.to_string(), " problems"),
        };
        write!(f, "{path}: {number}{s}")?;
        for finding in &self.findings {
            match &finding.location {
                Some(location) => {
                    let (line, column) = (location.line, location.column);
                    write!(
                        f,
                        "\n{path}:{line}:{column}: {}\n{location}",
                        finding.message
                    )?;
                }
                None => write!(f, "\n{}", finding.message)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../docs/blockplane.toml");

    /// The example with every default written out.
    fn with_defaults() -> String {
        let lines = EXAMPLE.lines().map(|line| match line.strip_prefix('#') {
            Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase()) => setting,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn read(text: &str) -> DaemonSettingsAndDirectives {
        ConfigFileWithOptions::for_path("blockplane.toml")
            .parse(text)
            .unwrap()
    }

    /// Some tables are in comments, since nothing serves that image, and there are no certificates, where the example is run.
    #[test]
    fn the_example_is_valid_with_its_defaults_and_with_what_is_in_comments() {
        assert_eq!(read(EXAMPLE).directives.len(), 16);
        assert_eq!(read(&with_defaults()).directives.len(), 16);
        for first in ["# [secret.key0]", "# [tls-creds-x509.server0]"] {
            let tables = EXAMPLE.lines().skip_while(|line| *line != first);
            let tables: Vec<_> = tables.map_while(|line| line.strip_prefix("# ")).collect();
            assert_eq!(read(&tables.join("\n")).directives.len(), 2);
        }
    }

    /// Keys whose default has no value are left out.
    #[test]
    fn defaults_in_the_example_are_the_defaults() {
        let no_value = [
            "cpu-affinity",
            "aio =",
            "bitmap-file",
            "serial",
            "cache.direct",
            "users",
        ];
        let text = with_defaults();
        let has_value = |line: &&str| !no_value.iter().any(|key| line.starts_with(key));
        let lines: Vec<&str> = text.lines().filter(has_value).collect();
        assert_eq!(read(&lines.join("\n")), read(EXAMPLE));
    }
}
