//! Headings, paragraphs and items of a manual page: man(7), as far as the `roff` crate does not have it.

use roff::{Roff, bold, roman};

/// The program and its version, at the foot of a page.
pub(crate) const SOURCE: &str = concat!("blockplane ", env!("CARGO_PKG_VERSION"));
/// The manual that the pages belong to, at their head.
pub(crate) const MANUAL: &str = "blockplane";

/// A page, or the end of one that begins elsewhere.
#[derive(Default)]
pub(crate) struct Page(Roff);

impl Page {
    /// A page of this name and section, with what it is in a line.
    pub(crate) fn new(name: &str, section: &str, about: &str) -> Self {
        let mut page = Self::default();
        let title = [name, section, &date(), SOURCE, MANUAL];
        page.0.control("TH", title);
        page.heading("NAME");
        page.prose(&format!("{name} - {about}"));
        page
    }

    /// A section.
    pub(crate) fn heading(&mut self, title: &str) {
        self.0.control("SH", [title]);
    }

    /// A section below it.
    pub(crate) fn subheading(&mut self, title: &str) {
        // As text, which is escaped: titles name options.
        self.0.control("SS", []).text([roman(title)]);
    }

    /// Paragraphs with blank lines between them.
    pub(crate) fn prose(&mut self, text: &str) {
        self.paragraphs("PP", text);
    }

    /// Lines of a synopsis, or of examples.
    pub(crate) fn verbatim(&mut self, text: &str) {
        self.0.control("nf", []);
        for line in text.lines() {
            self.0.text([roman(line)]);
        }
        self.0.control("fi", []);
    }

    /// An option or a key, and what it is.
    pub(crate) fn item(&mut self, term: &str, text: &str) {
        self.0.control("TP", []).text([bold(term)]);
        self.paragraphs("IP", text);
    }

    fn paragraphs(&mut self, separator: &str, text: &str) {
        for line in text.lines() {
            match line.trim() {
                "" => self.0.control(separator, []),
                line => self.0.text([roman(line)]),
            };
        }
    }

    /// The text of the page.
    pub(crate) fn done(self) -> String {
        readable(&self.0.render())
    }
}

/// The text of a page, for terminals of any width and locale: names of options and keys are not hyphenated, lines not
/// stretched, and three dots are three dots, which a terminal without Unicode has too.
pub(crate) fn readable(page: &str) -> String {
    page.replacen(".SH NAME", ".nh\n.ad l\n.SH NAME", 1)
        .replace('…', "...")
}

/// When this version was made, as the package's changelog has it: `2026-11-21`.
pub(crate) fn date() -> String {
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
