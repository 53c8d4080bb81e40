//! The settings of rules in `xtask/tidy.toml`: words and floors.

use toml::de::{DeTable, DeValue};

use super::manifest::line;

/// What people write at the top of the file.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Packages from the bottom up.
    pub(super) floors: Vec<Vec<Place>>,
    pub(super) words: Vec<Word>,
}

/// A package on a floor.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) package: String,
    /// The line of the file that names it.
    pub(super) line: usize,
}

/// A word that is not to be written.
#[derive(Debug)]
pub(super) struct Word {
    /// The word, then its other forms; each may be several words.
    pub(super) forms: Vec<String>,
    /// What to write.
    pub(super) instead: String,
    /// The folders where it is wrong; none for everywhere.
    pub(super) under: Vec<String>,
}

impl Settings {
    /// Reads `floors` and `words`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document = DeTable::parse(text).map_err(|error| error.to_string())?;
        let document = document.get_ref();
        let list = |key| {
            let value = document
                .get(key)
                .and_then(|value| value.get_ref().as_array());
            value.ok_or_else(|| format!("'{key}' is not a list"))
        };
        let floors = list("floors")?.iter().map(|floor| {
            let floor = floor.get_ref().as_array()?.iter();
            let places = floor.map(|package| {
                let line = line(text, package.span().start);
                let package = package.get_ref().as_str()?.to_owned();
                Some(Place { package, line })
            });
            places.collect()
        });
        let floors: Option<_> = floors.collect();
        let words = list("words")?.iter().map(|entry| word(entry.get_ref()));
        let words: Option<_> = words.collect();
        Ok(Settings {
            floors: floors.ok_or("a floor is a list of packages")?,
            words: words
                .ok_or("a word is { word = \"…\", also = […], instead = \"…\", under = […] }")?,
        })
    }
}

fn word(entry: &DeValue<'_>) -> Option<Word> {
    let entry = entry.as_table()?;
    let get = |key: &str| entry.get(key).map(|value| value.get_ref());
    let list = |key: &str| get(key).map_or(Some(Vec::new()), strings);
    let mut forms = vec![get("word")?.as_str()?.to_owned()];
    forms.extend(list("also")?);
    Some(Word {
        forms,
        instead: get("instead")?.as_str()?.to_owned(),
        under: list("under")?,
    })
}

fn strings(value: &DeValue<'_>) -> Option<Vec<String>> {
    let values = value.as_array()?.iter();
    values
        .map(|value| Some(value.get_ref().as_str()?.to_owned()))
        .collect()
}
