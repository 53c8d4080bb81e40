//! Sorts the nodes of a configuration file so that each comes after the nodes that it refers to, and finds circles.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::tree::{Object, Value};

/// The names in a node's tree: of the node and those written inside of it, and of nodes that they refer to.
#[derive(Debug, Default)]
struct NodeNamesAndReferences<'a> {
    defines: Vec<&'a str>,
    refers_to: Vec<&'a str>,
}

impl<'a> NodeNamesAndReferences<'a> {
    /// The names in the tree of a node.
    fn of_tree(object: &'a Object) -> Self {
        let mut names = Self::default();
        names.add_names_and_references_of(object);
        names
    }

    /// Adds the names of a node and of the nodes that are written inside of it, and of those that they refer to.
    fn add_names_and_references_of(&mut self, object: &'a Object) {
        self.defines
            .extend(object.get("node-name").and_then(as_name));
        // The keys of the node below.
        for child in ["file", "image"] {
            match object.get(child) {
                Some(Value::Object(inside)) => self.add_names_and_references_of(inside),
                other => self.refers_to.extend(other.and_then(as_name)),
            }
        }
    }
}

/// The name that a value is, if it is one.
fn as_name(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) | Value::String(text) => Some(text),
        _ => None,
    }
}

/// The names of a node and of those written inside of it.
pub(super) fn defined_node_names(object: &Object) -> Vec<&str> {
    NodeNamesAndReferences::of_tree(object).defines
}

/// The indices of `nodes`, sorted so that each comes after those that it refers to, and else unchanged. Also the indices of nodes
/// that refer to each other in a circle, or to a node of a circle.
pub(super) fn sort_indices_and_find_circles(nodes: &[&Object]) -> (Vec<usize>, Vec<usize>) {
    let names: Vec<NodeNamesAndReferences> = nodes
        .iter()
        .map(|node| NodeNamesAndReferences::of_tree(node))
        .collect();
    // Nodes of each name that are not sorted yet, and the nodes that wait for them.
    let mut unsorted: HashMap<&str, (usize, Vec<usize>)> = HashMap::new();
    for name in names.iter().flat_map(|names| &names.defines) {
        unsorted.entry(name).or_default().0 += 1;
    }
    // How many of the nodes that a node refers to are not sorted yet.
    let mut unsorted_below = vec![0; nodes.len()];
    for (node, names) in names.iter().enumerate() {
        for name in &names.refers_to {
            // An undefined name is reported elsewhere, and does not delay the node.
            if let Some((_, waiting)) = unsorted.get_mut(name) {
                waiting.push(node);
                unsorted_below[node] += 1;
            }
        }
    }
    let independent = (0..nodes.len()).filter(|node| unsorted_below[*node] == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = independent.map(Reverse).collect();
    let mut sorted = Vec::with_capacity(nodes.len());
    while let Some(Reverse(node)) = ready.pop() {
        sorted.push(node);
        for name in &names[node].defines {
            let Some((unsorted_count, waiting)) = unsorted.get_mut(name) else {
                continue;
            };
            *unsorted_count -= 1;
            if *unsorted_count > 0 {
                continue;
            }
            for waiter in waiting.drain(..) {
                unsorted_below[waiter] -= 1;
                if unsorted_below[waiter] == 0 {
                    ready.push(Reverse(waiter));
                }
            }
        }
    }
    let in_circle = (0..nodes.len()).filter(|node| unsorted_below[*node] > 0);
    let in_circle = in_circle.collect();
    (sorted, in_circle)
}
