//! Nodes in the order in which they can be opened: the one below first.

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
        match object.get("file") {
            Some(Value::Object(inside)) => self.collect(inside),
            other => self.wants.extend(other.and_then(text)),
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
    let mut left: Vec<usize> = (0..nodes.len()).collect();
    let mut sorted = Vec::with_capacity(nodes.len());
    // What nobody defines holds nobody up: it is an error that somebody else finds.
    let is_ready = |node: usize, left: &[usize]| {
        let mut wants = names[node].wants.iter();
        !wants.any(|wanted| {
            left.iter()
                .any(|other| names[*other].gives.contains(wanted))
        })
    };
    while let Some(position) = left.iter().position(|node| is_ready(*node, &left)) {
        sorted.push(left.remove(position));
    }
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
