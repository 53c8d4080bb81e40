//! "Did you mean": the known word closest to a misspelt one.

/// The known word that is at most a third of its letters away from `word`, if there is one. An
/// underscore counts as a dash, since people mix them up.
pub(crate) fn closest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word
        .chars()
        .map(|c| {
            if c == '_' {
                '-'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect();
    known
        .map(|candidate| {
            let letters: Vec<char> = candidate
                .chars()
                .map(|c| if c == '_' { '-' } else { c })
                .collect();
            (distance(&word, &letters), letters.len(), candidate)
        })
        .filter(|(distance, len, _)| *distance <= (len / 3).max(1))
        .min_by_key(|(distance, _, _)| *distance)
        .map(|(_, _, candidate)| candidate)
}

/// Levenshtein's distance; words that are hopelessly long apart are not compared.
fn distance(a: &[char], b: &[char]) -> usize {
    if a.len().abs_diff(b.len()) > 8 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_are_found_and_others_are_not() {
        let known = || ["writable", "node-name", "id", "num-queues"].into_iter();
        assert_eq!(closest("writeable", known()), Some("writable"));
        assert_eq!(closest("node_name", known()), Some("node-name"));
        assert_eq!(closest("numqueue", known()), Some("num-queues"));
        assert_eq!(closest("ID", known()), Some("id"));
        assert_eq!(closest("bitmap", known()), None);
        assert_eq!(closest(&"x".repeat(1000), known()), None);
    }
}
