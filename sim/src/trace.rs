//! Trace of a run, for people: kept only when one is to read it.

use std::cell::RefCell;
use std::rc::Rc;

/// A list of lines that all parts of the world write to.
#[derive(Clone, Debug, Default)]
pub struct Trace(Option<Rc<RefCell<Vec<String>>>>);

impl Trace {
    /// One that is kept.
    #[must_use]
    pub fn kept() -> Self {
        Trace(Some(Rc::default()))
    }

    /// One line more.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if let Some(lines) = &self.0 {
            lines.borrow_mut().push(line());
        }
    }

    /// All lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0
            .as_ref()
            .map(|lines| lines.borrow().clone())
            .unwrap_or_default()
    }
}
