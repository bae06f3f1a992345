//! Pictures: the timeline of a run, and its heap at a moment.
//!
//! They follow the reader's choice of light or dark, and use system fonts only.

use std::fmt::Write as _;

use crate::terminal::size::show_bytes;
use parkade_analysis::timeline::{Curve, Marker, MarkerKind, NEVER, SegmentNow};

use super::gather::{Device, Report, curves};
use super::markup::{counted, escape, grouped, point};
use super::palette::{SIZES, size_class};
use super::{OWN_MARK, words};
use crate::terminal::output;

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

/// Where a timeline's graph is.
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
        // Of two kinds at one place the less serious one goes below.
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
    let rows = legend(&mut key, device);
    let height = 378.0 + LEGEND_STEP * (rows - 1) as f64;
    format!("{}{svg}{key}</svg>\n", begin(height, &file_name(report), &words::what_happened(device)))
}

/// The moments of the markers of a kind; they are in order.
fn moments_of(markers: &[Marker], kind: MarkerKind) -> Vec<u32> {
    markers.iter().filter(|marker| marker.kind == kind).map(|marker| marker.moment).collect()
}

/// Whether a block ever waited for other streams: longer than from the entry that asks for its release to the next.
fn is_ever_pending(device: &Device) -> bool {
    device.timeline.log.blocks.iter().any(|block| block.freed != NEVER && block.gone > block.freed + 1)
}

/// Explains the colours of a timeline; returns in how many rows.
fn legend(svg: &mut String, device: &Device) -> usize {
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

/// From one row of a legend to the next.
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
        draw(&mut body, device, segment, (&mut x, &mut y), bytes_per_px);
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

/// The colours of a heap, in rows from `y` on; and how many rows.
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

/// Symbols with words from left to right, in as many rows as they need; returns how many.
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

/// Draws a segment row by row from the given place, and moves the place past it.
fn draw(body: &mut String, device: &Device, segment: &SegmentNow, (x, y): (&mut f64, &mut f64), bytes_per_px: f64) {
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
