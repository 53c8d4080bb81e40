//! An engine that is made when the first disk wants it.

use std::io;

/// An engine, or why there is none.
pub(crate) enum LazyEngine<T> {
    /// Not wanted yet.
    Unmade,
    /// It cannot be had, which was said.
    Failed,
    /// It is there, and its descriptor is watched.
    Made(T),
}

impl<T> LazyEngine<T> {
    /// The engine, if it is there.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        match self {
            LazyEngine::Made(engine) => Some(engine),
            LazyEngine::Unmade | LazyEngine::Failed => None,
        }
    }

    /// The engine, if it is there.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        match self {
            LazyEngine::Made(engine) => Some(engine),
            LazyEngine::Unmade | LazyEngine::Failed => None,
        }
    }

    /// Makes it, unless that was tried before; whether it is there. `without` is what the operator
    /// reads beside the error where it cannot be had.
    pub fn make(
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
