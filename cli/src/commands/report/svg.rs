//! Pictures: the timeline of a run, its heap at a moment, and a flamegraph of the live memory at the peak, by stack, which is
//! also available as folded stacks for other tools.
//!
//! They follow the reader's choice of light or dark, and use system fonts only. The crate that is usually used for flamegraphs
//! has a licence that this project does not allow for dependencies, so this file draws them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parkade_analysis::holders::Folded;
use parkade_analysis::timeline::{Curve, Marker, MarkerKind, NEVER, SegmentNow};

use super::gather::{Device, Report, curves};
use super::palette::{SIZES, size_class};
use super::words::{self, OWN_MARK};
use crate::terminal::markup::{counted, escape, grouped, point};
use crate::terminal::output;
use crate::terminal::recording::short_name;
use crate::terminal::size::show_bytes;

const WIDTH: f64 = 1000.0;
const KINDS: [(MarkerKind, &str); 3] =
    [(MarkerKind::OutOfMemory, "out of memory"), (MarkerKind::Retry, "retry"), (MarkerKind::EmptyCache, "empty_cache")];
const STYLE: &str = "text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#5b6470}\
.title{font-size:15px;font-weight:600;fill:#15181d}.paper{fill:#fff}.grid{stroke:#e3e7ec}.axis{stroke:#9aa3ae}\
.reserved{fill:#d9dee6}.reserved-line{fill:none;stroke:#7b8694;stroke-width:1.2}.active{fill:#f0a63a}.allocated{fill:#3b6fd8}\
.limit{stroke:#c8323a;stroke-dasharray:5 4}.oom{fill:#c8323a;stroke:#c8323a}.retry{fill:#c77a0a;stroke:#c77a0a}\
.empty_cache{fill:#0b8a83;stroke:#0b8a83}.phase{fill:#8d6fd1;opacity:.55}.free{fill:#eceff3;stroke:#c3cad3;stroke-width:.5}\
@media(prefers-color-scheme:dark){text{fill:#9aa4b2}.title{fill:#e8ebf0}.paper{fill:#14181e}.grid{stroke:#262c35}\
.axis{stroke:#5c6673}.reserved{fill:#303844}.reserved-line{stroke:#8a95a4}.allocated{fill:#5288f0}.free{fill:#20262e;stroke:#3a434f}}";

fn begin(height: f64, title: &str, subtitle: &str) -> String {
    let title = escape(title);
    let mut lines = String::new();
    for (number, line) in output::wrapped(subtitle, 150).iter().take(2).enumerate() {
        let _ = write!(lines, "<text x=\"16\" y=\"{}\">{}</text>", 46 + 16 * number, escape(line));
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         <!-- {OWN_MARK} -->\n<style>{STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"16\" y=\"26\">{title}</text>\n{lines}\n"
    )
}

fn file_name(report: &Report) -> String {
    report.file.file_name().unwrap_or(report.file.as_os_str()).to_string_lossy().into_owned()
}

/// The position of a timeline's graph.
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    most_bytes: f64,
}

impl Plot {
    fn y(&self, bytes: u64) -> f64 {
        self.bottom - bytes as f64 / self.most_bytes * (self.bottom - self.top)
    }

    fn x(&self, share: f64) -> f64 {
        self.left + share * (self.right - self.left)
    }

    /// The upper outline of a curve: each bucket at its highest.
    fn outline(&self, curve: &Curve) -> String {
        let count = curve.buckets.len().max(1) as f64;
        let mut path = String::new();
        for (place, bucket) in curve.buckets.iter().enumerate() {
            let y = self.y(bucket.max);
            point(&mut path, if place == 0 { 'M' } else { 'L' }, self.x(place as f64 / count), y);
            point(&mut path, 'L', self.x((place + 1) as f64 / count), y);
        }
        path
    }

    fn area(&self, curve: &Curve, class: &str) -> String {
        let mut path = self.outline(curve);
        point(&mut path, 'L', self.right, self.bottom);
        point(&mut path, 'L', self.left, self.bottom);
        format!("<path class=\"{class}\" d=\"{path}Z\"/>\n")
    }
}

/// The timeline of a device.
pub(super) fn timeline(report: &Report, device: &Device) -> String {
    let curves = curves(&device.timeline.levels, 450);
    let top = curves.reserved.peak().max(device.limit.run_bytes.unwrap_or(0)).max(1);
    let plot = Plot { left: 84.0, right: WIDTH - 20.0, top: 96.0, bottom: 310.0, most_bytes: top as f64 * 1.04 };
    let mut svg = String::new();
    for step in 0..=4_u64 {
        let bytes = top / 4 * step;
        let y = plot.y(bytes);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{} {y:.1}H{}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            plot.left,
            plot.right,
            plot.left - 8.0,
            y + 4.0,
            show_bytes(bytes)
        );
    }
    let moments = (device.timeline.entries + 1) as f64;
    for phase in &device.phases {
        let (from, to) = (plot.x(f64::from(phase.from) / moments), plot.x(f64::from(phase.to) / moments));
        let width = (to - from).max(0.6);
        let _ = writeln!(svg, "<rect class=\"phase\" x=\"{from:.1}\" y=\"84\" width=\"{width:.1}\" height=\"5\"/>");
    }
    svg.push_str(&plot.area(&curves.reserved, "reserved"));
    if is_ever_pending(device) {
        svg.push_str(&plot.area(&curves.active, "active"));
    }
    svg.push_str(&plot.area(&curves.allocated, "allocated"));
    let _ = writeln!(svg, "<path class=\"reserved-line\" d=\"{}\"/>", plot.outline(&curves.reserved));
    if let Some(limit) = device.limit.run_bytes {
        let y = plot.y(limit);
        let _ = writeln!(svg, "<path class=\"limit\" d=\"M{} {y:.1}H{}\"/>", plot.left, plot.right);
    }
    let places = KINDS.map(|(kind, _)| (kind, moments_of(&device.timeline.markers, kind)));
    for marker in device.timeline.markers.iter().rev() {
        let x = plot.x(f64::from(marker.moment) / moments);
        // If two kinds of markers share a position, the less serious one goes below.
        let is_near = |other: &u32| f64::from(other.abs_diff(marker.moment)) < moments / 150.0;
        let has_near = |moments: &Vec<u32>| {
            let behind = moments.partition_point(|&moment| moment < marker.moment);
            moments[behind.saturating_sub(1)..].iter().take(2).any(is_near)
        };
        let is_below = places.iter().any(|(kind, moments)| *kind < marker.kind && has_near(moments));
        let (class, top) = (marker.kind.name(), plot.bottom + if is_below { 11.0 } else { 2.0 });
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{x:.1} {top}l-4 8h8Z\"/>");
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"342\">entry 0</text><text x=\"{}\" y=\"342\" text-anchor=\"end\">entry {}</text>",
        plot.left,
        plot.right,
        grouped(device.timeline.entries as u64)
    );
    let mut key = String::new();
    let rows = timeline_legend(&mut key, device);
    let height = 378.0 + LEGEND_STEP * (rows - 1) as f64;
    format!("{}{svg}{key}</svg>\n", begin(height, &file_name(report), &words::what_happened(device)))
}

/// The moments of the markers of a kind; they are in order.
fn moments_of(markers: &[Marker], kind: MarkerKind) -> Vec<u32> {
    markers.iter().filter(|marker| marker.kind == kind).map(|marker| marker.moment).collect()
}

/// Whether a block ever waited for other streams, that is, longer than from the entry that frees it to the next.
fn is_ever_pending(device: &Device) -> bool {
    device.timeline.log.blocks.iter().any(|block| block.freed != NEVER && block.gone > block.freed + 1)
}

/// Explains the colours of a timeline; returns the number of rows.
fn timeline_legend(svg: &mut String, device: &Device) -> usize {
    let square = |class: &str| format!("<rect class=\"{class}\" y=\"-9\" width=\"11\" height=\"11\"/>");
    let mut items = vec![(square("allocated"), "allocated".to_owned()), (square("reserved"), "reserved, not in use".to_owned())];
    if is_ever_pending(device) {
        items.insert(1, (square("active"), "freed, still used by other streams".to_owned()));
    }
    if let Some(limit) = device.limit.run_bytes {
        items.push((
            "<path class=\"limit\" d=\"M0 -4h14\"/>".to_owned(),
            format!("limit {}{}", show_bytes(limit), if device.limit.is_assumed() { ", assumed" } else { "" }),
        ));
    }
    for (kind, name) in KINDS {
        let count = words::count_of(device, kind);
        if count > 0 {
            items.push((format!("<path class=\"{}\" d=\"M5 -8l-4 8h8Z\"/>", kind.name()), format!("{name} ({count})")));
        }
    }
    if !device.phases.is_empty() {
        items.push((square("phase"), "phases".to_owned()));
    }
    legend_rows(svg, items, 84.0, 364.0)
}

/// The distance between two rows of a legend.
const LEGEND_STEP: f64 = 18.0;
/// Blocks that other streams still use, as in [`STYLE`].
const PENDING: &str = "#f0a63a";
/// Height of a row of a heap's picture, without the space below it.
const ROW: f64 = 14.0;
const ROW_STEP: f64 = 18.0;
/// Rows that the heap fills at its largest.
const ROWS: f64 = 26.0;
/// Space between two segments of a row.
const GAP: f64 = 2.0;

/// The heap of a device at a moment: segments to scale, grouped by pool and stream, large ones first. A segment longer than a row
/// continues in the next.
pub(super) fn heap(report: &Report, device: &Device, moment: u32) -> String {
    let mut segments = device.timeline.log.at(moment);
    segments.sort_by_key(|segment| (segment.pool, segment.stream, std::cmp::Reverse(segment.size), segment.address));
    let usable = WIDTH - 32.0;
    let bytes_per_px = (device.curves.reserved.peak() as f64 / (usable * ROWS)).max(1.0);
    let mut body = String::new();
    let (mut x, mut y) = (16.0, 62.0);
    let mut group = None;
    for segment in &segments {
        if group != Some((segment.pool, segment.stream)) {
            y += if group.is_none() { 12.0 } else { ROW_STEP + 18.0 };
            x = 16.0;
            group = Some((segment.pool, segment.stream));
            let pool =
                if segment.pool == (0, 0) { "default pool".to_owned() } else { format!("private pool {:?}", segment.pool) };
            let _ = writeln!(body, "<text x=\"16\" y=\"{:.1}\">{pool}, stream {}</text>", y - 3.0, segment.stream);
        }
        let length = (segment.size as f64 / bytes_per_px).max(1.5);
        if x + length > WIDTH - 16.0 && x > 16.0 && length <= usable {
            (x, y) = (16.0, y + ROW_STEP);
        }
        draw_segment(&mut body, device, segment, (&mut x, &mut y), bytes_per_px);
    }
    let levels = &device.timeline.levels;
    let at = |level: &[u64]| show_bytes(level.get(moment as usize).copied().unwrap_or_default());
    let empty = words::emptiness(&device.timeline.log, moment);
    let subtitle = format!(
        "after {} entries: {} allocated, {} reserved; {} free in {}, the largest {}",
        grouped(u64::from(moment)),
        at(&levels.allocated),
        at(&levels.reserved),
        show_bytes(empty.bytes),
        counted(empty.holes as u64, "hole"),
        show_bytes(empty.largest)
    );
    let (rows, key) = heap_legend(device, &segments, y + ROW + 22.0);
    format!("{}{body}{key}</svg>\n", begin(y + ROW + 24.0 + LEGEND_STEP * rows as f64, &file_name(report), &subtitle))
}

/// The legend of a heap's colours, in rows from `y` on, and the number of rows.
fn heap_legend(device: &Device, segments: &[SegmentNow], y: f64) -> (usize, String) {
    let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
    let square = |fill: &str| format!("<rect {fill} y=\"-9\" width=\"11\" height=\"11\"/>");
    let mut items = vec![(square("class=\"free\""), "free".to_owned())];
    if blocks().any(|block| block.is_pending) {
        items.push((square(&format!("fill=\"{PENDING}\"")), "freed, still used by other streams".to_owned()));
    }
    for class in &SIZES {
        let is_of = |bytes: u64| std::ptr::eq(size_class(bytes), class);
        if blocks().any(|block| !block.is_pending && is_of(device.timeline.log.blocks[block.place].size)) {
            items.push((square(&format!("fill=\"{}\"", class.colour)), class.words.to_owned()));
        }
    }
    let mut svg = String::new();
    let rows = legend_rows(&mut svg, items, 16.0, y);
    (rows, svg)
}

/// Symbols with words from left to right, in as many rows as needed; returns the number of rows.
fn legend_rows(svg: &mut String, items: Vec<(String, String)>, left: f64, y: f64) -> usize {
    let (mut x, mut row) = (left, 0);
    for (symbol, text) in items {
        let width = 38.0 + text.chars().count() as f64 * 6.2;
        if x > left && x + width > WIDTH {
            (x, row) = (left, row + 1);
        }
        let y = y + LEGEND_STEP * row as f64;
        let _ = writeln!(svg, "<g transform=\"translate({x:.0} {y:.0})\">{symbol}<text x=\"17\">{text}</text></g>");
        x += width;
    }
    row + 1
}

/// Draws a segment row by row from the given position, and moves the position past it.
fn draw_segment(body: &mut String, device: &Device, segment: &SegmentNow, (x, y): (&mut f64, &mut f64), bytes_per_px: f64) {
    let mut done = 0.0;
    let total = (segment.size as f64 / bytes_per_px).max(1.5);
    loop {
        let length = (total - done).min(WIDTH - 16.0 - *x);
        let _ = writeln!(body, "<rect class=\"free\" x=\"{:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"{ROW}\"/>", *x, *y);
        for block in &segment.blocks {
            let from = (block.address - segment.address) as f64 / bytes_per_px - done;
            let to = from + block.size as f64 / bytes_per_px;
            let (from, to) = (from.max(0.0), to.min(length));
            if to <= from {
                continue;
            }
            let life = &device.timeline.log.blocks[block.place];
            let fill = if block.is_pending { PENDING } else { size_class(life.size).colour };
            let _ = writeln!(
                body,
                "<rect fill=\"{fill}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{ROW}\"/>",
                *x + from,
                *y,
                (to - from).max(0.3)
            );
        }
        done += length;
        if total - done < 0.05 {
            *x += length + GAP;
            return;
        }
        (*x, *y) = (16.0, *y + ROW_STEP);
    }
}

const FLAME_WIDTH: f64 = 1200.0;
const FLAME_MARGIN: f64 = 10.0;
const FLAME_ROW: f64 = 18.0;
/// Narrower frames are omitted; this is also the share of the whole that the picture mentions.
const NARROWEST: f64 = 0.3;
/// The width of a character, and of the blanks around a text.
const CHARACTER: f64 = 6.6;
const FLAME_SCRIPT: &str = include_str!("web/flame.js");
const FLAME_STYLE: &str = "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#15181d;pointer-events:none}.words{fill:#5b6470}\
.title{font:600 15px system-ui,-apple-system,'Segoe UI',sans-serif}.paper{fill:#fff}rect.own{fill:#f0a63a}rect.library{fill:#a9c1f2}\
rect.framework{fill:#d9dee6}rect.none{fill:#9fd5c9}g.frame{cursor:pointer}g.frame:hover rect{stroke:#15181d}\
@media(prefers-color-scheme:dark){.paper{fill:#14181e}.title,.words{fill:#e8ebf0}}";

/// The live memory at the peak of each device, by stack. If there are several devices, the first frame is the device.
pub(super) fn folded(report: &Report) -> Vec<Folded> {
    let mut all = Vec::new();
    for device in &report.devices {
        let lines = device.told.folded(&device.timeline.log, (&report.names, &report.stacks), device.peak_allocated_moment);
        all.extend(lines.into_iter().map(|mut line| {
            if report.devices.len() > 1 {
                line.frames.insert(0, format!("device {}", device.number));
            }
            line
        }));
    }
    all
}

/// Folded stacks: one line for each, with its frames separated by semicolons, a blank, and its bytes.
pub(super) fn folded_text(lines: &[Folded]) -> String {
    lines.iter().map(|line| format!("{} {}\n", line.frames.join(";"), line.bytes)).collect()
}

/// A frame and the frames that it called.
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

/// The deepest frame that is drawn: deep enough for any program, and shallow enough for the call stack of this one.
const DEEPEST: usize = 500;

/// The flamegraph.
pub(super) fn flamegraph(report: &Report, lines: &[Folded]) -> String {
    let mut root = Node::default();
    for line in lines {
        root.bytes = root.bytes.saturating_add(line.bytes);
        let mut node = &mut root;
        for frame in line.frames.iter().take(DEEPEST) {
            node = node.inner.entry(frame).or_default();
            node.bytes = node.bytes.saturating_add(line.bytes);
        }
    }
    let height = 76.0 + root.depth() as f64 * FLAME_ROW + FLAME_MARGIN;
    let title = escape(&format!("{}: live memory at the peak, by stack", short_name(&report.file)));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {FLAME_WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" preserveAspectRatio=\"xMidYMin meet\">\n\
         <!-- {OWN_MARK} -->\n<style>{FLAME_STYLE}</style>\n<rect class=\"paper\" width=\"{FLAME_WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"{FLAME_MARGIN}\" y=\"24\">{title}</text>\n<text class=\"words\" x=\"{FLAME_MARGIN}\" y=\"42\">{}</text>\n",
        escape(&flame_subtitle(report, &root))
    );
    flame_legend(&mut svg);
    draw_frame(
        &mut svg,
        "all",
        &root,
        &FramePlace { left: FLAME_MARGIN, row: 0, per_byte: (FLAME_WIDTH - 2.0 * FLAME_MARGIN) / root.bytes.max(1) as f64 },
        &root,
    );
    let _ = write!(svg, "<script>//<![CDATA[\n{FLAME_SCRIPT}//]]></script>\n</svg>\n");
    svg
}

fn flame_subtitle(report: &Report, root: &Node<'_>) -> String {
    let moments = report.devices.iter().map(|device| words::after(device.peak_allocated_moment));
    let has_stacks = report.devices.iter().any(|device| device.told.has_stacks);
    let what = if has_stacks { "" } else { "; the file has no stacks, so kinds and sizes of blocks take the place of calls" };
    format!("{} {}{what}; a click enlarges a frame", show_bytes(root.bytes), output::list(moments))
}

fn flame_legend(svg: &mut String) {
    let mut left = FLAME_MARGIN;
    for (class, name) in [("own", "the program"), ("library", "libraries"), ("framework", "torch"), ("none", "no stack")] {
        let text = left + 16.0;
        let _ = write!(svg, "<rect class=\"{class}\" x=\"{left}\" y=\"52\" width=\"11\" height=\"11\"/>");
        let _ = writeln!(svg, "<text class=\"words\" x=\"{text}\" y=\"62\">{name}</text>");
        left = text + name.len() as f64 * CHARACTER + 20.0;
    }
}

/// The position of a frame.
struct FramePlace {
    left: f64,
    row: usize,
    per_byte: f64,
}

fn draw_frame(svg: &mut String, name: &str, node: &Node<'_>, place: &FramePlace, root: &Node<'_>) {
    let width = node.bytes as f64 * place.per_byte;
    if width < NARROWEST {
        return;
    }
    let (top, share) = (76.0 + place.row as f64 * FLAME_ROW, node.bytes as f64 / root.bytes.max(1) as f64 * 100.0);
    let (left, escaped) = (place.left, escape(name));
    let bytes = format!("{} ({} bytes, {share:.2} %)", show_bytes(node.bytes), grouped(node.bytes));
    let fits = (width / CHARACTER).max(1.0) as usize - 1;
    let text = if fits < 3 { String::new() } else { escape(&shortened(name, fits)) };
    let _ = writeln!(
        svg,
        "<g class=\"frame\" data-x=\"{left:.2}\" data-w=\"{width:.2}\" data-row=\"{}\" data-name=\"{escaped}\"><title>{escaped}\n{bytes}</title>\
         <rect class=\"{}\" x=\"{left:.2}\" y=\"{top}\" width=\"{:.2}\" height=\"{}\" rx=\"1\"/>\
         <text x=\"{:.2}\" y=\"{}\">{text}</text></g>",
        place.row,
        frame_class(name),
        (width - 0.5).max(0.1),
        FLAME_ROW - 1.0,
        left + 3.0,
        top + 12.5
    );
    let mut next = FramePlace { left, row: place.row + 1, per_byte: place.per_byte };
    for (name, inner) in &node.inner {
        draw_frame(svg, name, inner, &next, root);
        next.left += inner.bytes as f64 * place.per_byte;
    }
}

/// A name cut to this many characters.
fn shortened(name: &str, longest: usize) -> String {
    if name.chars().count() <= longest { name.to_owned() } else { name.chars().take(longest - 2).chain("..".chars()).collect() }
}

/// Parts of the names of frames that do not belong to the program.
const LIBRARIES: [&str; 5] = ["site-packages/", "dist-packages/", "<frozen", "??", ".cpp"];

/// The class of a frame, by whose code it is.
fn frame_class(name: &str) -> &'static str {
    match name {
        "all" | "backward pass" | "workspace" => "framework",
        name if ["aten::", "autograd "].iter().any(|start| name.starts_with(start)) => "framework",
        name if name.starts_with('[') => "none",
        name if name.contains("torch/") => "framework",
        name if LIBRARIES.iter().any(|part| name.contains(part)) => "library",
        _ => "own",
    }
}
