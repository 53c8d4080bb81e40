//! The language of manual pages, as far as it is used: man(7).

/// Lines of the source are not longer: mandoc complains of what is.
const LINE_BYTES: usize = 79;

/// A page in the making.
pub(crate) struct Page(String);

impl Page {
    /// A page of this name and section, with what it is in a line.
    pub(crate) fn new(name: &str, section: u8, about: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let mut page = Self(format!(
            ".TH \"{}\" {section} {} \"blockplane {version}\" \"blockplane\"\n",
            escaped(name).to_uppercase(),
            date()
        ));
        // Names of options and keys stay as they are to be written.
        page.line(".nh\n.ad l");
        page.heading("NAME");
        page.words(&format!("{name} - {about}"));
        page
    }

    fn line(&mut self, roff: &str) {
        self.0.push_str(roff);
        self.0.push('\n');
    }

    /// A section.
    pub(crate) fn heading(&mut self, title: &str) {
        self.line(&format!(".SH \"{}\"", escaped(title)));
    }

    /// A section below it.
    pub(crate) fn subheading(&mut self, title: &str) {
        self.line(&format!(".SS \"{}\"", escaped(title)));
    }

    /// Text as it is in helps: paragraphs with blank lines between them; what is indented is kept as it is.
    pub(crate) fn prose(&mut self, text: &str) {
        let mut kept = false;
        let mut begins = true;
        for line in text.lines() {
            let keep = line.starts_with(' ') || kept && line.is_empty();
            if keep != kept {
                if keep {
                    self.paragraph();
                }
                self.line(if keep { ".nf" } else { ".fi" });
                begins = !keep;
                kept = keep;
            }
            match line {
                "" if !kept => begins = true,
                line => {
                    if std::mem::take(&mut begins) && !kept {
                        self.paragraph();
                    }
                    if kept {
                        self.line(&escaped_line(line));
                    } else {
                        self.words(line);
                    }
                }
            }
        }
        if kept {
            self.line(".fi");
        }
    }

    /// A paragraph begins, as it does below a heading anyway.
    fn paragraph(&mut self) {
        let last = self.0.lines().last().unwrap_or_default();
        if !last.starts_with(".SH") && !last.starts_with(".SS") {
            self.line(".PP");
        }
    }

    /// Text that may be broken between words.
    fn words(&mut self, text: &str) {
        let mut line = String::new();
        for word in text.split_whitespace() {
            let word = escaped(word);
            if !line.is_empty() && bytes(&line) + 1 + bytes(&word) > LINE_BYTES {
                self.line(&harmless(&std::mem::take(&mut line)));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        }
        self.line(&harmless(&line));
    }

    /// Lines of a synopsis, or of an example.
    pub(crate) fn verbatim(&mut self, text: &str) {
        self.line(".nf");
        for line in text.lines() {
            self.line(&escaped_line(line));
        }
        self.line(".fi");
    }

    /// An option or a key, and what it is.
    pub(crate) fn item(&mut self, term: &str, text: &str) {
        self.line(&format!(".TP\n\\fB{}\\fR", escaped(term)));
        let mut blank = false;
        for line in text.lines() {
            match line.trim() {
                "" => blank = true,
                line => {
                    if std::mem::take(&mut blank) {
                        self.line(".IP");
                    }
                    self.words(line);
                }
            }
        }
    }

    /// The text of the page.
    pub(crate) fn done(self) -> String {
        self.0
    }
}

/// Text without anything that means something to roff in the middle of a line.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '"' => out.push_str("\\(dq"),
            '…' => out.push_str("..."),
            c => out.push(c),
        }
    }
    out
}

/// The same for a whole line.
fn escaped_line(line: &str) -> String {
    harmless(&escaped(line))
}

/// A line that no dot at its beginning makes a request.
fn harmless(line: &str) -> String {
    match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    }
}

/// How long mandoc finds a text, in which it reads `\[u00B1]` for a letter beyond ASCII.
fn bytes(text: &str) -> usize {
    let letters = text.chars();
    letters.map(|c| if c.is_ascii() { 1 } else { 8 }).sum()
}

/// When this version was made, as the package's changelog has it: `2026-11-21`.
fn date() -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let changelog = include_str!("../../../packaging/debian/changelog");
    let signature = changelog.lines().find(|line| line.starts_with(" -- "));
    let words: Vec<&str> = signature.unwrap_or_default().split_whitespace().collect();
    let [.., day, month, year, _, _] = words[..] else {
        return "\"\"".to_owned();
    };
    let month = MONTHS.iter().position(|name| *name == month).unwrap_or(0) + 1;
    format!("{year}-{month:02}-{day:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_taken_for_a_request() {
        let mut page = Page::new("a-b", 1, "c");
        page.prose(".TH x\n'x'\n\\fB--x\n\n  kept\n   .as\n\nnext");
        let text = page.done();
        let expected = ".PP\n\\&.TH x\n\\(aqx\\(aq\n\\efB\\-\\-x\n.PP\n.nf\n  kept\n   .as\n\n.fi\n.PP\nnext\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
