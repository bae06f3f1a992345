//! A flamegraph of the live memory at the peak, by stack: as a picture, and as folded stacks for other tools.
//!
//! The crate that usually draws these has a licence that this project's dependencies may not have, so the picture is drawn here.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::terminal::size::show_bytes;
use parkade_analysis::holders::Folded;

use super::gather::Report;
use super::markup::{escape, grouped};
use super::{OWN_MARK, words};
use crate::terminal::output;
use crate::terminal::recording::short_name;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: f64 = 18.0;
/// Narrower frames are left out; this is also the share of the whole that the picture names.
const NARROWEST: f64 = 0.3;
/// The width of a character, and of the blanks around a text.
const CHARACTER: f64 = 6.6;
const SCRIPT: &str = include_str!("web/flame.js");
const STYLE: &str = "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#15181d;pointer-events:none}.words{fill:#5b6470}\
.title{font:600 15px system-ui,-apple-system,'Segoe UI',sans-serif}.paper{fill:#fff}rect.own{fill:#f0a63a}rect.library{fill:#a9c1f2}\
rect.framework{fill:#d9dee6}rect.none{fill:#9fd5c9}g.frame{cursor:pointer}g.frame:hover rect{stroke:#15181d}\
@media(prefers-color-scheme:dark){.paper{fill:#14181e}.title,.words{fill:#e8ebf0}}";

/// The live memory at the peak of each device, by stack. Where there are several devices, the first frame is the device.
pub(super) fn folded(report: &Report) -> Vec<Folded> {
    let mut all = Vec::new();
    for device in &report.devices {
        let lines = device.told.folded(&device.timeline.log, &report.stacks, device.peak_allocated_moment);
        all.extend(lines.into_iter().map(|mut line| {
            if report.devices.len() > 1 {
                line.frames.insert(0, format!("device {}", device.number));
            }
            line
        }));
    }
    all
}

/// Folded stacks: one line for each, its frames with semicolons between them, a blank, its bytes.
pub(super) fn folded_text(lines: &[Folded]) -> String {
    lines.iter().map(|line| format!("{} {}\n", line.frames.join(";"), line.bytes)).collect()
}

/// A frame with what it called.
#[derive(Default)]
struct Node<'a> {
    bytes: u64,
    inner: BTreeMap<&'a str, Node<'a>>,
}

impl Node<'_> {
    fn depth(&self) -> usize {
        1 + self.inner.values().map(Node::depth).max().unwrap_or(0)
    }
}

/// The deepest frame that is drawn: enough for any program, and few enough for the stack of this one.
const DEEPEST: usize = 500;

/// The picture.
pub(super) fn picture(report: &Report, lines: &[Folded]) -> String {
    let mut root = Node::default();
    for line in lines {
        root.bytes = root.bytes.saturating_add(line.bytes);
        let mut node = &mut root;
        for frame in line.frames.iter().take(DEEPEST) {
            node = node.inner.entry(frame).or_default();
            node.bytes = node.bytes.saturating_add(line.bytes);
        }
    }
    let height = 76.0 + root.depth() as f64 * ROW + MARGIN;
    let title = escape(&format!("{}: live memory at the peak, by stack", short_name(&report.file)));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" preserveAspectRatio=\"xMidYMin meet\">\n\
         <!-- {OWN_MARK} -->\n<style>{STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"24\">{title}</text>\n<text class=\"words\" x=\"{MARGIN}\" y=\"42\">{}</text>\n",
        escape(&subtitle(report, &root))
    );
    legend(&mut svg);
    draw(
        &mut svg,
        "all",
        &root,
        &Place { left: MARGIN, row: 0, per_byte: (WIDTH - 2.0 * MARGIN) / root.bytes.max(1) as f64 },
        &root,
    );
    let _ = write!(svg, "<script>//<![CDATA[\n{SCRIPT}//]]></script>\n</svg>\n");
    svg
}

fn subtitle(report: &Report, root: &Node<'_>) -> String {
    let moments = report.devices.iter().map(|device| words::after(device.peak_allocated_moment));
    let has_stacks = report.devices.iter().any(|device| device.told.has_stacks);
    let what = if has_stacks { "" } else { "; the file has no stacks, so kinds and sizes of blocks stand for calls" };
    format!("{} {}{what}; a click enlarges a frame", show_bytes(root.bytes), output::list(moments))
}

fn legend(svg: &mut String) {
    let mut left = MARGIN;
    for (class, name) in [("own", "the program"), ("library", "libraries"), ("framework", "torch"), ("none", "no stack")] {
        let text = left + 16.0;
        let _ = write!(svg, "<rect class=\"{class}\" x=\"{left}\" y=\"52\" width=\"11\" height=\"11\"/>");
        let _ = writeln!(svg, "<text class=\"words\" x=\"{text}\" y=\"62\">{name}</text>");
        left = text + name.len() as f64 * CHARACTER + 20.0;
    }
}

/// Where a frame is drawn.
struct Place {
    left: f64,
    row: usize,
    per_byte: f64,
}

fn draw(svg: &mut String, name: &str, node: &Node<'_>, place: &Place, root: &Node<'_>) {
    let width = node.bytes as f64 * place.per_byte;
    if width < NARROWEST {
        return;
    }
    let (top, share) = (76.0 + place.row as f64 * ROW, node.bytes as f64 / root.bytes.max(1) as f64 * 100.0);
    let (left, escaped) = (place.left, escape(name));
    let bytes = format!("{} ({} bytes, {share:.2} %)", show_bytes(node.bytes), grouped(node.bytes));
    let fits = (width / CHARACTER).max(1.0) as usize - 1;
    let text = if fits < 3 { String::new() } else { escape(&short(name, fits)) };
    let _ = writeln!(
        svg,
        "<g class=\"frame\" data-x=\"{left:.2}\" data-w=\"{width:.2}\" data-row=\"{}\" data-name=\"{escaped}\"><title>{escaped}\n{bytes}</title>\
         <rect class=\"{}\" x=\"{left:.2}\" y=\"{top}\" width=\"{:.2}\" height=\"{}\" rx=\"1\"/>\
         <text x=\"{:.2}\" y=\"{}\">{text}</text></g>",
        place.row,
        class(name),
        (width - 0.5).max(0.1),
        ROW - 1.0,
        left + 3.0,
        top + 12.5
    );
    let mut next = Place { left, row: place.row + 1, per_byte: place.per_byte };
    for (name, inner) in &node.inner {
        draw(svg, name, inner, &next, root);
        next.left += inner.bytes as f64 * place.per_byte;
    }
}

/// A name cut to so many characters.
fn short(name: &str, longest: usize) -> String {
    if name.chars().count() <= longest { name.to_owned() } else { name.chars().take(longest - 2).chain("..".chars()).collect() }
}

/// Parts of the names of frames that are not the program's own.
const LIBRARIES: [&str; 5] = ["site-packages/", "dist-packages/", "<frozen", "??", ".cpp"];

/// Whose code a frame is.
fn class(name: &str) -> &'static str {
    match name {
        "all" => "framework",
        name if name.starts_with('[') => "none",
        name if name.contains("torch/") => "framework",
        name if LIBRARIES.iter().any(|part| name.contains(part)) => "library",
        _ => "own",
    }
}
