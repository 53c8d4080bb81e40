//! `--sandbox` and `--user`: what the process gives away once it knows what it is to do.

/// How much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sandbox {
    /// Nothing.
    Off,
    /// All that is not needed. With a monitor, which may add disks, any file can be opened; else only what was
    /// configured.
    #[default]
    On,
    /// As `on`, and only what was configured can be opened, monitor or not.
    Strict,
}

/// `--sandbox` and `--user`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confinement {
    /// `--sandbox`
    pub sandbox: Sandbox,
    /// `--user`: the name or number of a user that is not empty. `None`: whoever has started it.
    pub user: Option<String>,
}

impl Sandbox {
    /// What is expected, for errors.
    pub(crate) const EXPECTED: &str = "on, off or strict";

    /// Reads one; `None` if it is none.
    pub(crate) fn read(text: &str) -> Option<Self> {
        Some(match text {
            "off" => Self::Off,
            "on" => Self::On,
            "strict" => Self::Strict,
            _ => return None,
        })
    }

    /// The same for `serve`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Self::read(text).ok_or_else(|| format!("expected {}", Self::EXPECTED))
    }
}

/// A user's name or number, for `serve`.
pub(crate) fn user(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("expected a user's name or number".to_owned())
    } else {
        Ok(text.to_owned())
    }
}
