//! The heap as text: a bar and a list of blocks per segment.

use std::collections::BTreeMap;
use std::fmt::Write;

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::texts::format_bytes;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::StreamId;

/// Width of a bar in characters.
const WIDTH: u64 = 64;

/// Segments in order of creation. A run of an expandable segment counts from when its first address last got memory;
/// runs from one mapping are in address order.
pub(super) fn in_order(mut segments: Vec<SegmentInfo>, trace: &[TraceEntry]) -> Vec<SegmentInfo> {
    let made = |segment: &SegmentInfo| {
        let start = segment.address.get();
        trace.iter().rposition(|entry| match entry.action {
            TraceAction::SegmentAlloc => entry.address == start,
            TraceAction::SegmentMap => entry.address <= start && start - entry.address < entry.size,
            _ => false,
        })
    };
    segments.sort_by_cached_key(|segment| (made(segment), segment.address));
    segments
}

/// One line and a bar per segment: `#` live, `~` waiting for events, `.` free. A block has at least one character.
///
/// Empty segments come last, smallest first, without numbers: their addresses decide which of several equal ones is left, so it
/// differs between devices.
pub(super) fn draw(segments: &[SegmentInfo], names: &BTreeMap<u64, &str>) -> String {
    let mut out = String::new();
    let is_empty = |segment: &&SegmentInfo| segment.blocks.iter().all(|block| block.state == BlockActivity::Inactive);
    let (mut empty, used): (Vec<_>, Vec<_>) = segments.iter().partition(is_empty);
    empty.sort_by_key(|segment| (segment.expandable, segment.class, segment.total, segment.stream));
    for (number, segment) in used.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{} {}: {}", kind(segment), number + 1, described(segment));
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
    for segment in empty {
        let _ = writeln!(out, "free {}: {}", kind(segment), described(segment));
    }
    if segments.is_empty() {
        out.push_str("(no segments)\n");
    }
    out
}

fn kind(segment: &SegmentInfo) -> &'static str {
    if segment.expandable { "expandable" } else { "segment" }
}

fn described(segment: &SegmentInfo) -> String {
    let stream = if segment.stream == StreamId::DEFAULT { "default stream" } else { "another stream" };
    format!("{}, {} pool, {stream}", format_bytes(segment.total.get()), segment.class.name())
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
