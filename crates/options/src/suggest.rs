//! Finds the known word that is closest to a misspelt one, to suggest it.

/// The known word that is closest to `word`, if at most a third of its letters differ: missing, added, replaced, or swapped with
/// their neighbour. An underscore counts as a dash.
pub(crate) fn closest_if_similar<'a>(
    word: &str,
    known: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |text: &str| text.replace('_', "-").to_lowercase();
    let word = plain(word);
    let distance = |candidate: &str| {
        let allowed = (candidate.len() / 3).max(1);
        // Very long words are not compared, since that takes long.
        let is_near = word.len().abs_diff(candidate.len()) <= 4 * allowed;
        let distance = is_near.then(|| strsim::osa_distance(&word, &plain(candidate)));
        distance.filter(|distance| *distance <= allowed)
    };
    known
        .filter_map(|candidate| Some((distance(candidate)?, candidate)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_close_words_are_suggested() {
        let known = || ["writable", "node-name", "id", "num-queues", "aio"].into_iter();
        for (word, closest) in [
            ("writeable", Some("writable")),
            ("node_name", Some("node-name")),
            ("numqueue", Some("num-queues")),
            ("ID", Some("id")),
            ("aoi", Some("aio")),
            ("bitmap", None),
            (&"x".repeat(1_000_000), None),
        ] {
            assert_eq!(closest_if_similar(word, known()), closest);
        }
    }
}
