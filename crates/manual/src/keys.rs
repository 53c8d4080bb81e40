//! Candidates for completion inside of an option such as `--blockdev file,filename=…`, for all shells: kinds, keys and
//! values.

use std::collections::BTreeMap;

use options::reference::{KEYS, key_groups_with_list_elements};

/// The candidates for text that matches a pattern, in which `*` stands for any text.
pub(crate) struct Candidates {
    pub pattern: String,
    pub words: Vec<String>,
}

/// Stands instead of words for the names of files.
pub(crate) const PATH: &str = "PATH";

/// The options that take keys.
pub(crate) fn options_with_keys() -> impl Iterator<Item = &'static str> {
    kinds_by_option().into_keys()
}

/// Candidates for the text after the last comma. Patterns match the option, a space and its value; the first match counts.
pub(crate) fn kind_and_key_candidates() -> Vec<Candidates> {
    let mut candidates = Vec::new();
    let mut add = |pattern: String, words| candidates.push(Candidates { pattern, words });
    for (option, kinds) in kinds_by_option() {
        for kind in &kinds {
            let keys = keys_with_equals(option, Some(kind));
            add(format!("--{option} {kind},*"), keys.clone());
            add(format!("--{option} *={kind},*"), keys);
        }
        let all_keys = keys_with_equals(option, None);
        add(format!("--{option} *,*"), all_keys.clone());
        let first = kinds.iter().map(|kind| format!("{kind},"));
        add(format!("--{option} *"), first.chain(all_keys).collect());
    }
    candidates
}

/// Candidates for the value of a key, or [`PATH`]. Patterns match the option, a space and the key.
pub(crate) fn value_candidates() -> Vec<Candidates> {
    let mut candidates: Vec<Candidates> = Vec::new();
    for group in key_groups_with_list_elements() {
        for key in group.keys {
            let prefix = group.prefix.replace('0', "*");
            let pattern = format!("--{} {prefix}{}", group.option, key.name);
            let is_known = candidates.iter().any(|known| known.pattern == pattern);
            let words: Vec<String> = key.placeholder.split('|').map(str::to_owned).collect();
            if !is_known
                && (key.placeholder == PATH || words.iter().all(|word| is_literal_word(word)))
            {
                candidates.push(Candidates { pattern, words });
            }
        }
    }
    candidates
}

/// Whether it is a literal word, and not a placeholder such as `SIZE`.
fn is_literal_word(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
}

/// The options that take keys, each with its kinds.
fn kinds_by_option() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for group in KEYS {
        let known = kinds.entry(group.option).or_default();
        let new = group.kinds.iter().filter(|kind| !known.contains(kind));
        let new: Vec<_> = new.copied().collect();
        known.extend(new);
    }
    kinds
}

/// The keys of an option, each with `=`: those that a kind takes, or those of all kinds.
fn keys_with_equals(option: &str, kind: Option<&str>) -> Vec<String> {
    let groups = key_groups_with_list_elements().filter(|group| {
        let kinds = group.kinds;
        group.option == option && kind.is_none_or(|kind| kinds.is_empty() || kinds.contains(&kind))
    });
    let mut keys: Vec<String> = Vec::new();
    for group in groups {
        for key in group.keys {
            let key = format!("{}{}=", group.prefix, key.name);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}
