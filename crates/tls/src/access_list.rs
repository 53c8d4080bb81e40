//! Lists of names of peers: the first rule that matches a name decides.

/// The decision on a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is let in.
    Allow,
    /// It is refused.
    Deny,
}

/// The names that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameMatch {
    /// This name.
    Exact(String),
    /// Names of this form: `*` stands for any characters, also none, and `?` for one.
    Glob(String),
}

impl NameMatch {
    fn matches(&self, name: &str) -> bool {
        match self {
            NameMatch::Exact(exact) => exact == name,
            NameMatch::Glob(pattern) => glob_matches(pattern, name),
        }
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// The names that it matches.
    pub names: NameMatch,
    /// What applies to them.
    pub verdict: Verdict,
}

/// A list of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessList {
    /// The first rule that matches applies.
    pub rules: Vec<AccessRule>,
    /// What applies to a name that no rule matches.
    pub otherwise: Verdict,
}

impl AccessList {
    /// Whether a peer of this name is let in.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        let rule = self.rules.iter().find(|rule| rule.names.matches(name));
        rule.map_or(self.otherwise, |rule| rule.verdict) == Verdict::Allow
    }
}

/// Whether a name has the form of a pattern. After a mismatch only the last `*` takes in one more character, so the time is at most
/// the product of both lengths.
fn glob_matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut in_name) = (0, 0);
    // The place after the last `*`, and the first character behind those that it has taken in.
    let mut last_star = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                last_star = Some((at, in_name));
            }
            Some(c) if *c == '?' || *c == name[in_name] => (at, in_name) = (at + 1, in_name + 1),
            _ => {
                let Some((after_star, taken)) = last_star else {
                    return false;
                };
                (at, in_name) = (after_star, taken + 1);
                last_star = Some((after_star, taken + 1));
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_applies() {
        let rule = |names, verdict| AccessRule { names, verdict };
        let list = AccessList {
            rules: vec![
                rule(NameMatch::Exact("CN=eve".into()), Verdict::Deny),
                rule(NameMatch::Glob("CN=*".into()), Verdict::Allow),
            ],
            otherwise: Verdict::Deny,
        };
        assert!(list.allows("CN=alice"));
        assert!(!list.allows("CN=eve"));
        assert!(!list.allows("O=eve"));
    }

    #[test]
    fn a_pattern_matches_the_whole_name() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("CN=*,O=x", "CN=a,O=x,O=x", true),
            ("CN=*,O=x", "CN=a,O=y", false),
            ("CN=?", "CN=ab", false),
            ("CN=?", "CN=ä", true),
            ("CN=a", "CN=ab", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "ba", false),
        ] {
            assert_eq!(glob_matches(pattern, name), matches, "{pattern} {name}");
        }
    }
}
