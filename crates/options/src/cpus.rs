//! Parses sets of processors, as `taskset` and the kernel's cpusets write them: `0-3,8`.
//!
//! Whether a processor exists and may be used is checked when a thread is bound to it.

/// One more than the largest number of a processor: the size of a `cpu_set_t` (`CPU_SET(3)`).
pub const MAX_CPUS: u16 = 1024;

/// The expected text of a set.
pub(crate) const CPUS_EXPECTED: &str = "numbers of CPUs below 1024 and ranges of them, such as 0-3";

/// Reads a set; returns its members in ascending order, each once. `None` if it is malformed or empty.
pub(crate) fn parse_cpu_set(text: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (parse_cpu(first)?, parse_cpu(last)?);
        if first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(sort_and_dedup(cpus))
}

/// The members of several sets that were joined: ascending, each once.
pub(crate) fn sort_and_dedup(mut cpus: Vec<u16>) -> Vec<u16> {
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// Reads the number of one processor, below [`MAX_CPUS`].
fn parse_cpu(text: &str) -> Option<u16> {
    // `parse` alone accepts a sign.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten()?;
    (number < MAX_CPUS).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sorted_and_without_duplicates() {
        for (text, cpus) in [
            ("0", &[0][..]),
            ("1023", &[1023]),
            ("3,1,1", &[1, 3]),
            ("0-2,8,1-3", &[0, 1, 2, 3, 8]),
            ("5-5", &[5]),
        ] {
            assert_eq!(parse_cpu_set(text).as_deref(), Some(cpus), "{text}");
        }
    }

    #[test]
    fn malformed_sets_are_refused() {
        for text in [
            "", ",", "1,", "-1", "1-", "2-1", "+1", "1024", "0-1024", "99999", "a", "^1", "1 2",
            "0-4:2", "0x1",
        ] {
            assert_eq!(parse_cpu_set(text), None, "{text}");
        }
    }
}
