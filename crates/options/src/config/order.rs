//! Nodes in the order in which they can be opened: the one below first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::tree::{Object, Value};

/// What a node's tree names: itself and the nodes written inside of it, and those that it refers to.
#[derive(Debug, Default)]
struct Names<'a> {
    gives: Vec<&'a str>,
    wants: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn of(object: &'a Object) -> Self {
        let mut names = Self::default();
        names.collect(object);
        names
    }

    fn collect(&mut self, object: &'a Object) {
        self.gives.extend(object.get("node-name").and_then(text));
        // As drivers call the node below.
        for child in ["file", "image"] {
            match object.get(child) {
                Some(Value::Object(inside)) => self.collect(inside),
                other => self.wants.extend(other.and_then(text)),
            }
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) | Value::String(text) => Some(text),
        _ => None,
    }
}

/// Names of a node and of those written inside of it.
pub(super) fn given(object: &Object) -> Vec<&str> {
    Names::of(object).gives
}

/// The indices of `nodes` so that each comes after those it refers to, else in the order in which they are.
/// Also those that refer to each other in a circle, or to one that does.
pub(super) fn sorted(nodes: &[&Object]) -> (Vec<usize>, Vec<usize>) {
    let names: Vec<Names> = nodes.iter().map(|node| Names::of(node)).collect();
    // How many are still to come that give a name, and who waits for it.
    let mut coming: HashMap<&str, (usize, Vec<usize>)> = HashMap::new();
    for given in names.iter().flat_map(|names| &names.gives) {
        coming.entry(given).or_default().0 += 1;
    }
    let mut waits_for = vec![0; nodes.len()];
    for (node, names) in names.iter().enumerate() {
        for wanted in &names.wants {
            // What nobody defines holds nobody up: it is an error that somebody else finds.
            if let Some((_, waiting)) = coming.get_mut(wanted) {
                waiting.push(node);
                waits_for[node] += 1;
            }
        }
    }
    let free = (0..nodes.len()).filter(|node| waits_for[*node] == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = free.map(Reverse).collect();
    let mut sorted = Vec::with_capacity(nodes.len());
    while let Some(Reverse(node)) = ready.pop() {
        sorted.push(node);
        for given in &names[node].gives {
            let Some((left, waiting)) = coming.get_mut(given) else {
                continue;
            };
            *left -= 1;
            if *left > 0 {
                continue;
            }
            for waiting in waiting.drain(..) {
                waits_for[waiting] -= 1;
                if waits_for[waiting] == 0 {
                    ready.push(Reverse(waiting));
                }
            }
        }
    }
    let left = (0..nodes.len()).filter(|node| waits_for[*node] > 0);
    let left = left.collect();
    (sorted, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted_names(nodes: &[(&str, &str)]) -> (Vec<usize>, Vec<usize>) {
        let node = |(name, below): &(&str, &str)| {
            let mut object = Object::default();
            object.push("node-name".to_owned(), Value::Text((*name).to_owned()));
            object.push("file".to_owned(), Value::Text((*below).to_owned()));
            object
        };
        let nodes: Vec<Object> = nodes.iter().map(node).collect();
        sorted(&nodes.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_node_below_comes_first() {
        let nodes = [
            ("top", "middle"),
            ("other", "absent"),
            ("middle", "low"),
            ("low", "absent"),
        ];
        assert_eq!(sorted_names(&nodes), (vec![1, 3, 2, 0], vec![]));
    }

    #[test]
    fn a_circle_is_noticed() {
        let nodes = [
            ("a", "b"),
            ("b", "a"),
            ("on-it", "a"),
            ("free", "absent"),
            ("self", "self"),
        ];
        assert_eq!(sorted_names(&nodes), (vec![3], vec![0, 1, 2, 4]));
    }
}
