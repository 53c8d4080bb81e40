//! Dirty bitmaps: the first begins to record when all requests go by routes that record, others take its place at one moment, and
//! the last one ends.
//!
//! Iothreads get the messages that `actions::bitmaps` of the daemon sends.

use crate::dirty_sectors::BitmapSwitch;
use crate::plan::Exchange;

use super::World;

impl World {
    fn disk_bytes(&self) -> u64 {
        self.kernel.state().disk().bytes().len() as u64
    }

    /// A daemon has started, without bitmaps, or with those that it has `taken_over`.
    pub(super) fn begin_bitmaps(&mut self, taken_over: Option<Vec<u8>>) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.config.filters.marks) else {
            return;
        };
        let size = self.disk_bytes();
        let marks = self.kernel.state().disk().marks.clone();
        let bitmaps = daemon.nodes.bitmaps();
        match taken_over {
            Some(saved) => {
                let restored = bitmaps.restore(&saved, size, None);
                restored.expect("as they were saved");
                marks.handed_over(bitmaps);
            }
            None => {
                marks.lost();
                if self.filters.marks {
                    marks.begin(bitmaps, size);
                }
            }
        }
    }

    /// Bitmaps change at one moment.
    pub(super) fn switch_bitmaps(&mut self, how: BitmapSwitch) {
        if self.daemon.is_some() && self.config.filters.marks && !self.job_uses_bitmap() {
            let size = self.disk_bytes();
            let marks = self.kernel.state().disk().marks.clone();
            marks.switch(how, size);
        }
    }

    /// All go by routes that record, or by others, and what they had taken before is done.
    pub(super) fn routes_exchanged(&self, how: Exchange) {
        let (Exchange::Recorded { present: true }, Some(daemon)) = (how, &self.daemon) else {
            return;
        };
        let marks = self.kernel.state().disk().marks.clone();
        if !marks.is_recording() {
            marks.begin(daemon.nodes.bitmaps(), self.disk_bytes());
        }
    }

    /// The disk has another size, which its node gets.
    pub(super) fn resize_bitmaps(&self) {
        let size = self.disk_bytes();
        self.kernel.state().disk().marks.resized(size);
        if let Some(daemon) = &self.daemon {
            daemon.nodes.record_new_size(size);
        }
    }
}
