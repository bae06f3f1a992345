//! The heap as text: a bar and a list of blocks for each segment.

use std::collections::BTreeMap;
use std::fmt::Write;

use parkade::report::format_bytes;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::StreamId;

/// Characters of a bar.
const WIDTH: u64 = 64;

/// Segments in the order in which they were made; runs of expandable ones by the first time that any of their addresses got memory.
pub(super) fn in_order(mut segments: Vec<SegmentInfo>, trace: &[TraceEntry]) -> Vec<SegmentInfo> {
    let made = |segment: &SegmentInfo| {
        let (start, end) = (segment.address.get(), segment.address.get() + segment.total.get());
        trace.iter().rposition(|entry| match entry.action {
            TraceAction::SegmentAlloc => entry.address == start,
            TraceAction::SegmentMap => start <= entry.address && entry.address < end,
            _ => false,
        })
    };
    segments.sort_by_cached_key(|segment| (made(segment), segment.address));
    segments
}

/// One line and a bar a segment: `#` live, `~` waiting for events, `.` free. A block has at least one character.
pub(super) fn draw(segments: &[SegmentInfo], names: &BTreeMap<u64, &str>) -> String {
    let mut out = String::new();
    for (number, segment) in segments.iter().enumerate() {
        let kind = if segment.expandable { "expandable" } else { "segment" };
        let stream = if segment.stream == StreamId::DEFAULT { "default stream" } else { "another stream" };
        let (class, size) = (segment.class.name(), format_bytes(segment.total.get()));
        // Writing to a string does not fail.
        let _ = writeln!(out, "{kind} {}: {size}, {class} pool, {stream}", number + 1);
        let _ = writeln!(out, "  [{}]", bar(segment));
        for block in &segment.blocks {
            let state = match block.state {
                BlockActivity::Allocated => names.get(&block.address.get()).copied().unwrap_or("(unnamed)"),
                BlockActivity::PendingFree => "(waits for events)",
                BlockActivity::Inactive => "(free)",
            };
            let offset = format_bytes(block.address.get() - segment.address.get());
            let _ = writeln!(out, "  {offset:>12} + {:<12} {state}", format_bytes(block.size.get()));
        }
    }
    if segments.is_empty() {
        out.push_str("(no segments)\n");
    }
    out
}

fn bar(segment: &SegmentInfo) -> String {
    let scale = |bytes: u64| u128::from(bytes) * u128::from(WIDTH) / u128::from(segment.total.get().max(1));
    let mut bar = String::new();
    for block in &segment.blocks {
        let mark = match block.state {
            BlockActivity::Allocated => '#',
            BlockActivity::PendingFree => '~',
            BlockActivity::Inactive => '.',
        };
        let end = scale(block.address.get() - segment.address.get() + block.size.get());
        let length = end.saturating_sub(bar.chars().count() as u128).max(1);
        bar.extend((0..length).map(|_| mark));
    }
    bar
}
