//! Writer of a manual page in roff: its head with the release date, headings, paragraphs and items, by the macros of
//! man(7), which the `roff` crate does not have.

use roff::{Roff, bold, roman};

/// The program and its version, at the foot of a page.
pub(crate) const SOURCE: &str = concat!("blockplane ", env!("CARGO_PKG_VERSION"));
/// The manual that the pages belong to, at their head.
pub(crate) const MANUAL: &str = "blockplane";

/// A manual page, or the last part of one.
#[derive(Default)]
pub(crate) struct Page(Roff);

impl Page {
    /// A page with this name and section, and a one-line description.
    pub(crate) fn with_name_section(name: &str, section: &str, about: &str) -> Self {
        let mut page = Self::default();
        let title = [name, section, &release_date(), SOURCE, MANUAL];
        page.0.control("TH", title);
        page.add_heading("NAME");
        page.add_prose(&format!("{name} - {about}"));
        page
    }

    /// Begins a section.
    pub(crate) fn add_heading(&mut self, title: &str) {
        self.0.control("SH", [title]);
    }

    /// Begins a subsection.
    pub(crate) fn add_subheading(&mut self, title: &str) {
        // As text, which is escaped: titles name options.
        self.0.control("SS", []).text([roman(title)]);
    }

    /// Adds paragraphs, which blank lines separate.
    pub(crate) fn add_prose(&mut self, text: &str) {
        self.add_paragraphs("PP", text);
    }

    /// Adds lines as they are: a synopsis, or examples.
    pub(crate) fn add_verbatim(&mut self, text: &str) {
        self.0.control("nf", []);
        for line in text.lines() {
            self.0.text([roman(line)]);
        }
        self.0.control("fi", []);
    }

    /// Adds an option or a key with its description.
    pub(crate) fn add_item(&mut self, term: &str, text: &str) {
        self.0.control("TP", []).text([bold(term)]);
        self.add_paragraphs("IP", text);
    }

    /// Adds the paragraphs of a text; the macro `separator` begins each but the first.
    fn add_paragraphs(&mut self, separator: &str, text: &str) {
        for line in text.lines() {
            match line.trim() {
                "" => self.0.control(separator, []),
                line => self.0.text([roman(line)]),
            };
        }
    }

    /// The text of the page.
    pub(crate) fn finish(self) -> String {
        adapt_for_terminals(&self.0.render())
    }
}

/// Prepares the text of a page for terminals of any width and locale: no hyphenation, which would break names of options, no
/// justified lines, and three dots instead of an ellipsis.
pub(crate) fn adapt_for_terminals(page: &str) -> String {
    page.replacen(".SH NAME", ".nh\n.ad l\n.SH NAME", 1)
        .replace('…', "...")
}

/// The date of this version in the package's changelog, such as `2026-11-21`.
pub(crate) fn release_date() -> String {
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
