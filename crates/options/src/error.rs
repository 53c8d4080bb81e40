//! Errors of a command line, in words that name the option, the key and what would be right.
//!
//! One error type for both faces of the program. It never carries a cause from the operating
//! system: this crate opens nothing.

use std::fmt;

/// A command line that cannot be carried out. The program prints it and exits with status 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct UsageError {
    /// The option the problem is in, as it should be spelled (`--export`), with its number when it
    /// is not the first of its kind (`--export (number 2)`); empty when it is in no option.
    pub option: String,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Paths and other words stand in it as they came.
        let problem = commands::printable(&self.problem.to_string());
        if self.option.is_empty() {
            write!(f, "{problem}")
        } else {
            write!(f, "{}: {problem}", self.option)
        }
    }
}

/// What is wrong with one option or with the command line as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is neither well-formed `key=value,…` nor well-formed JSON.
    #[error("{reason}")]
    Syntax {
        /// What was found, where, and what was expected.
        reason: String,
    },
    /// A key that nothing reads.
    #[error("unknown option '{key}'{} Known: {}", did_you_mean(.suggestion.as_deref()), .known.join(", "))]
    UnknownKey {
        /// The full dotted key.
        key: String,
        /// The known key closest to it, if one is close.
        suggestion: Option<String>,
        /// Every key that is read at this place.
        known: Vec<String>,
    },
    /// A required key is not there.
    #[error("'{key}' is missing: {expected}")]
    Missing {
        /// The full dotted key.
        key: String,
        /// What to write.
        expected: String,
    },
    /// A value that cannot be read as what the key takes.
    #[error("'{key}' cannot be '{value}': expected {expected}")]
    BadValue {
        /// The full dotted key.
        key: String,
        /// The value as it was written, shortened if it is long.
        value: String,
        /// What the key takes, with its unit.
        expected: String,
    },
    /// A number outside of what the key takes.
    #[error("'{key}' value must be in range [{min}, {max}], not {value}")]
    OutOfRange {
        /// The full dotted key.
        key: String,
        /// The value as it was written.
        value: String,
        /// The smallest value allowed.
        min: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// A name that is not one of the choices.
    #[error("'{key}' cannot be '{value}'{} Known: {}", did_you_mean(.suggestion.as_deref()), .known.join(", "))]
    UnknownChoice {
        /// The full dotted key.
        key: String,
        /// The value as it was written.
        value: String,
        /// The choice closest to it, if one is close.
        suggestion: Option<String>,
        /// All choices.
        known: Vec<String>,
    },
    /// Something that qemu-storage-daemon has and blockplane does not have yet.
    #[error("{what} is not supported by blockplane yet; {instead}")]
    Unsupported {
        /// The option, driver or setting, as it was written.
        what: String,
        /// What is there, or how to do without.
        instead: String,
    },
    /// Two settings that cannot both hold.
    #[error("{reason}")]
    Conflict {
        /// Which settings, and what to change.
        reason: String,
    },
    /// A name that is taken.
    #[error("there is already {kind} '{name}'; choose another '{key}'")]
    Duplicate {
        /// "a node", "an export", "an object".
        kind: &'static str,
        /// The name.
        name: String,
        /// The key that gives the name.
        key: &'static str,
    },
    /// A reference to something that no earlier option defines.
    #[error("'{key}' names the {kind} '{name}', which no option before this one defines{}", defined(.known))]
    NotDefined {
        /// The full dotted key that refers to it.
        key: String,
        /// "node", "iothread".
        kind: &'static str,
        /// The name.
        name: String,
        /// The names of this kind defined so far.
        known: Vec<String>,
    },
    /// An option that does not exist.
    #[error("unrecognized option{} See blockplane --help", did_you_mean(.suggestion.as_deref()))]
    UnknownOption {
        /// The option closest to it, if one is close.
        suggestion: Option<String>,
    },
    /// An abbreviation of more than one option.
    #[error("ambiguous; it could be {}", .candidates.join(" or "))]
    Ambiguous {
        /// The options it could stand for.
        candidates: Vec<String>,
    },
    /// An option without the value it takes.
    #[error("a value is missing; {expected}")]
    NoArgument {
        /// What to write.
        expected: String,
    },
    /// A value on an option that takes none.
    #[error("takes no value")]
    UnexpectedArgument,
    /// A word that is neither an option nor the value of one.
    #[error("unexpected argument '{word}'{} See blockplane --help", did_you_mean(.suggestion.as_deref()))]
    StrayWord {
        /// The word.
        word: String,
        /// The subcommand or option closest to it, if one is close.
        suggestion: Option<String>,
    },
    /// The arguments of a command do not fit its grammar; the text is complete.
    #[error("{message}")]
    Command {
        /// What its parser says, with usage.
        message: String,
    },
}

impl Problem {
    /// The keys that it is about, the first first; none if it is about no key.
    pub(crate) fn keys(&self) -> Vec<&str> {
        match self {
            Self::UnknownKey { key, .. }
            | Self::Missing { key, .. }
            | Self::BadValue { key, .. }
            | Self::OutOfRange { key, .. }
            | Self::UnknownChoice { key, .. }
            | Self::NotDefined { key, .. } => vec![key],
            Self::Duplicate { key, .. } => vec![key],
            // These name them in quotes, some with their value.
            Self::Unsupported { what: text, .. } | Self::Conflict { reason: text } => {
                let quoted = text.split('\'').skip(1).step_by(2);
                quoted
                    .map(|word| word.split('=').next().unwrap_or(word))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Puts the problem at an option.
    pub(crate) fn at(self, option: impl Into<String>) -> UsageError {
        UsageError {
            option: option.into(),
            problem: self,
        }
    }
}

/// A value as it is shown in an error: one line, not longer than a line.
pub(crate) fn shown(value: &str) -> String {
    const LONGEST: usize = 60;
    let mut out: String = value
        .chars()
        .take(LONGEST)
        .flat_map(char::escape_debug)
        .collect();
    if value.chars().nth(LONGEST).is_some() {
        out.push('…');
    }
    out
}

/// Ends a sentence, with a question if there is something to ask.
fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(|| ".".to_owned(), |s| format!("; did you mean '{s}'?"))
}

fn defined(known: &[String]) -> String {
    if known.is_empty() {
        " (none is defined so far)".to_owned()
    } else {
        format!(" (defined so far: {})", known.join(", "))
    }
}
