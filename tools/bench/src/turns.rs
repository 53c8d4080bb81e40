//! The order in which contenders are measured, so that drift of the machine favours none.

/// Numbers of the contenders, each once: forwards in one repetition, and backwards in the next.
pub(crate) fn of_repetition(repetition: u32, contenders: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contenders).collect();
    if repetition % 2 == 1 {
        order.reverse();
    }
    order
}
