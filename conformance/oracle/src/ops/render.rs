//! The text of answers: JSON fragments in the harness's form, field by field.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parkade::profile::{Profile, TieBreak};
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stats};
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

/// The stats in the harness's order, under its names.
fn named_stats(stats: &Stats, profile: &Profile) -> Vec<(String, Vec<i64>)> {
    let mut all = Vec::with_capacity(35);
    for family in Family::ALL {
        let set = stats.family(family);
        for (level, stat) in [("all", set.all), ("small", set.small), ("large", set.large)] {
            all.push((format!("{}.{level}", family.name()), stat.values().to_vec()));
        }
    }
    for (name, stat) in stats.oversize() {
        all.push((name.to_owned(), stat.values().to_vec()));
    }
    let counters = [("num_alloc_retries", stats.num_alloc_retries), ("num_ooms", stats.num_ooms)];
    all.extend(counters.map(|(name, value)| (name.to_owned(), vec![value])));
    let device_counters = [
        ("num_sync_all_streams", stats.num_sync_all_streams),
        ("num_device_alloc", stats.num_device_alloc),
        ("num_device_free", stats.num_device_free),
    ];
    if profile.shows.device_counters {
        all.extend(device_counters.map(|(name, value)| (name.to_owned(), vec![value])));
    }
    if profile.counts_rejections {
        all.push(("num_oom_rejections".to_owned(), vec![stats.num_oom_rejections]));
    }
    if profile.counts_private_pools {
        all.extend(by_private_pool(stats));
    }
    all.push(("max_split_size".to_owned(), vec![stats.max_split_size]));
    all
}

/// The bytes that each private pool has reserved, sorted by name.
fn by_private_pool(stats: &Stats) -> Vec<(String, Vec<i64>)> {
    let mut all = Vec::new();
    for (pool, set) in &stats.reserved_by_pool {
        for (level, stat) in [("all", set.all), ("small", set.small), ("large", set.large)] {
            let name = format!("reserved_bytes_by_private_pools.{}.{}.{level}", pool.0, pool.1);
            all.push((name, stat.values().to_vec()));
        }
    }
    all.sort();
    all
}

fn stat(name: &str, values: &[i64]) -> String {
    match values {
        [value] => format!("\"{name}\":{value}"),
        values => format!("\"{name}\":[{}]", values.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
    }
}

/// The values of the stats that were printed last. A stat that has always been zero is not printed.
#[derive(Debug, Default)]
pub(super) struct Printed {
    values: BTreeMap<String, Vec<i64>>,
    last: Option<Stats>,
}

impl Printed {
    /// All stats.
    pub(super) fn all(&mut self, stats: &Stats, profile: &Profile) -> String {
        let all = named_stats(stats, profile);
        let parts: Vec<String> = all.iter().map(|(name, values)| stat(name, values)).collect();
        self.last = Some(stats.clone());
        self.values.extend(all);
        format!("{{{}}}", parts.join(","))
    }

    /// The stats that changed since they were last printed; empty if none did.
    pub(super) fn changes(&mut self, stats: &Stats, profile: &Profile) -> String {
        if self.last.as_ref() == Some(stats) {
            return String::new();
        }
        self.last = Some(stats.clone());
        let mut parts = Vec::new();
        for (name, values) in named_stats(stats, profile) {
            let unchanged = match self.values.get(&name) {
                Some(printed) => *printed == values,
                None => values.iter().all(|&value| value == 0),
            };
            if !unchanged {
                parts.push(stat(&name, &values));
                self.values.insert(name, values);
            }
        }
        parts.join(",")
    }
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
