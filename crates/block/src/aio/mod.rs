//! Decides by which engine of crate `engine` a disk's requests reach the kernel (Linux AIO, io_uring, worker threads): the
//! one that is asked for if the host has it, else one that is found by probing host and disk.

pub(crate) mod nowait_probe;

use std::path::Path;

use engine::{AioError, AioSettings, LinuxAio, Uring, UringError, UringSettings};

use self::nowait_probe::supports_nowait;

/// How requests reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aio {
    /// Linux AIO, for direct I/O only: through the page cache it blocks.
    Native,
    /// The io_uring of the iothread.
    IoUring,
    /// Blocking calls of worker threads.
    Threads,
}

impl std::fmt::Display for Aio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Aio::Native => "native",
            Aio::IoUring => "io_uring",
            Aio::Threads => "threads",
        })
    }
}

/// Linux AIO and io_uring on this host, each probed when it is first asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct AioProbe {
    native: Option<Result<(), AioError>>,
    io_uring: Option<Result<(), UringError>>,
}

/// The choice for one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AioChoice {
    /// How its requests reach the kernel.
    pub aio: Aio,
    /// The reason, for the log.
    pub why: String,
    /// Another one was requested and is not available: worth a warning.
    pub is_fallback: bool,
}

impl AioProbe {
    /// Merges another probe's results.
    pub fn merge(&mut self, other: Self) {
        self.native = self.native.or(other.native);
        self.io_uring = self.io_uring.or(other.io_uring);
    }

    /// Chooses for the disk at `path`, with or without direct I/O. Without a `wanted` one **the default is decided
    /// here**: the disk is probed for `RWF_NOWAIT`.
    pub fn choose(&mut self, wanted: Option<Aio>, path: &Path, direct: bool) -> AioChoice {
        match wanted {
            Some(aio) => self.choose_requested_or_fallback(aio, direct),
            None => self.choose_default(direct, || supports_nowait(path, direct)),
        }
    }

    /// Chooses what was requested if the host has it, or else what comes closest, with the reason.
    fn choose_requested_or_fallback(&mut self, wanted: Aio, direct: bool) -> AioChoice {
        let refused = match wanted {
            Aio::Threads => None,
            Aio::Native => self
                .probe_native_once()
                .err()
                .map(|error| error.to_string()),
            Aio::IoUring => self
                .probe_io_uring_once()
                .err()
                .map(|error| error.to_string()),
        };
        match refused {
            None => AioChoice {
                aio: wanted,
                why: "as asked for".to_owned(),
                is_fallback: false,
            },
            Some(why) => AioChoice {
                aio: if wanted == Aio::IoUring && direct && self.probe_native_once().is_ok() {
                    Aio::Native
                } else {
                    Aio::Threads
                },
                why,
                is_fallback: true,
            },
        }
    }

    /// Chooses without a request: the ring where it is fastest, else Linux AIO for direct I/O, or worker threads.
    ///
    /// A ring first tries a request without waiting. Where the file system cannot do that, as on a tmpfs, the ring
    /// passes every request to a worker thread of the kernel, and Linux AIO is twice as fast. Elsewhere the ring costs
    /// less per request, and unlike io_submit(2) it does not block while a file system allocates blocks. See
    /// docs/performance.md for the figures.
    fn choose_default(
        &mut self,
        direct: bool,
        supports_nowait: impl FnOnce() -> bool,
    ) -> AioChoice {
        let (aio, why) = if supports_nowait() && self.probe_io_uring_once().is_ok() {
            let why = "the ring is there, and the disk says when it would have to wait";
            (Aio::IoUring, why.to_owned())
        } else if !direct {
            let why = match self.io_uring {
                Some(Err(ring)) => ring.to_string(),
                _ => "through the page cache requests may block".to_owned(),
            };
            (Aio::Threads, why)
        } else {
            match (self.probe_native_once(), self.io_uring) {
                (Ok(()), Some(Err(ring))) => (Aio::Native, ring.to_string()),
                (Ok(()), _) => {
                    let why = "direct I/O, but the disk cannot say when it would have to wait";
                    (Aio::Native, why.to_owned())
                }
                (Err(native), _) => match self.probe_io_uring_once() {
                    Ok(()) => (Aio::IoUring, native.to_string()),
                    Err(ring) => (Aio::Threads, format!("{ring}; {native}")),
                },
            }
        };
        AioChoice {
            aio,
            why,
            is_fallback: false,
        }
    }

    /// Probes Linux AIO by making a context and closing it again.
    fn probe_native_once(&mut self) -> Result<(), AioError> {
        let probe = || LinuxAio::new(AioSettings::default()).map(drop);
        *self.native.get_or_insert_with(probe)
    }

    /// Probes io_uring by making a ring and closing it again.
    fn probe_io_uring_once(&mut self) -> Result<(), UringError> {
        let probe = || Uring::new(UringSettings::default()).map(drop);
        *self.io_uring.get_or_insert_with(probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: AioProbe = AioProbe {
        native: Some(Ok(())),
        io_uring: Some(Ok(())),
    };
    const NO_AIO: Result<(), AioError> = Err(AioError::NotSupported);
    const FORBIDDEN: Result<(), UringError> = Err(UringError::Disabled { level: 2 });

    #[test]
    fn a_request_is_replaced_if_it_is_unavailable_and_the_reason_names_the_remedy() {
        let forbidden = || AioProbe {
            io_uring: Some(FORBIDDEN),
            ..ALL
        };
        let without_aio = AioProbe {
            native: Some(NO_AIO),
            ..ALL
        };
        for (mut probe, requested, direct, chosen, reason) in [
            (ALL, Aio::Native, true, Aio::Native, ""),
            (ALL, Aio::IoUring, true, Aio::IoUring, ""),
            (ALL, Aio::IoUring, false, Aio::IoUring, ""),
            (ALL, Aio::Threads, true, Aio::Threads, ""),
            (forbidden(), Aio::IoUring, true, Aio::Native, "sysctl"),
            (forbidden(), Aio::IoUring, false, Aio::Threads, "sysctl"),
            (without_aio, Aio::Native, true, Aio::Threads, "CONFIG_AIO"),
        ] {
            let choice = probe.choose_requested_or_fallback(requested, direct);
            let is_fallback = requested != chosen;
            assert_eq!((choice.aio, choice.is_fallback), (chosen, is_fallback));
            assert!(choice.why.contains(reason), "{}", choice.why);
        }
    }

    #[test]
    fn the_default_depends_on_the_disk_and_the_host() {
        let probe = |native, io_uring| AioProbe {
            native: Some(native),
            io_uring: Some(io_uring),
        };
        for (mut probe, direct, nowait, aio) in [
            (ALL, true, true, Aio::IoUring),
            (ALL, true, false, Aio::Native),
            (ALL, false, true, Aio::IoUring),
            (ALL, false, false, Aio::Threads),
            (probe(NO_AIO, Ok(())), true, false, Aio::IoUring),
            (probe(Ok(()), FORBIDDEN), true, true, Aio::Native),
            (probe(Ok(()), FORBIDDEN), false, true, Aio::Threads),
            (probe(NO_AIO, FORBIDDEN), true, true, Aio::Threads),
        ] {
            let choice = probe.choose_default(direct, || nowait);
            assert_eq!((choice.aio, choice.is_fallback), (aio, false));
            assert!(!choice.why.is_empty());
        }
    }
}
