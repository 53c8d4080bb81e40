//! An iothread in the daemon's state: its thread and its options, which may change while it runs.

use std::sync::Arc;

use iothread::IothreadHandle;
use options::IothreadOptions;

use crate::error::BoxError;

/// An iothread.
pub(crate) struct Iothread {
    /// Its present options, with all changes since it was added.
    pub options: IothreadOptions,
    pub thread: Arc<IothreadHandle>,
}

impl Iothread {
    /// Applies new options while it runs. Most of them take effect in its next iteration.
    pub fn apply_options(&mut self, new: IothreadOptions) -> Result<(), BoxError> {
        let Iothread { options, thread } = self;
        thread.set_polling(to_poll_settings(&new))?;
        if options.aio_max_batch != new.aio_max_batch {
            thread.set_aio_max_batch(new.aio_max_batch)?;
        }
        if options.aio_max_events != new.aio_max_events {
            thread.set_aio_max_events(new.aio_max_events)?;
        }
        if options.cpu_affinity != new.cpu_affinity {
            thread.set_cpu_affinity(&new.cpu_affinity)?;
        }
        let pool_limits =
            |options: &IothreadOptions| (options.thread_pool_min, options.thread_pool_max);
        if pool_limits(options) != pool_limits(&new) {
            let resized = thread.set_thread_pool(new.thread_pool_min, new.thread_pool_max);
            if let Err(error) = resized {
                // The new minimum of threads could not be started: restore the old limits.
                thread.set_thread_pool(options.thread_pool_min, options.thread_pool_max)?;
                return Err(error.into());
            }
        }
        *options = new;
        Ok(())
    }
}

/// The polling settings of these options.
pub(crate) fn to_poll_settings(options: &IothreadOptions) -> iothread::event_loop::PollSettings {
    iothread::event_loop::PollSettings {
        max_ns: options.poll_max_ns,
        grow: options.poll_grow,
        shrink: options.poll_shrink,
        cpu_max_percent: options.poll_cpu_max,
    }
}
