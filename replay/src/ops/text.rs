//! The text of scripts, as the harness reads and prints it: a script's lines with the numbers in them, and the answers.
//!
//! The C library reads the harness's numbers, and this module reads them the same way: it ignores trailing characters,
//! recognises base 16 and 8 where `strtoull` does, and wraps negative numbers. The error for an unreadable number is the C++
//! function's name.
//!
//! Answers are JSON fragments in the harness's form, rendered field by field. Their statistics are those that have changed
//! since they were last printed, or all of them as numbers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parkade::profile::{Profile, TieBreak};
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::trace::{Observer, TraceAction, TraceEntry, TraceRing};
use parkade::units::StreamId;
use parkade_sim::SimDevice;

/// The words of a line, without its comment.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    words: Vec<&'a str>,
    text: &'a str,
}

/// The harness's message for a missing or unreadable word.
pub(super) type Unreadable = &'static str;

impl<'a> Line<'a> {
    /// Reads a line. Returns `None` if it contains only spaces and a comment.
    pub(super) fn read(line: &'a str) -> Option<Line<'a>> {
        let text = line.split('#').next().unwrap_or("");
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        (!words.is_empty()).then_some(Line { words, text })
    }

    /// Returns the operation's name.
    pub(super) fn name(&self) -> &'a str {
        self.words[0]
    }

    /// Returns the words joined by single spaces.
    pub(super) fn joined(&self) -> String {
        self.words.join(" ")
    }

    /// Returns the words after the first `n`.
    pub(super) fn rest(&self, n: usize) -> &[&'a str] {
        self.words.get(n..).unwrap_or(&[])
    }

    /// Returns the number of words.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns the unchanged text after the name and one space; empty if there is no second word.
    pub(super) fn tail(&self) -> &'a str {
        if self.words.len() < 2 {
            return "";
        }
        let start = self.text.find(self.name()).unwrap_or(0) + self.name().len() + 1;
        self.text.get(start..).unwrap_or("")
    }

    pub(super) fn word(&self, n: usize) -> Result<&'a str, Unreadable> {
        self.words.get(n).copied().ok_or("missing argument")
    }

    pub(super) fn number(&self, n: usize) -> Result<u64, Unreadable> {
        unsigned(self.word(n)?).ok_or("stoull")
    }

    /// Returns the stream in word `n`; the default stream if the word is missing.
    pub(super) fn stream_or_default(&self, n: usize) -> Result<i64, Unreadable> {
        if self.words.len() > n { self.stream(n) } else { Ok(0) }
    }

    pub(super) fn stream(&self, n: usize) -> Result<i64, Unreadable> {
        signed(self.word(n)?).ok_or("stol")
    }

    pub(super) fn float(&self, n: usize) -> Result<f64, Unreadable> {
        parkade::settings::read_double(self.word(n)?).ok_or("stod")
    }
}

/// Reads a number as `strtoull` does with base 0: an optional sign, `0x` or `0` for base 16 or 8, then digits up to the first
/// other character.
fn unsigned(word: &str) -> Option<u64> {
    let (negative, digits) = sign(word);
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).filter(|d| leading(d, 16) > 0);
    let (digits, radix) = match hex {
        Some(digits) => (digits, 16),
        None if digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    let value = u64::from_str_radix(digits.get(..leading(digits, radix))?, radix).ok()?;
    Some(if negative { value.wrapping_neg() } else { value })
}

/// Reads a number as `strtol` does with base 10.
fn signed(word: &str) -> Option<i64> {
    let (negative, digits) = sign(word);
    let digits = digits.get(..leading(digits, 10))?;
    if negative { format!("-{digits}").parse().ok() } else { digits.parse().ok() }
}

fn sign(word: &str) -> (bool, &str) {
    match word.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    }
}

fn leading(digits: &str, radix: u32) -> usize {
    digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len())
}

/// An event observed during an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Entry(TraceEntry),
    /// The callback ran. The field states whether it freed anything.
    Callback(bool),
}

/// The allocator's observer.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    pub(super) seen: Vec<Seen>,
    /// The memory history, while the script has it on.
    pub(super) history: Option<TraceRing>,
}

impl Observer for Watcher {
    fn observe(&mut self, entry: &TraceEntry) {
        self.seen.push(Seen::Entry(*entry));
        if let Some(history) = &mut self.history {
            history.observe(entry);
        }
    }
}

/// Formats a JSON string, with quotes.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            // The harness writes control characters at and above U+007F unchanged, and a terminal would obey them. Escaped,
            // the JSON string is the same.
            c if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Formats a number with at most `digits` digits, as the harness prints it. A value that is not a number, such as a fraction
/// of no memory, becomes `null`.
pub(super) fn number(value: f64, digits: u8) -> String {
    if value.is_finite() { parkade::texts::format_significant(value, digits) } else { "null".to_owned() }
}

/// Formats an address as the harness prints it: the number of its `cudaMalloc` and the offset in that range.
pub(super) fn pointer(device: &SimDevice, address: u64) -> String {
    format!("\"{}\"", device.name_address(parkade::units::DeviceAddress(address)))
}

/// Returns the harness's number for a stream, whose handles are 4096 apart.
pub(super) fn stream_number(stream: StreamId) -> u64 {
    stream.0 / 0x1000
}

fn entry(device: &SimDevice, entry: &TraceEntry, profile: &Profile) -> String {
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

/// Formats a snapshot, with the memory history if `traces` has one.
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

/// Returns the settings in a snapshot.
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
            // The last field is PyTorch's garbage collection counter, which is always 0 in its snapshots.
            format!("[{},{},{},\"{state}\",0]", block.address.0 - info.address.0, block.size, block.requested)
        })
        .collect();
    // PyTorch's segment counter only affects decisions in releases that order free blocks by it.
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

/// Calls `each` for every stat that precedes the private pools' stats, in the harness's order, with the two parts of the name
/// and the numbers.
fn each_stat(stats: &Stats, profile: &Profile, mut each: impl FnMut(&'static str, &'static str, &[i64])) {
    for family in Family::ALL {
        let set = stats.family(family);
        for (level, stat) in [(".all", set.all), (".small", set.small), (".large", set.large)] {
            each(family.name(), level, &stat.values());
        }
    }
    for (name, stat) in stats.oversize() {
        each(name, "", &stat.values());
    }
    each("num_alloc_retries", "", &[stats.num_alloc_retries]);
    each("num_ooms", "", &[stats.num_ooms]);
    if profile.shows.device_counters {
        each("num_sync_all_streams", "", &[stats.num_sync_all_streams]);
        each("num_device_alloc", "", &[stats.num_device_alloc]);
        each("num_device_free", "", &[stats.num_device_free]);
    }
    if profile.counts_rejections {
        each("num_oom_rejections", "", &[stats.num_oom_rejections]);
    }
}

/// Returns the numbers of all stats except the private pools' stats.
pub(super) fn stat_values(stats: &Stats, profile: &Profile) -> Vec<i64> {
    let mut all = Vec::with_capacity(128);
    each_stat(stats, profile, |_, _, values| all.extend(values));
    all.push(stats.max_split_size);
    all
}

/// Returns the bytes reserved in each private pool, by name.
fn by_private_pool(stats: &Stats, profile: &Profile) -> BTreeMap<String, [i64; 4]> {
    let mut all = BTreeMap::new();
    for (pool, set) in stats.reserved_by_pool.iter().filter(|_| profile.counts_private_pools) {
        for (level, stat) in [("all", set.all), ("small", set.small), ("large", set.large)] {
            let name = format!("reserved_bytes_by_private_pools.{}.{}.{level}", pool.0, pool.1);
            all.insert(name, stat.values());
        }
    }
    all
}

/// The values of the stats when they were last printed. A stat that has never been printed counts as zero.
#[derive(Debug, Default)]
pub(super) struct Printed {
    /// The stats that precede the private pools' stats.
    values: Vec<i64>,
    max_split_size: i64,
    of_pools: BTreeMap<String, [i64; 4]>,
}

impl Printed {
    /// Formats all stats.
    pub(super) fn all(&mut self, stats: &Stats, profile: &Profile) -> String {
        format!("{{{}}}", self.print(stats, profile, false))
    }

    /// Returns the stats that have changed since they were last printed; empty if none have.
    pub(super) fn changes(&mut self, stats: &Stats, profile: &Profile) -> String {
        self.print(stats, profile, true)
    }

    /// Returns the private pools' stats that have changed.
    pub(super) fn changes_of_pools(&mut self, stats: &Stats, profile: &Profile) -> String {
        let mut out = String::new();
        self.print_pools(&mut out, stats, profile, true);
        out
    }

    fn print(&mut self, stats: &Stats, profile: &Profile, only_changes: bool) -> String {
        let mut out = String::new();
        let mut place = 0;
        each_stat(stats, profile, |name, level, values| {
            let end = place + values.len();
            self.values.resize(end.max(self.values.len()), 0);
            let printed = &mut self.values[place..end];
            place = end;
            if !only_changes || printed != values {
                printed.copy_from_slice(values);
                stat(&mut out, name, level, values);
            }
        });
        self.print_pools(&mut out, stats, profile, only_changes);
        if !only_changes || self.max_split_size != stats.max_split_size {
            self.max_split_size = stats.max_split_size;
            stat(&mut out, "max_split_size", "", &[stats.max_split_size]);
        }
        out
    }

    fn print_pools(&mut self, out: &mut String, stats: &Stats, profile: &Profile, only_changes: bool) {
        for (name, values) in by_private_pool(stats, profile) {
            let printed = self.of_pools.entry(name.clone()).or_default();
            if !only_changes || *printed != values {
                *printed = values;
                stat(out, &name, "", &values);
            }
        }
    }
}

/// Appends a stat to `out`.
fn stat(out: &mut String, name: &str, level: &str, values: &[i64]) {
    let separator = if out.is_empty() { "" } else { "," };
    // Writing to a string cannot fail.
    let _ = match values {
        [value] => write!(out, "{separator}\"{name}{level}\":{value}"),
        [current, peak, allocated, freed] => write!(out, "{separator}\"{name}{level}\":[{current},{peak},{allocated},{freed}]"),
        _ => Ok(()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        let cases = [
            ("12", Some(12)),
            ("12x", Some(12)),
            ("0x200", Some(512)),
            ("010", Some(8)),
            ("0", Some(0)),
            ("-5", Some(u64::MAX - 4)),
        ];
        for (word, value) in cases {
            assert_eq!(unsigned(word), value, "{word}");
        }
        assert_eq!(unsigned("xyz"), None);
        assert_eq!(unsigned("99999999999999999999"), None);
        assert_eq!(signed("-1"), Some(-1));
        assert_eq!(signed("x"), None);
    }

    #[test]
    fn fractions_are_read_as_c_reads_them() {
        let float = |word: &str| Line::read(&format!("set_fraction {word}")).expect("a line").float(1);
        for (word, value) in
            [("0x1p-1", 0.5), ("0x.8", 0.5), ("0x1.8p-2x", 0.375), ("0x", 0.0), ("0x1p", 1.0), ("+.5", 0.5), ("5e-1z", 0.5)]
        {
            assert_eq!(float(word), Ok(value), "{word}");
        }
        for word in ["1e400", "1e-400", "1e-310", "0x1p-1080", "xyz"] {
            assert_eq!(float(word), Err("stod"), "{word}");
        }
    }

    #[test]
    fn a_settings_string_keeps_its_spaces() {
        let line = Line::read("  conf  max_split_size_mb : 64 # why").expect("a line");
        assert_eq!(line.tail(), " max_split_size_mb : 64 ");
        assert_eq!(line.joined(), "conf max_split_size_mb : 64");
    }
}
