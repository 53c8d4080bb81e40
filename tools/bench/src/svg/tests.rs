//! Tests of plots, which an independent parser reads.

use roxmltree::{Document, Node};

use super::*;

fn point(value: f64) -> Option<Point> {
    Some(Point {
        value,
        error: Some(value / 20.0),
    })
}

fn figure() -> Figure {
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
            "a name that is so long that it has to be on two lines".into(),
        ],
        panels: vec![panel("1 queue"), panel("4 queues")],
    }
}

fn numbers(node: Node<'_, '_>, names: &[&str]) -> Vec<f64> {
    let number = |name: &&str| node.attribute(*name).unwrap().parse().unwrap();
    names.iter().map(number).collect()
}

/// Rectangles behind the page and the legend's two squares.
fn bars<'d>(document: &'d Document<'_>) -> Vec<Node<'d, 'd>> {
    let rectangles = document.descendants().filter(|n| n.has_tag_name("rect"));
    rectangles.skip(3).collect()
}

#[test]
fn plot_has_a_bar_with_error_for_every_value_and_all_names() {
    let svg = figure().svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    assert_eq!(bars(&document).len(), 2 * 4);
    let errors = document.descendants().filter(|n| n.has_tag_name("circle"));
    assert_eq!(errors.count(), 2 * 4);
    let texts = document.descendants().filter(|n| n.has_tag_name("text"));
    let texts: Vec<&str> = texts.map(|n| n.text().unwrap().trim()).collect();
    for wanted in [
        "Does <a limit> help?",
        "limit \"32\" & more",
        "4 queues",
        "kIOPS",
        "requests in flight",
        "8",
    ] {
        assert!(texts.contains(&wanted), "{wanted}: {texts:?}");
    }
}

#[test]
fn bar_height_is_proportional_to_its_value() {
    let svg = figure().svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    let heights: Vec<f64> = bars(&document)
        .into_iter()
        .map(|bar| numbers(bar, &["height"])[0])
        .collect();
    // To a pixel.
    for (bar, times) in [(1, 2.0), (2, 2.0), (3, 4.0)] {
        assert!(
            (heights[bar] - times * heights[0]).abs() <= times,
            "{heights:?}"
        );
    }
}

#[test]
fn series_has_the_same_colour_in_all_panels() {
    let svg = figure().svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    let colours: Vec<_> = bars(&document)
        .into_iter()
        .map(|bar| bar.attribute("fill").unwrap())
        .collect();
    assert_eq!(colours[..4], colours[4..]);
    assert_eq!(colours[0], colours[1]);
    assert_ne!(colours[1], colours[2]);
}

#[test]
fn plot_elements_stay_on_the_page_without_overlap() {
    let svg = figure().svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    let page = numbers(document.root_element(), &["width", "height"]);
    for node in document.descendants() {
        let at = match node.tag_name().name() {
            "rect" | "text" => numbers(node, &["x", "y"]),
            "circle" => numbers(node, &["cx", "cy"]),
            _ => continue,
        };
        assert!((0.0..=page[0]).contains(&at[0]), "{node:?}");
        assert!((0.0..=page[1]).contains(&at[1]), "{node:?}");
        let text = node.text().unwrap_or_default().trim();
        let half = f64::from(pixels(text.chars().count()) * CHAR_WIDTH) / 2.0;
        if node.attribute("text-anchor") == Some("middle") && node.attribute("transform").is_none()
        {
            assert!(at[0] >= half && at[0] + half <= page[0], "{text}");
        }
    }
    assert!(!svg.contains("a name that is so long that it has to be on two lines"));
}

#[test]
fn plot_without_data_is_valid() {
    let empty = Figure {
        groups: Vec::new(),
        panels: Vec::new(),
        ..figure()
    };
    Document::parse(&empty.svg().unwrap()).unwrap();
    let zero = Figure {
        panels: vec![Panel {
            name: String::new(),
            y_label: String::new(),
            series: Vec::new(),
        }],
        ..empty
    };
    Document::parse(&zero.svg().unwrap()).unwrap();
}
