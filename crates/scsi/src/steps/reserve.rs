//! What PERSISTENT RESERVE OUT does after it has done its work: reservations are saved, and tasks of those
//! who lost theirs end.

use super::Next;
use crate::nexus::Nexus;

pub(crate) struct Reserve {
    save: bool,
    settle: Option<Vec<Nexus>>,
}

impl Reserve {
    pub fn new(save: bool, settle: Option<Vec<Nexus>>) -> Self {
        Reserve { save, settle }
    }

    pub fn next(&mut self) -> Next {
        if std::mem::take(&mut self.save) {
            return Next::Save;
        }
        match self.settle.take() {
            Some(lost) if !lost.is_empty() => Next::Settle(lost),
            _ => Next::Finished,
        }
    }
}
