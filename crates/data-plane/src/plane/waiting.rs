//! Requests that wait after an error, when somebody says how to go on.

use super::StoragePlane;
use crate::waiting::Resume;

impl StoragePlane {
    /// What waits in the queue at this place goes on.
    #[cold]
    pub(super) fn resume(&mut self, place: u32, how: Resume) {
        let now = self.clock.now();
        if let Some(vring) = self.vrings.get_mut(place)
            && vring.stopping.is_none()
            && !vring.resume(how, &mut self.engines, now)
        {
            self.lists.stall(vring, place);
        }
    }

    /// The queue at this place may be enabled again, and have been told to go on before.
    #[cold]
    pub(super) fn resume_enabled(&mut self, place: u32) {
        let now = self.clock.now();
        if let Some(vring) = self.vrings.get_mut(place)
            && vring.stopping.is_none()
            && !vring.resume_enabled(&mut self.engines, now)
        {
            self.lists.stall(vring, place);
        }
    }
}
