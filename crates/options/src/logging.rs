//! Level and format of the log, and their names.

/// Level of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// `--quiet`: errors and warnings only.
    Error,
    /// Also events that matter to operators. The default.
    Info,
    /// `--verbose`: also connections and queues.
    Debug,
    /// `--verbose` twice: everything.
    Trace,
}

impl LogLevel {
    /// The level of this name: `error`, `info`, `debug` or `trace`, in upper or lower case. `warn` and `warning` are the same as
    /// `error`, which includes warnings.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "error" | "warn" | "warning" => Some(Self::Error),
            "info" => Some(Self::Info),
            "debug" => Some(Self::Debug),
            "trace" => Some(Self::Trace),
            _ => None,
        }
    }
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Lines for people. The default.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// The format of this name: `text` or `json`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}
