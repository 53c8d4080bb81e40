//! Parked requests of queues: retried or answered when a monitor's client says so.

use super::StoragePlane;
use crate::parked_requests::Resume;

impl StoragePlane {
    /// Retries or answers the parked requests of the queue at this place.
    #[cold]
    pub(super) fn resume(&mut self, place: u32, how: Resume) {
        let now = self.clock.now();
        if let Some(vring) = self.vrings.get_mut(place)
            && vring.stopping.is_none()
            && !vring.resume_parked(how, &mut self.io, now)
        {
            self.lists.stall(place);
        }
    }

    /// The queue at this place may be enabled again, and have been told to go on before.
    #[cold]
    pub(super) fn resume_enabled(&mut self, place: u32) {
        let now = self.clock.now();
        if let Some(vring) = self.vrings.get_mut(place)
            && vring.stopping.is_none()
            && !vring.resume_if_enabled(&mut self.io, now)
        {
            self.lists.stall(place);
        }
    }
}
