//! The text of answers: JSON fragments in the harness's form, field by field.

use std::fmt::Write as _;

use parkade::profile::{Profile, TieBreak};
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::StreamId;
use parkade_sim::SimDevice;

use super::state::Seen;

/// A string in JSON's quotes.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            // The harness writes those from U+007F on as they are, which a terminal would obey; as JSON it is the same string.
            c if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A number with up to so many digits, as the harness prints it; what is none, such as a fraction of no memory, is `null`.
pub(super) fn number(value: f64, digits: u8) -> String {
    if value.is_finite() { parkade::texts::format_significant(value, digits) } else { "null".to_owned() }
}

/// An address as the harness prints it: the number of its `cudaMalloc` and the offset in it.
pub(super) fn pointer(device: &SimDevice, address: u64) -> String {
    format!("\"{}\"", device.name_address(parkade::units::DeviceAddress(address)))
}

/// The harness's number for a stream, whose handles are 4096 apart.
pub(super) fn stream_number(stream: StreamId) -> u64 {
    stream.0 / 0x1000
}

pub(super) fn entry(device: &SimDevice, entry: &TraceEntry, profile: &Profile) -> String {
    let place = match entry.action {
        TraceAction::Oom | TraceAction::Snapshot => entry.address.to_string(),
        _ => pointer(device, entry.address),
    };
    let (name, size, stream) = (entry.action.name(), entry.size, stream_number(entry.stream));
    let pool = if profile.shows.entry_pools { format!(",{},{}", entry.pool.0, entry.pool.1) } else { String::new() };
    format!("[\"{name}\",{place},{size},{stream}{pool}]")
}

pub(super) fn seen(device: &SimDevice, seen: &[Seen], profile: &Profile) -> String {
    let parts: Vec<String> = seen
        .iter()
        .map(|seen| match seen {
            Seen::Entry(trace) => entry(device, trace, profile),
            Seen::Callback(freed) => format!("[\"free_callback\",{}]", u8::from(*freed)),
        })
        .collect();
    parts.join(",")
}

/// A snapshot, with the memory history if `traces` has one.
pub(super) fn snapshot(
    device: &SimDevice,
    segments: &[SegmentInfo],
    settings: &Settings,
    traces: Option<Vec<TraceEntry>>,
    profile: &Profile,
) -> String {
    let segments: Vec<String> = segments.iter().map(|info| segment(device, info, profile)).collect();
    let traces = traces.map_or(String::new(), |entries| {
        let entries: Vec<String> = entries.iter().map(|trace| entry(device, trace, profile)).collect();
        format!(",\"traces\":[{}]", entries.join(","))
    });
    let config = if profile.shows.settings { config(settings, profile) } else { String::new() };
    format!("{{\"segments\":[{}]{traces}{config}}}", segments.join(","))
}

/// The settings in a snapshot.
fn config(settings: &Settings, profile: &Profile) -> String {
    let roundup: Vec<String> = settings.roundup_power2_divisions.iter().map(u64::to_string).collect();
    let graph_reuse = if profile.dialect.keys().any(|key| key == "graph_capture_record_stream_reuse") {
        format!("\"graph_reuse\":{},", u8::from(settings.graph_capture_record_stream_reuse))
    } else {
        String::new()
    };
    format!(
        ",\"config\":{{\"gc_threshold\":{},\"max_split_size\":{},\"expandable_segments\":{},\"release_lock\":{},{graph_reuse}\
         \"last\":{},\"roundup\":[{}]}}",
        number(settings.garbage_collection_threshold, 6),
        settings.max_split_bytes,
        u8::from(settings.expandable_segments),
        u8::from(settings.release_lock_on_cudamalloc),
        quoted(&settings.text),
        roundup.join(","),
    )
}

fn segment(device: &SimDevice, info: &SegmentInfo, profile: &Profile) -> String {
    let blocks: Vec<String> = info
        .blocks
        .iter()
        .map(|block| {
            let state = match block.state {
                BlockActivity::Allocated => "allocated",
                BlockActivity::PendingFree => "pending_free",
                BlockActivity::Inactive => "inactive",
            };
            // The last field is PyTorch's garbage collection counter, which its snapshots leave at 0.
            format!("[{},{},{},\"{state}\",0]", block.address.0 - info.address.0, block.size, block.requested)
        })
        .collect();
    // PyTorch's counter of segments matters to its decisions only in releases that order free blocks by it.
    let number = match profile.tie_break {
        TieBreak::Address => String::new(),
        TieBreak::SegmentAge | TieBreak::BlockAge => format!(",\"reg\":{}", info.rank),
    };
    format!(
        "{{\"addr\":{},\"total\":{},\"requested\":{},\"allocated\":{},\"active\":{},\"stream\":{},\"type\":\"{}\",\
         \"expandable\":{},\"pool\":[{},{}],\"device\":{}{number},\"blocks\":[{}]}}",
        pointer(device, info.address.0),
        info.total,
        info.requested,
        info.allocated,
        info.active,
        stream_number(info.stream),
        info.class.name(),
        u8::from(info.expandable),
        info.pool.0,
        info.pool.1,
        parkade::device::DeviceBackend::index(device),
        blocks.join(","),
    )
}
