//! Values of `--sandbox` and `--user`: the restrictions that the process puts on itself at start.

/// `--sandbox`: the degree of restriction, and what is allowed besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SandboxOptions {
    /// The degree.
    pub degree: Sandbox,
    /// `rbd=allow`: images of Ceph clusters may be added by a monitor. Those of the command line are allowed without it.
    pub allows_rbd: bool,
    /// `nbd=allow`: the first export of an NBD server that is reached by TCP may be added by a monitor. Those of the command line
    /// are allowed without it.
    pub allows_nbd: bool,
}

/// The degree of restriction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sandbox {
    /// No restriction.
    Off,
    /// Drops files, system calls and privileges that are not needed. With a monitor, which may add disks, any file can be opened;
    /// else only configured ones.
    #[default]
    On,
    /// As `on`, but only configured files can be opened, even with a monitor.
    Strict,
}

/// `--sandbox` and `--user`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confinement {
    /// `--sandbox`
    pub sandbox: SandboxOptions,
    /// `--user`: the name or number of a user, not empty. `None`: the user that has started the process.
    pub user: Option<String>,
}

impl SandboxOptions {
    /// The expected text, for errors.
    pub(crate) const EXPECTED: &str = "on, off or strict, or on,rbd=allow,nbd=allow";

    /// The value that this text names; `None` if it is unknown.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut words = text.split(',');
        let degree = words.next().unwrap_or_default();
        let (mut allows_rbd, mut allows_nbd) = (false, false);
        for word in words {
            let allowed = match word {
                "rbd=allow" => &mut allows_rbd,
                "nbd=allow" => &mut allows_nbd,
                _ => return None,
            };
            *allowed = true;
        }
        let degree = match degree {
            "off" => Sandbox::Off,
            "on" => Sandbox::On,
            "strict" => Sandbox::Strict,
            _ => return None,
        };
        Some(Self {
            degree,
            allows_rbd,
            allows_nbd,
        })
    }

    /// The same with an error that names what is expected, for `serve`.
    pub(crate) fn parse_argument(text: &str) -> Result<Self, String> {
        Self::from_text(text).ok_or_else(|| format!("expected {}", Self::EXPECTED))
    }
}

/// Parses the name or number of a user.
pub(crate) fn parse_nonempty_user(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("expected a user's name or number".to_owned())
    } else {
        Ok(text.to_owned())
    }
}
