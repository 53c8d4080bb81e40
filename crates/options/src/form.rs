//! Forms of values: numbers, sizes, switches, words, names, paths and CPU sets, each with its reader, its writer and
//! its entry in help texts.
//!
//! A form is a constant in the definition of a key, see [`settings!`](crate::settings). It reads back what it writes, so that
//! settings survive a live upgrade.

use std::path::{Path, PathBuf};

use crate::{
    Problem, cpus,
    key::{KeySpec, UnsupportedName, ValueType, parse_choice},
    limits,
    size::{self, NumberError},
    tree::Value,
};

/// The text form of a value.
pub(crate) trait ValueForm {
    /// The type of the value in the program.
    type Value;

    /// Reads a value. `key` is the full name of its key, for errors.
    fn read(&self, key: &str, value: Value) -> Result<Self::Value, Problem>;

    /// The value as in JSON.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    fn to_value(&self, value: &Self::Value) -> Result<Value, NonUtf8Path>;
}

/// The error for a path that is not UTF-8, which no notation can express.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the path {} is not UTF-8, and cannot be handed over: restart instead", commands::printable_path(.0))]
pub struct NonUtf8Path(pub PathBuf);

/// The error for a value of the wrong type or format.
pub(crate) fn bad_value_error(key: &str, value: &Value, expected: impl Into<String>) -> Problem {
    Problem::BadValue {
        key: key.to_owned(),
        value: value.excerpt(),
        expected: expected.into(),
    }
}

/// `on` or `off`.
pub(crate) struct SwitchForm;

impl SwitchForm {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "on|off", help, ValueType::Bool)
    }
}

impl ValueForm for SwitchForm {
    type Value = bool;

    fn read(&self, key: &str, value: Value) -> Result<bool, Problem> {
        match &value {
            Value::Bool(value) => Ok(*value),
            Value::Text(text) => {
                parse_switch(text).ok_or_else(|| bad_value_error(key, &value, SWITCH_EXPECTED))
            }
            _ => Err(bad_value_error(key, &value, "true or false")),
        }
    }

    fn to_value(&self, value: &bool) -> Result<Value, NonUtf8Path> {
        Ok(Value::Bool(*value))
    }
}

/// Reads a switch from text; `None` if it is not one.
pub(crate) fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" | "yes" | "true" | "y" => Some(true),
        "off" | "no" | "false" | "n" => Some(false),
        _ => None,
    }
}

/// The expected text of a switch.
pub(crate) const SWITCH_EXPECTED: &str = "'on' or 'off'";

/// A condition on a number, and the text of what is expected.
type NumberCheck = (fn(u64) -> bool, &'static str);

/// A whole number, or a size in bytes.
pub(crate) struct NumberForm<T> {
    min: T,
    max: T,
    parse: fn(&str) -> Result<u64, NumberError>,
    /// What is expected of a text.
    expected: &'static str,
    /// A condition beyond the range.
    check: Option<NumberCheck>,
    placeholder: &'static str,
}

/// A whole number from `min` to `max`.
pub(crate) const fn number_form<T: Copy>(min: T, max: T) -> NumberForm<T> {
    NumberForm {
        min,
        max,
        parse: size::parse_integer,
        expected: "a whole number, decimal or 0x hexadecimal",
        check: None,
        placeholder: "N",
    }
}

/// A size in bytes, from `min` to `max`; in JSON a number, in text possibly with a suffix.
pub(crate) const fn size_form<T: Copy>(min: T, max: T) -> NumberForm<T> {
    NumberForm {
        parse: size::parse_size,
        expected: "a size in bytes, or with a suffix B, K, M, G, T, P or E, such as 1.5G",
        placeholder: "SIZE",
        ..number_form(min, max)
    }
}

impl<T: Copy> NumberForm<T> {
    /// The same with another placeholder in the help.
    pub(crate) const fn with_placeholder(self, placeholder: &'static str) -> Self {
        NumberForm {
            placeholder,
            ..self
        }
    }

    /// The same with a condition beyond the range.
    pub(crate) const fn with_check(self, holds: fn(u64) -> bool, expected: &'static str) -> Self {
        NumberForm {
            check: Some((holds, expected)),
            ..self
        }
    }

    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, self.placeholder, help, ValueType::Int)
    }
}

impl<T: TryFrom<u64> + Copy + Into<u64>> ValueForm for NumberForm<T> {
    type Value = T;

    fn read(&self, key: &str, value: Value) -> Result<T, Problem> {
        let parsed = match &value {
            Value::Text(text) => (self.parse)(text),
            Value::Number(text) => size::parse_integer(text),
            _ => Err(NumberError::Malformed),
        };
        let (min, max) = (self.min.into(), self.max.into());
        let out_of_range = || match self.check {
            Some((_, expected)) => bad_value_error(key, &value, expected),
            None => Problem::OutOfRange {
                key: key.to_owned(),
                value: value.excerpt(),
                min,
                max,
            },
        };
        let number = match parsed {
            Ok(number) if (min..=max).contains(&number) => number,
            Ok(_) | Err(NumberError::Negative | NumberError::TooLarge) => {
                return Err(out_of_range());
            }
            Err(NumberError::Malformed) => {
                let expected = match value {
                    Value::Text(_) => self.expected,
                    _ => "a whole number without quotes",
                };
                return Err(bad_value_error(key, &value, expected));
            }
        };
        match self.check {
            Some((holds, expected)) if !holds(number) => {
                Err(bad_value_error(key, &value, expected))
            }
            _ => T::try_from(number).map_err(|_| out_of_range()),
        }
    }

    fn to_value(&self, value: &T) -> Result<Value, NonUtf8Path> {
        let number: u64 = (*value).into();
        Ok(Value::Number(number.to_string()))
    }
}

/// A text for guests, such as a serial number: printable ASCII without spaces at the ends.
pub(crate) struct LabelForm {
    /// Most bytes.
    pub longest: usize,
}

impl LabelForm {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "TEXT", help, ValueType::Str)
    }
}

impl ValueForm for LabelForm {
    type Value = String;

    fn read(&self, key: &str, value: Value) -> Result<String, Problem> {
        let text = AnyTextForm.read(key, value)?;
        if limits::is_label(&text, self.longest) {
            return Ok(text);
        }
        let expected = limits::expected_label_text(self.longest);
        Err(bad_value_error(key, &Value::Text(text), expected))
    }

    fn to_value(&self, value: &String) -> Result<Value, NonUtf8Path> {
        Ok(Value::String(value.clone()))
    }
}

/// Any string.
pub(crate) struct AnyTextForm;

impl AnyTextForm {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "NAME", help, ValueType::Str)
    }
}

impl ValueForm for AnyTextForm {
    type Value = String;

    fn read(&self, key: &str, value: Value) -> Result<String, Problem> {
        match value {
            Value::Text(text) | Value::String(text) => Ok(text),
            _ => Err(bad_value_error(key, &value, "a string")),
        }
    }

    fn to_value(&self, value: &String) -> Result<Value, NonUtf8Path> {
        Ok(Value::String(value.clone()))
    }
}

/// A string of the NBD protocol, which may be empty.
pub(crate) struct NbdStringForm {
    placeholder: &'static str,
    expected: &'static str,
}

/// The name of an export, or of a server's host.
pub(crate) const NBD_NAME_FORM: NbdStringForm = NbdStringForm {
    placeholder: "NAME",
    expected: "a name of at most 4096 bytes, without control characters",
};

/// What an export of ours says of itself.
pub(crate) const NBD_TEXT_FORM: NbdStringForm = NbdStringForm {
    placeholder: "TEXT",
    expected: "at most 4096 bytes without control characters",
};

/// Most bytes of one (NBD protocol, "Values": string).
const MAX_NBD_STRING_BYTES: usize = 4096;

impl NbdStringForm {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, self.placeholder, help, ValueType::Str)
    }
}

impl ValueForm for NbdStringForm {
    type Value = String;

    fn read(&self, key: &str, value: Value) -> Result<String, Problem> {
        let text = AnyTextForm.read(key, value)?;
        if text.len() <= MAX_NBD_STRING_BYTES && !text.contains(char::is_control) {
            return Ok(text);
        }
        Err(bad_value_error(key, &Value::Text(text), self.expected))
    }

    fn to_value(&self, value: &String) -> Result<Value, NonUtf8Path> {
        AnyTextForm.to_value(value)
    }
}

/// A path that is not empty.
pub(crate) struct FilePathForm;

impl FilePathForm {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "PATH", help, ValueType::Str)
    }
}

impl ValueForm for FilePathForm {
    type Value = PathBuf;

    fn read(&self, key: &str, value: Value) -> Result<PathBuf, Problem> {
        let text = AnyTextForm.read(key, value)?;
        if text.is_empty() || text.contains('\0') {
            return Err(bad_value_error(key, &Value::Text(text), "a path"));
        }
        Ok(PathBuf::from(text))
    }

    fn to_value(&self, value: &PathBuf) -> Result<Value, NonUtf8Path> {
        path_value(value)
    }
}

/// Writes a path, as in JSON.
pub(crate) fn path_value(path: &Path) -> Result<Value, NonUtf8Path> {
    let text = path.to_str().ok_or_else(|| NonUtf8Path(path.to_owned()))?;
    Ok(Value::String(text.to_owned()))
}

/// A name by which options refer to each other.
pub(crate) struct NameForm {
    /// Most bytes.
    longest: usize,
    /// Whether it may be a generated name, which begins with `#`.
    accepts_generated: bool,
}

impl NameForm {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "NAME", help, ValueType::Str)
    }
}

impl ValueForm for NameForm {
    type Value = String;

    fn read(&self, key: &str, value: Value) -> Result<String, Problem> {
        let name = AnyTextForm.read(key, value)?;
        let written = match name.strip_prefix('#') {
            Some(generated) if self.accepts_generated => generated,
            _ => &name,
        };
        let is_well_formed = written.starts_with(|c: char| c.is_ascii_alphabetic())
            && written
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
            && name.len() <= self.longest;
        if is_well_formed {
            return Ok(name);
        }
        let expected = format!(
            "a letter, then letters, digits, '-', '.' or '_', at most {} in all",
            self.longest
        );
        Err(bad_value_error(key, &Value::Text(name), expected))
    }

    fn to_value(&self, value: &String) -> Result<Value, NonUtf8Path> {
        Ok(Value::String(value.clone()))
    }
}

/// The most bytes of a `node-name`, as in qemu-storage-daemon.
pub const MAX_NODE_NAME_BYTES: usize = 31;

/// A `node-name`.
pub(crate) const NODE_NAME_FORM: NameForm = NameForm {
    longest: MAX_NODE_NAME_BYTES,
    accepts_generated: false,
};

/// A `node-name` of a running node, which may have been generated.
pub(crate) const RUNNING_NODE_NAME_FORM: NameForm = NameForm {
    accepts_generated: true,
    ..NODE_NAME_FORM
};

/// The id of an object, an export or a chardev. QEMU has no limit; this one keeps log lines readable.
pub(crate) const ID_FORM: NameForm = NameForm {
    longest: 127,
    accepts_generated: false,
};

/// One of several words.
pub(crate) struct ChoiceForm<T: 'static> {
    /// The words and their meanings. Of several words with one meaning, the first is written.
    pub words: &'static [(&'static str, T)],
    /// Words that only qemu-storage-daemon supports.
    pub unsupported: &'static [UnsupportedName],
    /// The words, separated by `|`, for the help.
    pub placeholder: &'static str,
}

impl<T> ChoiceForm<T> {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, self.placeholder, help, ValueType::Words)
    }
}

impl<T: Copy + PartialEq> ValueForm for ChoiceForm<T> {
    type Value = T;

    fn read(&self, key: &str, value: Value) -> Result<T, Problem> {
        let word = AnyTextForm.read(key, value)?;
        parse_choice(key, &word, self.words, self.unsupported)
    }

    fn to_value(&self, value: &T) -> Result<Value, NonUtf8Path> {
        let word = self.words.iter().find(|(_, meaning)| meaning == value);
        let word = word.map_or_else(String::new, |(word, _)| (*word).to_owned());
        Ok(Value::String(word))
    }
}

/// CPUs: one set, or a list of sets.
pub(crate) struct CpusForm;

impl CpusForm {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "CPUS", help, ValueType::Named("CpuSets"))
    }
}

impl ValueForm for CpusForm {
    type Value = Vec<u16>;

    fn read(&self, key: &str, value: Value) -> Result<Vec<u16>, Problem> {
        let read_set = |key: &str, item: &Value| {
            let set = match item {
                Value::Text(text) | Value::String(text) | Value::Number(text) => {
                    cpus::parse_cpu_set(text)
                }
                _ => None,
            };
            set.ok_or_else(|| bad_value_error(key, item, cpus::CPUS_EXPECTED))
        };
        let Value::List(items) = value else {
            return read_set(key, &value);
        };
        let mut all = Vec::new();
        for (i, item) in items.iter().enumerate() {
            all.extend(read_set(&format!("{key}.{i}"), item)?);
        }
        Ok(cpus::sort_and_dedup(all))
    }

    fn to_value(&self, value: &Vec<u16>) -> Result<Value, NonUtf8Path> {
        let cpus = value.iter().map(|cpu| Value::Number(cpu.to_string()));
        Ok(Value::List(cpus.collect()))
    }
}
