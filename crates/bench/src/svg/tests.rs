//! Parsed by a reader that is not ours.

use super::*;

fn point(value: f64) -> Option<Point> {
    Some(Point {
        value,
        error: Some(value / 20.0),
    })
}

fn figure(kind: Kind) -> Figure {
    let series = |name: &str, values: &[Option<Point>]| Series {
        name: name.into(),
        points: values.to_vec(),
    };
    let panel = |name: &str| Panel {
        name: name.into(),
        y_label: "kIOPS".into(),
        series: vec![
            series("limit <8>", &[point(10.0), point(20.0), None]),
            series("limit \"32\" & more", &[point(20.0), None, point(40.0)]),
        ],
    };
    Figure {
        title: "Does <a limit> help?".into(),
        subtitle: "4k & 16k random reads \u{7} at length: ".to_owned() + &"word ".repeat(60),
        x_label: "requests in flight".into(),
        groups: vec![
            "1".into(),
            "8".into(),
            "a name that is far too long for it".into(),
        ],
        kind,
        panels: vec![panel("1 queue"), panel("4 queues")],
    }
}

#[test]
fn every_value_is_a_bar_with_its_error_and_its_text() {
    let svg = figure(Kind::Bars).to_string();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let of_class = |class: &str| {
        document
            .descendants()
            .filter(|node| node.attribute("class") == Some(class))
            .collect::<Vec<_>>()
    };
    assert_eq!(of_class("bar").len(), 2 * 4);
    assert_eq!(of_class("error").len(), 2 * 4);
    let texts: Vec<_> = document.descendants().filter_map(|n| n.text()).collect();
    for wanted in [
        "Does <a limit> help?",
        "limit \"32\" & more",
        "4 queues",
        "kIOPS",
    ] {
        assert!(texts.contains(&wanted), "{wanted}");
    }
    assert!(texts.contains(&"8, limit <8>: 20.0 ± 1.00"), "{texts:?}");
}

#[test]
fn a_bars_height_is_its_value() {
    let svg = figure(Kind::Bars).to_string();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let heights: Vec<f64> = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("bar"))
        .map(|bar| bar.attribute("height").unwrap().parse().unwrap())
        .collect();
    assert!((heights[1] / heights[0] - 2.0).abs() < 0.01, "{heights:?}");
    assert!((heights[3] / heights[0] - 4.0).abs() < 0.01, "{heights:?}");
}

#[test]
fn a_line_has_a_gap_where_nothing_was_measured() {
    let svg = figure(Kind::Lines).to_string();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let lines: Vec<_> = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("line"))
        .map(|line| line.attribute("d").unwrap())
        .collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0].matches('L').count(), 1, "{}", lines[0]);
    assert_eq!(lines[1].matches('M').count(), 2, "{}", lines[1]);
    let points = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("point"));
    assert_eq!(points.count(), 8);
}

#[test]
fn everything_is_on_the_page() {
    for kind in [Kind::Bars, Kind::Lines] {
        let svg = figure(kind).to_string();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let height: f64 = document
            .root_element()
            .attribute("height")
            .unwrap()
            .parse()
            .unwrap();
        for node in document.descendants() {
            for (name, limit) in [("x", WIDTH), ("y", height), ("cx", WIDTH), ("cy", height)] {
                if let Some(place) = node.attribute(name) {
                    let place: f64 = place.parse().unwrap();
                    assert!((0.0..=limit).contains(&place), "{name}={place}: {node:?}");
                }
            }
        }
    }
}

#[test]
fn a_figure_of_nothing_is_a_figure() {
    let empty = Figure {
        groups: Vec::new(),
        panels: Vec::new(),
        ..figure(Kind::Bars)
    };
    roxmltree::Document::parse(&empty.to_string()).unwrap();
}
