//! The interrupt line (INTx) of a device: its level, its mask, and the eventfds that signal and unmask it.
//!
//! The line is level-triggered, but an eventfd signals edges. So a signalled interrupt is masked automatically. When the
//! front-end has handled it, it unmasks it by a message or by another eventfd, and is signalled again if the level is
//! still high. QEMU sends the message without KVM, at each access of the guest to a BAR; with KVM the kernel signals the eventfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use eventfd::{Signaller, take_count};

/// The line and its eventfds.
pub(crate) struct Intx {
    signaller: Signaller,
    level: bool,
    masked: bool,
    trigger: Option<OwnedFd>,
    unmask: Option<OwnedFd>,
    /// Counts changes of `unmask`.
    pub generation: u64,
}

impl Intx {
    /// A line that is low and connected to nothing.
    pub fn new(signaller: Signaller) -> Self {
        Intx {
            signaller,
            level: false,
            masked: false,
            trigger: None,
            unmask: None,
            generation: 0,
        }
    }

    /// Raises or lowers the line.
    pub fn set_level_and_signal_if_pending(&mut self, level: bool) {
        self.level = level;
        self.signal_and_mask_if_pending();
    }

    /// Masks the interrupt.
    pub fn mask(&mut self) {
        self.masked = true;
    }

    /// Unmasks the interrupt.
    pub fn unmask_and_signal_if_pending(&mut self) {
        self.masked = false;
        self.signal_and_mask_if_pending();
    }

    /// Signals an interrupt once, whatever the level.
    pub fn trigger_once(&self) {
        if let Some(trigger) = &self.trigger {
            self.signaller.signal(trigger);
        }
    }

    /// Sets the eventfd that interrupts are signalled by.
    pub fn set_trigger_eventfd_and_signal_if_pending(&mut self, trigger: Option<OwnedFd>) {
        self.trigger = trigger;
        self.signal_and_mask_if_pending();
    }

    /// Sets the eventfd by which the front-end unmasks the interrupt.
    pub fn set_unmask_eventfd(&mut self, unmask: Option<OwnedFd>) {
        self.unmask = unmask;
        self.generation += 1;
    }

    /// The eventfd for unmasking. When it is readable, call [`Intx::unmask_if_eventfd_signalled`].
    pub fn unmask_fd(&self) -> Option<BorrowedFd<'_>> {
        self.unmask.as_ref().map(AsFd::as_fd)
    }

    /// Unmasks the interrupt if the eventfd for that was signalled.
    pub fn unmask_if_eventfd_signalled(&mut self) {
        // The front-end may have read it meanwhile.
        if let Some(unmask) = &self.unmask
            && take_count(unmask) > 0
        {
            self.unmask_and_signal_if_pending();
        }
    }

    /// Drops the eventfds and unmasks the interrupt; the line keeps its level.
    pub fn drop_eventfds_and_unmask(&mut self) {
        *self = Intx {
            level: self.level,
            generation: self.generation + 1,
            ..Intx::new(self.signaller.clone())
        };
    }

    /// Signals the interrupt, and masks it, if the line is high and the interrupt is not masked.
    fn signal_and_mask_if_pending(&mut self) {
        if self.level && !self.masked && self.trigger.is_some() {
            self.masked = true;
            self.trigger_once();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn new_eventfd() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    fn new_line() -> Intx {
        Intx::new(Signaller::new("e"))
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Level(bool),
        Mask,
        Unmask,
        UnmaskBySignal,
        Connect(bool),
        TriggerOnce,
        Disable,
    }

    /// Any action of the device or the front-end on the line.
    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<bool>().prop_map(Step::Level),
            Just(Step::Mask),
            Just(Step::Unmask),
            Just(Step::UnmaskBySignal),
            any::<bool>().prop_map(Step::Connect),
            Just(Step::TriggerOnce),
            Just(Step::Disable),
        ]
    }

    proptest! {
        /// The model is the module's comment, with numbers instead of descriptors.
        #[test]
        fn the_line_behaves_like_its_model(steps in proptest::collection::vec(step(), 0..40)) {
            let (trigger, unmask) = (new_eventfd(), new_eventfd());
            let mut line = new_line();
            line.set_unmask_eventfd(Some(unmask.try_clone().unwrap()));
            let (mut level, mut masked, mut connected, mut has_unmask) = (false, false, false, true);
            for step in steps {
                let mut signals = 0;
                match step {
                    Step::Level(new) => {
                        level = new;
                        line.set_level_and_signal_if_pending(new);
                    }
                    Step::Mask => {
                        masked = true;
                        line.mask();
                    }
                    Step::Unmask => {
                        masked = false;
                        line.unmask_and_signal_if_pending();
                    }
                    Step::UnmaskBySignal => {
                        masked &= !has_unmask;
                        rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
                        line.unmask_if_eventfd_signalled();
                        prop_assert_eq!(take_count(&unmask), u64::from(!has_unmask), "it is read");
                    }
                    Step::Connect(new) => {
                        connected = new;
                        line.set_trigger_eventfd_and_signal_if_pending(new.then(|| trigger.try_clone().unwrap()));
                    }
                    Step::TriggerOnce => {
                        signals += u64::from(connected);
                        line.trigger_once();
                    }
                    Step::Disable => {
                        (masked, connected, has_unmask) = (false, false, false);
                        line.drop_eventfds_and_unmask();
                    }
                }
                if level && !masked && connected {
                    signals += 1;
                    masked = true;
                }
                prop_assert_eq!(take_count(&trigger), signals, "{:?}", step);
            }
        }
    }

    /// The front-end shares their flags, so it can make them block.
    #[test]
    fn full_and_unsignalled_eventfds_do_not_block() {
        eventfd::start_guard().unwrap();
        let [full, unsignalled] = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let mut line = new_line();
        line.set_trigger_eventfd_and_signal_if_pending(Some(full));
        line.set_level_and_signal_if_pending(true);
        line.set_unmask_eventfd(Some(unsignalled));
        line.unmask_if_eventfd_signalled();
    }
}
