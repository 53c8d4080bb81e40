//! Completions inside of `--blockdev file,filename=…`, for all shells: kinds, keys, and the words that a value may be.

use std::collections::BTreeMap;

use options::reference::KEYS;

/// What is offered where a pattern fits, in which `*` stands for anything.
pub(crate) struct Offer {
    pub pattern: String,
    pub words: Vec<String>,
}

/// Instead of words: a file.
pub(crate) const PATH: &str = "PATH";

/// The options that have keys.
pub(crate) fn options() -> impl Iterator<Item = &'static str> {
    kinds().into_keys()
}

/// What may begin after the last comma. Patterns are of the option, a blank and its value; the first that fits counts.
pub(crate) fn words() -> Vec<Offer> {
    let mut offers = Vec::new();
    let mut offer = |pattern: String, words| offers.push(Offer { pattern, words });
    for (option, kinds) in kinds() {
        for kind in &kinds {
            let keys = keys_of(option, Some(kind));
            offer(format!("--{option} {kind},*"), keys.clone());
            offer(format!("--{option} *={kind},*"), keys);
        }
        let all = keys_of(option, None);
        offer(format!("--{option} *,*"), all.clone());
        let first = kinds.iter().map(|kind| format!("{kind},"));
        offer(format!("--{option} *"), first.chain(all).collect());
    }
    offers
}

/// What may be the value of a key, or [`PATH`]. Patterns are of the option, a blank and the key.
pub(crate) fn values() -> Vec<Offer> {
    let mut offers: Vec<Offer> = Vec::new();
    for group in KEYS {
        for key in group.keys {
            let pattern = format!("--{} {}", group.option, key.name);
            let is_known = offers.iter().any(|offer| offer.pattern == pattern);
            let words: Vec<String> = key.value.split('|').map(str::to_owned).collect();
            if !is_known && (key.value == PATH || words.iter().all(|word| is_fixed(word))) {
                offers.push(Offer { pattern, words });
            }
        }
    }
    offers
}

/// Whether it is a word to be written as it stands, and not the name of a kind of values.
fn is_fixed(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
}

/// The kinds of each option that has keys.
fn kinds() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for group in KEYS {
        let known = kinds.entry(group.option).or_default();
        let new = group.kinds.iter().filter(|kind| !known.contains(kind));
        let new: Vec<_> = new.copied().collect();
        known.extend(new);
    }
    kinds
}

fn keys_of(option: &str, kind: Option<&str>) -> Vec<String> {
    let wanted = KEYS.iter().filter(|group| {
        let kinds = group.kinds;
        group.option == option && kind.is_none_or(|kind| kinds.is_empty() || kinds.contains(&kind))
    });
    let mut keys: Vec<String> = Vec::new();
    for key in wanted.flat_map(|group| group.keys) {
        let key = format!("{}=", key.name);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}
