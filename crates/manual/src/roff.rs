//! The language of manual pages, as far as it is used: man(7).

/// A page in the making.
pub(crate) struct Page(String);

impl Page {
    /// A page of this name and section, with what it is in a line.
    pub(crate) fn new(name: &str, section: u8, about: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let mut page = Self(format!(
            ".TH \"{}\" {section} \"\" \"blockplane {version}\" \"blockplane\"\n",
            escaped(name)
        ));
        page.heading("NAME");
        page.line(&format!("{} \\- {}", escaped(name), escaped(about)));
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
                self.line(if keep { ".PP\n.nf" } else { ".fi" });
                begins = !keep;
                kept = keep;
            }
            match line {
                "" if !kept => begins = true,
                line => {
                    if std::mem::take(&mut begins) && !kept {
                        self.line(".PP");
                    }
                    self.line(&escaped_line(line));
                }
            }
        }
        if kept {
            self.line(".fi");
        }
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
                    self.line(&escaped_line(line));
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

/// The same for a whole line, which a dot at its beginning would make a request.
fn escaped_line(line: &str) -> String {
    let escaped = escaped(line);
    match escaped.starts_with('.') {
        true => format!("\\&{escaped}"),
        false => escaped,
    }
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
