//! Parses the words after an HMP command: flags such as `-v`, and positional arguments.

/// Parsed arguments: flags and positional arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HmpArgs<'a> {
    flags: Vec<char>,
    pub positional: Vec<&'a str>,
}

impl<'a> HmpArgs<'a> {
    /// Parses arguments for a command that has `known_flags` and at most `max_positional` positional arguments.
    pub fn parse(
        words: &[&'a str],
        known_flags: &str,
        max_positional: usize,
    ) -> Result<Self, String> {
        let mut args = HmpArgs {
            flags: Vec::new(),
            positional: Vec::new(),
        };
        for word in words {
            match word.strip_prefix('-') {
                Some(letters) if !known_flags.is_empty() && !letters.is_empty() => {
                    let mut unknown = letters.chars().filter(|flag| !known_flags.contains(*flag));
                    if let Some(flag) = unknown.next() {
                        return Err(format!("unsupported option -{flag}"));
                    }
                    args.flags.extend(letters.chars());
                }
                _ => args.positional.push(word),
            }
        }
        if args.positional.len() > max_positional {
            return Err("extraneous characters at the end of line".to_owned());
        }
        Ok(args)
    }

    /// Whether a flag is set.
    pub fn has_flag(&self, flag: char) -> bool {
        self.flags.contains(&flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_may_be_combined_and_follow_arguments() {
        for line in [["-nv", "disk"], ["disk", "-vn"]] {
            let args = HmpArgs::parse(&line, "nv", 1).unwrap();
            assert!(args.has_flag('n') && args.has_flag('v'));
            assert_eq!(args.positional, ["disk"]);
        }
        let unknown_flag = HmpArgs::parse(&["-x"], "nv", 1);
        assert_eq!(unknown_flag, Err("unsupported option -x".to_owned()));
        let too_many = HmpArgs::parse(&["a", "b"], "nv", 1);
        assert!(too_many.unwrap_err().starts_with("extraneous"));
    }
}
