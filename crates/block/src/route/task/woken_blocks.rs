//! The woken async tasks of an iothread, in blocks: a block is added when there are more tasks than ever before, so that there
//! is no limit that one source could reach for all. Blocks take turns.

use std::sync::Arc;
use std::task::Waker;

use super::Wake as WakeLoop;
use super::woken::WokenTasks;

/// Tasks of a block; nearly all iothreads have one.
pub(super) const BLOCK_TASKS: u32 = 4096;

/// A set of tasks, by their number in the block, and the word with which its next batch begins.
struct Block {
    woken: Arc<WokenTasks>,
    next_word: usize,
}

/// The set of woken tasks.
pub(super) struct WokenBlocks {
    blocks: Vec<Block>,
    /// The block with which the next batch begins.
    next_block: usize,
    wake_loop: WakeLoop,
}

impl WokenBlocks {
    /// An empty set. `wake_loop` wakes the iothread's loop, from any thread.
    pub fn new(wake_loop: WakeLoop) -> Self {
        WokenBlocks {
            blocks: Vec::new(),
            next_block: 0,
            wake_loop,
        }
    }

    /// A waker of a task, whose block is made if it is the first of it.
    pub fn waker(&mut self, task: u32) -> Waker {
        while self.blocks.len() <= (task / BLOCK_TASKS) as usize {
            self.blocks.push(Block {
                woken: WokenTasks::new(BLOCK_TASKS, self.wake_loop.clone()),
                next_word: 0,
            });
        }
        self.block_of(task).woken.waker(task % BLOCK_TASKS)
    }

    /// Adds a task that has a waker.
    pub fn insert_without_waking_loop(&self, task: u32) {
        let woken = &self.block_of(task).woken;
        woken.insert_without_waking_loop(task % BLOCK_TASKS);
    }

    fn block_of(&self, task: u32) -> &Block {
        &self.blocks[(task / BLOCK_TASKS) as usize]
    }

    /// Whether a task may be in the set.
    #[inline]
    pub fn may_have_any(&self) -> bool {
        self.blocks.iter().any(|block| block.woken.may_have_any())
    }

    /// Moves up to `budget` tasks into `out`, which is empty. The next batch begins where this one ends, and with another
    /// block.
    pub fn take_batch(&mut self, budget: usize, out: &mut Vec<u32>) {
        let count = self.blocks.len();
        let first = self.next_block;
        for index in (first..count).chain(0..first) {
            if out.len() == budget {
                return;
            }
            let Block { woken, next_word } = &mut self.blocks[index];
            let before = out.len();
            *next_word = woken.take_batch(*next_word, budget, out);
            // There are fewer tasks than 2^32.
            #[allow(clippy::cast_possible_truncation, reason = "see above")]
            let first_task = index as u32 * BLOCK_TASKS;
            out[before..]
                .iter_mut()
                .for_each(|task| *task += first_task);
            self.next_block = (index + 1) % count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_all_blocks_are_taken_and_none_waits_for_those_of_another_block() {
        let mut woken = WokenBlocks::new(Arc::new(|| ()));
        assert!(!woken.may_have_any());
        let busy: Vec<_> = (0..100).map(|task| woken.waker(task)).collect();
        let late = woken.waker(2 * BLOCK_TASKS + 7);
        let mut out = Vec::new();
        late.wake_by_ref();
        // Tasks of the first block are woken again and again.
        for round in 0..2 {
            busy.iter().for_each(Waker::wake_by_ref);
            out.clear();
            woken.take_batch(10, &mut out);
            assert_eq!(out.len(), 10, "round {round}");
        }
        assert_eq!(out[0], 2 * BLOCK_TASKS + 7, "in the second batch");
        while woken.may_have_any() {
            out.clear();
            woken.take_batch(10, &mut out);
        }
        woken.insert_without_waking_loop(BLOCK_TASKS + 1);
        out.clear();
        woken.take_batch(10, &mut out);
        assert_eq!(out, [BLOCK_TASKS + 1]);
    }
}
