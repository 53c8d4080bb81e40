//! The words of a command line, told apart into flags and others.

/// What follows a command's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words<'a> {
    flags: Vec<char>,
    /// Those that are no flags.
    pub others: Vec<&'a str>,
}

impl<'a> Words<'a> {
    /// Reads them for a command that knows these flags, and takes so many others.
    pub fn read(words: &[&'a str], known: &str, most: usize) -> Result<Self, String> {
        let mut read = Words {
            flags: Vec::new(),
            others: Vec::new(),
        };
        for word in words {
            match word.strip_prefix('-') {
                Some(letters) if !known.is_empty() && !letters.is_empty() => {
                    if let Some(letter) = letters.chars().find(|letter| !known.contains(*letter)) {
                        return Err(format!("unsupported option -{letter}"));
                    }
                    read.flags.extend(letters.chars());
                }
                _ => read.others.push(word),
            }
        }
        if read.others.len() > most {
            return Err("extraneous characters at the end of line".to_owned());
        }
        Ok(read)
    }

    /// Whether a flag is among them.
    pub fn has(&self, flag: char) -> bool {
        self.flags.contains(&flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_stand_anywhere_and_alone_or_together() {
        for line in [["-nv", "disk"], ["disk", "-vn"]] {
            let words = Words::read(&line, "nv", 1).unwrap();
            assert!(words.has('n') && words.has('v'));
            assert_eq!(words.others, ["disk"]);
        }
        let wrong = Words::read(&["-x"], "nv", 1);
        assert_eq!(wrong, Err("unsupported option -x".to_owned()));
        let wrong = Words::read(&["a", "b"], "nv", 1);
        assert!(wrong.unwrap_err().starts_with("extraneous"));
    }
}
