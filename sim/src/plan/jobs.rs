//! Jobs of a run: backups, and commands for them.

use iothread::OnError;

use crate::random::Random;

use super::{Backup, Config, JobEvent, Mirror};

/// A job that begins.
pub(super) fn begin(config: &Config, random: &mut Random) -> JobEvent {
    let on_error = random.pick(&[
        OnError::Report,
        OnError::Report,
        OnError::Stop,
        OnError::Ignore,
    ]);
    let workers = random.pick(&[1, 2, 8]);
    match !config.filters.are_tasks() && !config.filters.marks && !random.one_in(4) {
        true => JobEvent::Mirror(Mirror {
            switches_over: random.one_in(2),
            blocks_writes: random.one_in(2),
            on_error,
            workers,
        }),
        false => JobEvent::Backup(Backup {
            bitmap: !random.one_in(6),
            incremental: !random.one_in(3),
            always: random.one_in(2),
            on_error,
            workers,
        }),
    }
}

/// A command for the job.
pub(super) fn command(random: &mut Random) -> JobEvent {
    random.pick(&[
        JobEvent::Pause,
        JobEvent::Resume,
        JobEvent::Resume,
        JobEvent::Complete,
        JobEvent::Complete,
        JobEvent::Complete,
        JobEvent::Cancel,
    ])
}
