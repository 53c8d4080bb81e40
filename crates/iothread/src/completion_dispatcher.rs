//! Dispatch of completions to the queues and socket devices that their requests came from.

use block::{IoContext, token};
use engine::Completion;

use crate::latency_trace::CompletionToSignalTrace;
use crate::queue_lists::QueueLists;
use crate::source_table::SourceTable;

/// Dispatches completions to queues and socket devices.
pub(crate) struct CompletionDispatcher<'a> {
    pub io: &'a mut IoContext,
    pub sources: &'a mut SourceTable,
    pub lists: &'a mut QueueLists,
    pub trace: &'a mut CompletionToSignalTrace,
}

impl CompletionDispatcher<'_> {
    /// Passes each run of completions of the same queue to that queue, `now` in ticks.
    pub fn dispatch(&mut self, completions: &[Completion], now: u64) {
        for run in split_into_runs(completions) {
            let source_index = source_index_of(&run[0]);
            let Some(vring) = self.sources.get_mut(source_index) else {
                self.dispatch_to_socket_device(source_index, run);
                continue;
            };
            vring.complete(run, self.io, now);
            self.trace.record_completion(source_index);
            if self.lists.unpublished.insert(source_index) {
                // Its guest is likely to add a request: it need not kick for that.
                self.lists.activate_if_may_admit(vring, source_index);
            }
        }
    }

    /// Passes completions to the socket device with this index, which no queue has.
    fn dispatch_to_socket_device(&mut self, source_index: u32, run: &[Completion]) {
        let Some(running) = self.sources.socket_devices.get_mut(source_index) else {
            debug_assert!(
                false,
                "a source keeps its index until its last request has completed"
            );
            return;
        };
        running.complete(run);
        self.lists.ready_devices.insert(source_index);
    }
}

/// Splits completions into runs of the same source.
fn split_into_runs(completions: &[Completion]) -> impl Iterator<Item = &[Completion]> {
    completions.chunk_by(|one, next| source_index_of(one) == source_index_of(next))
}

fn source_index_of(completion: &Completion) -> u32 {
    token::source_index(completion.token)
}

#[cfg(test)]
mod tests {
    use block::token;
    use engine::{Completion, Errno};

    use super::split_into_runs;

    #[test]
    fn completions_are_split_where_the_queue_changes_and_only_there() {
        let completion = |(source_index, slot, result)| Completion {
            token: token::new(source_index, slot),
            result,
        };
        let completions: Vec<_> = [
            (3, 0, Ok(())),
            (3, u32::MAX, Err(Errno::IO)),
            (1, 7, Ok(())),
            (3, 1, Ok(())),
            (3, 2, Ok(())),
        ]
        .map(completion)
        .into();
        let tokens = |run: &[Completion]| run.iter().map(|one| one.token).collect::<Vec<_>>();
        let cut: Vec<_> = split_into_runs(&completions).map(tokens).collect();
        assert_eq!(cut.concat(), tokens(&completions), "all of them, in order");
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 2]);
        assert!(split_into_runs(&[]).next().is_none());
    }
}
