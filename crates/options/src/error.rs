//! Errors of command lines and other options, with their texts, which name the option, the key and what is expected.
//!
//! They have no cause in the operating system, since this crate opens nothing.

use std::fmt;

/// An error of a command line. The program prints it and exits with status 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct UsageError {
    /// The option with the problem, as it should be spelled (`--export`), with its number if it is not the first of its kind
    /// (`--export (number 2)`); empty if no single option is wrong.
    pub option: String,
    /// The problem.
    pub problem: Problem,
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It contains arguments unchanged.
        let problem = commands::printable(&self.problem.to_string());
        if self.option.is_empty() {
            write!(f, "{problem}")
        } else {
            write!(f, "{}: {problem}", self.option)
        }
    }
}

/// A problem of one option or of the whole command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is neither well-formed `key=value,…` nor well-formed JSON.
    #[error("{reason}")]
    Syntax {
        /// What was found at which position, and what was expected.
        reason: String,
    },
    /// A key that does not exist.
    #[error("unknown option '{key}'{} Known: {}", unknown_key_remedy(key, .suggestion.as_deref()), .known.join(", "))]
    UnknownKey {
        /// The full dotted key.
        key: String,
        /// The known key closest to it, if one is close.
        suggestion: Option<String>,
        /// The keys that the option takes.
        known: Vec<String>,
    },
    /// A required key is missing.
    #[error("'{key}' is missing: {expected}")]
    Missing {
        /// The full dotted key.
        key: String,
        /// What to write.
        expected: String,
    },
    /// A value of the wrong type or format.
    #[error("'{key}' cannot be '{value}': expected {expected}")]
    BadValue {
        /// The full dotted key.
        key: String,
        /// The value as it was written, shortened if it is long.
        value: String,
        /// The values that the key takes, with their unit.
        expected: String,
    },
    /// A number out of range.
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
    /// A word that is not one of the choices.
    #[error("'{key}' cannot be '{value}'{} Known: {}", did_you_mean_text(.suggestion.as_deref()), .known.join(", "))]
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
    /// A feature of qemu-storage-daemon that blockplane does not have yet.
    #[error("{what} is not supported by blockplane yet; {instead}")]
    Unsupported {
        /// The option, driver or setting, as it was written.
        what: String,
        /// What is supported, or how to do without.
        instead: String,
    },
    /// Settings that contradict each other.
    #[error("{reason}")]
    Conflict {
        /// The settings, and what to change.
        reason: String,
    },
    /// A name that is in use.
    #[error("there is already {kind} '{name}'; choose another '{key}'")]
    Duplicate {
        /// "a node", "an export", "an object".
        kind: &'static str,
        /// The name.
        name: String,
        /// The key of the name.
        key: &'static str,
    },
    /// A reference to an object that no earlier option defines.
    #[error("'{key}' names the {kind} '{name}', which no option before this one defines{}", defined_so_far_text(.known))]
    NotDefined {
        /// The full dotted key of the reference.
        key: String,
        /// "node", "iothread".
        kind: &'static str,
        /// The name.
        name: String,
        /// The names of this kind defined so far.
        known: Vec<String>,
    },
    /// An option that does not exist.
    #[error("unrecognized option{} See blockplane --help", did_you_mean_text(.suggestion.as_deref()))]
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
    /// An argument that is neither an option nor the value of one.
    #[error("unexpected argument '{word}'{} See blockplane --help", did_you_mean_text(.suggestion.as_deref()))]
    StrayWord {
        /// The word.
        word: String,
        /// The subcommand or option closest to it, if one is close.
        suggestion: Option<String>,
    },
    /// An error in the arguments of a command.
    #[error("{message}")]
    Command {
        /// The complete text of its parser, with the usage.
        message: String,
    },
}

impl Problem {
    /// The keys that the problem is about, the most important one first.
    pub(crate) fn offending_keys(&self) -> Vec<&str> {
        match self {
            Self::UnknownKey { key, .. }
            | Self::Missing { key, .. }
            | Self::BadValue { key, .. }
            | Self::OutOfRange { key, .. }
            | Self::UnknownChoice { key, .. }
            | Self::NotDefined { key, .. } => vec![key],
            Self::Duplicate { key, .. } => vec![key],
            // Their texts have the keys in quotes, some with a value.
            Self::Unsupported { what: text, .. } | Self::Conflict { reason: text } => {
                let quoted = text.split('\'').skip(1).step_by(2);
                quoted
                    .map(|word| word.split('=').next().unwrap_or(word))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The error of this problem in an option.
    pub(crate) fn in_option(self, option: impl Into<String>) -> UsageError {
        UsageError {
            option: option.into(),
            problem: self,
        }
    }
}

/// The beginning of a value, escaped, for an error: at most one line.
pub(crate) fn excerpt(value: &str) -> String {
    const MAX_EXCERPT_CHARS: usize = 60;
    let mut out: String = value
        .chars()
        .take(MAX_EXCERPT_CHARS)
        .flat_map(char::escape_debug)
        .collect();
    if value.chars().nth(MAX_EXCERPT_CHARS).is_some() {
        out.push('…');
    }
    out
}

/// The end of a sentence, with a question if there is a suggestion.
fn did_you_mean_text(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(|| ".".to_owned(), |s| format!("; did you mean '{s}'?"))
}

/// The end of a sentence about an unknown key. A key with a dot in its name, in JSON or in quotes, may be meant as two keys.
fn unknown_key_remedy(key: &str, suggestion: Option<&str>) -> String {
    match suggestion {
        Some(known) if known == key => {
            "; its dots separate keys: write it without quotes, or as objects within objects."
                .to_owned()
        }
        suggestion => did_you_mean_text(suggestion),
    }
}

/// The end of a sentence about a name that is not defined: the names that are.
fn defined_so_far_text(known: &[String]) -> String {
    if known.is_empty() {
        " (none is defined so far)".to_owned()
    } else {
        format!(" (defined so far: {})", known.join(", "))
    }
}
