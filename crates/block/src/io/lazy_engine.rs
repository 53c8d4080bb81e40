//! `LazyEngine`: Linux AIO or a ring, made when the first disk needs it; a failure is logged once.

use std::io;

/// An engine that is made on first use.
pub(crate) enum LazyEngine<T> {
    /// Not needed yet.
    Unmade,
    /// It could not be made; the log has the reason.
    Failed,
    /// It exists, and its descriptor is watched.
    Made(T),
}

impl<T> LazyEngine<T> {
    /// The engine, if it exists.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        match self {
            LazyEngine::Made(engine) => Some(engine),
            LazyEngine::Unmade | LazyEngine::Failed => None,
        }
    }

    /// The engine, if it exists.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        match self {
            LazyEngine::Made(engine) => Some(engine),
            LazyEngine::Unmade | LazyEngine::Failed => None,
        }
    }

    /// Makes the engine unless that was tried before, and returns whether it exists. `without` is the log's text for the
    /// case that it cannot be made.
    pub fn make_and_watch_once(
        &mut self,
        make: impl FnOnce() -> Result<T, String>,
        watch: impl FnOnce(&T) -> io::Result<()>,
        without: &str,
    ) -> bool {
        if let LazyEngine::Unmade = self {
            let watched = make().and_then(|engine| match watch(&engine) {
                Ok(()) => Ok(engine),
                Err(error) => Err(format!("its completions cannot be watched: {error}")),
            });
            *self = match watched {
                Ok(engine) => LazyEngine::Made(engine),
                Err(error) => {
                    tracing::warn!(error, "{without}");
                    LazyEngine::Failed
                }
            };
        }
        self.get().is_some()
    }
}
