//! A guest whose memory is copied while devices write to it.

use super::{Guest, MEMORY, RINGS, SLOT, describe};

impl Guest {
    /// Some of its memory is copied, if a migration is under way.
    pub fn copy(&mut self, pages: u16, pick: u16) {
        if let Some(copying) = &mut self.copying {
            copying.copy(pages.into(), pick.into());
        }
    }

    /// It has taken back what a device had, which may have written it: it is copied once more.
    pub fn takes_back(&mut self) {
        if let Some(copying) = &mut self.copying {
            copying.begin_again();
        }
    }

    /// Whether a request that is not answered writes there.
    pub fn is_to_be_written(&self, addr: u64) -> bool {
        let buffers = self.asked.values().flat_map(|asked| &asked.buffers);
        let mut writable = buffers.filter(|buffer| buffer.writable);
        writable.any(|buffer| (buffer.addr..buffer.addr + u64::from(buffer.len)).contains(&addr))
    }

    /// What it has there.
    pub fn what_is_at(&self, addr: u64) -> String {
        let Some(slot) = addr.checked_sub(MEMORY + RINGS) else {
            return "rings and tables".to_owned();
        };
        let asked = self
            .asked
            .iter()
            .find(|(_, asked)| asked.slot as u64 == slot / SLOT);
        match asked {
            Some((id, asked)) => format!("#{id}, {}", describe(asked)),
            None => format!("slot {} for requests", slot / SLOT),
        }
    }
}
