//! `VFIO_USER_DEVICE_SET_IRQS`: set-up of the interrupt line.

use std::os::fd::OwnedFd;

use crate::error::CommandError;
use crate::payload::decode_payload;
use crate::session::Session;
use crate::wire::{self, NUM_IRQS, SetIrqs};

/// The number of interrupts of a kind: there is one INTx line and no other.
pub(crate) fn irq_count_of_kind(index: u32) -> u32 {
    u32::from(index == wire::IRQ_INTX)
}

impl Session {
    /// DEVICE_SET_IRQS: sets eventfds of the interrupt line, masks, unmasks or triggers it, or disconnects it.
    pub(crate) fn set_irqs(
        &mut self,
        payload: &[u8],
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), CommandError> {
        let request = decode_payload!(SetIrqs, first of payload);
        let booleans = &payload[SetIrqs::BYTES..];
        let SetIrqs {
            flags,
            index,
            start,
            count,
            ..
        } = request;
        let wrong = || {
            CommandError::invalid(format!(
                "SET_IRQS of kind {index}, {count} from {start} on, with flags {flags:#x}, {} bytes and {} \
                 descriptors",
                booleans.len(),
                fds.len()
            ))
        };
        let data = flags & 0x7;
        let action = flags & !0x7;
        if index >= NUM_IRQS {
            return Err(wrong());
        }
        if (data, action, start, count) == (wire::IRQ_DATA_NONE, wire::IRQ_ACTION_TRIGGER, 0, 0)
            && fds.is_empty()
            && booleans.is_empty()
        {
            if index == wire::IRQ_INTX {
                self.bus.intx.drop_eventfds_and_unmask();
            }
            return Ok(());
        }
        if (start, count) != (0, 1) || irq_count_of_kind(index) == 0 {
            return Err(wrong());
        }
        let applies = match (data, booleans, fds.len()) {
            (wire::IRQ_DATA_NONE, [], 0) => true,
            (wire::IRQ_DATA_BOOL, [boolean], 0) => *boolean != 0,
            (wire::IRQ_DATA_EVENTFD, [], 0 | 1) => true,
            _ => return Err(wrong()),
        };
        let intx = &mut self.bus.intx;
        if data == wire::IRQ_DATA_EVENTFD {
            if !matches!(action, wire::IRQ_ACTION_TRIGGER | wire::IRQ_ACTION_UNMASK) {
                return Err(wrong());
            }
            let eventfd =
                eventfd::check_eventfd_and_set_nonblocking("interrupt", fds.pop().map(Into::into))
                    .map_err(|error| CommandError::invalid(format!("SET_IRQS with {error}")))?;
            if action == wire::IRQ_ACTION_TRIGGER {
                intx.set_trigger_eventfd_and_signal_if_pending(eventfd);
            } else {
                intx.set_unmask_eventfd(eventfd);
            }
            return Ok(());
        }
        match action {
            wire::IRQ_ACTION_MASK if applies => intx.mask(),
            wire::IRQ_ACTION_UNMASK if applies => intx.unmask_and_signal_if_pending(),
            wire::IRQ_ACTION_TRIGGER if applies => intx.trigger_once(),
            wire::IRQ_ACTION_MASK | wire::IRQ_ACTION_UNMASK | wire::IRQ_ACTION_TRIGGER => {}
            _ => return Err(wrong()),
        }
        Ok(())
    }
}
