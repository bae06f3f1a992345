//! Texts that parkade reads: settings, logs and messages, scripts and tables.
//!
//! Each text is made of words from its language, mostly in a correct order.

use std::fmt::Write;

use parkade::stats::Stats;

use crate::choices::Choices;

const KEYS: [&str; 24] = [
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "pinned_use_background_threads",
    "backend",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "pinned_free_catch_all",
    "throw_on_cudamalloc_oom",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "release_lock_on_hipmalloc",
    "pinned_use_hip_host_register",
    "use_uvm",
    "",
];

const VALUES: [&str; 28] = [
    "True",
    "False",
    "native",
    "cudaMallocAsync",
    "0",
    "1",
    "2",
    "4",
    "8",
    "20",
    "21",
    "64",
    "128",
    "200",
    "512",
    "-1",
    "0.5",
    "0.8",
    "1.0",
    "1e-300",
    "nan",
    "inf",
    "0x10",
    "[256:1,512:2,1024:4,>:8]",
    "[1:2,>:3]",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
];

const SOUND: [&str; 16] = [
    "expandable_segments:True",
    "expandable_segments:False",
    "max_split_size_mb:21",
    "max_split_size_mb:512",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:0.05",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "max_non_split_rounding_mb:200",
    "large_segment_size_mb:64",
    "per_process_memory_fraction:0.5",
    "backend:native",
    "release_lock_on_cudamalloc:True",
    "pinned_num_register_threads:8",
    "graph_capture_record_stream_reuse:True",
    "pinned_use_background_threads:True",
];

const PIECES: [&str; 14] = [":", ",", "[", "]", ">", " ", "\t", "'", "\"", "=", "::", ",,", "\u{ff1a}", "True"];

/// Parts of numbers.
const DIGITS: [&str; 14] = ["0", "1", "25", "9", "00000", ".", "e", "E", "-", "+", "0x", "p", "f", "G"];

/// Adds a list of divisions or of classes.
fn list(text: &mut String, choices: &mut Choices<'_>) {
    const INTERVALS: [&str; 9] = ["1", "2", "64", "256", "16384", "65536", ">", "a", "3"];
    const DIVISIONS: [&str; 7] = ["1", "2", "4", "8", "0", "3", "0.5"];
    text.push('[');
    for place in 0..choices.below(6) {
        let comma = if place == 0 { "" } else { "," };
        text.extend([comma, choices.pick(&INTERVALS), ":", choices.pick(&DIVISIONS)]);
    }
    text.push(']');
}

/// Returns a settings string as in `PYTORCH_CUDA_ALLOC_CONF`.
pub(crate) fn settings(choices: &mut Choices<'_>) -> String {
    let mut text = String::new();
    for number in 0..choices.below(5) {
        if number > 0 {
            text.push(',');
        }
        if choices.below(4) < 3 {
            text.push_str(choices.pick(&SOUND));
            continue;
        }
        text.push_str(choices.pick(&KEYS));
        text.push(':');
        match choices.below(4) {
            0 => text.push_str(&choices.words(&DIGITS, 6)),
            1 => list(&mut text, choices),
            _ => text.push_str(choices.pick(&VALUES)),
        }
    }
    if choices.once_in(10) {
        text.push_str(&choices.words(&PIECES, 8));
    }
    if choices.once_in(12) {
        let mut bytes = text.into_bytes();
        choices.damage(&mut bytes, 3);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    text
}

/// Returns a size as people write it.
pub(crate) fn size(choices: &mut Choices<'_>) -> String {
    const UNITS: [&str; 14] = ["", "GiB", "G", "GB", "MiB", "KB", "B", "TiB", "PiB", "EiB", " gib", "g", "%", "x"];
    const NUMBERS: [&str; 12] =
        ["0", "1", "7.2", "16", "-1", "1e9", "0.0000001", "nan", "18446744073709551615", ".5", "5.", "0x10"];
    let number = if choices.once_in(2) { choices.number().to_string() } else { choices.pick(&NUMBERS).to_owned() };
    format!("{number}{}", choices.pick(&UNITS))
}

const SIZES: [&str; 8] =
    ["4.88 GiB", "20.00 MiB", "512 bytes", "0 bytes", "39.59 GiB", "17179869183.99 GiB", "2.00 KiB", "900.00 GiB"];

const WRONG_SIZES: [&str; 5] = ["1e9 GiB", "-1.00 GiB", "99999999999999999999 bytes", "GiB", "3.5 TiB"];

const WORDS: [&str; 22] = [
    "CUDA out of memory. ",
    "HIP out of memory. ",
    "Tried to allocate ",
    "GPU 0 has a total capacity of ",
    "GPU 0; ",
    " total capacity; ",
    " already allocated; ",
    " is free. ",
    "Process 7 has ",
    " memory in use. ",
    "Of the allocated memory ",
    " is allocated by PyTorch, ",
    "with ",
    " allocated in private pools (e.g., CUDA Graphs), ",
    "and ",
    " is reserved by PyTorch but unallocated. ",
    "\n",
    "\r\n",
    "\u{1b}[31m",
    "torch.OutOfMemoryError: ",
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    "cudaErrorMemoryAllocation",
];

const PREFIXES: [&str; 14] = [
    "",
    "[rank3]: ",
    "[rank4294967296]: ",
    "2: ",
    "ERROR trainer rank=5: ",
    "2026-11-22 10:00:00,123 ",
    "2026-11-22T10:00:00.123456Z ",
    "[2026-02-30 25:61:61] ",
    "[default0]:",
    "1/8: ",
    "(RayTrainWorker pid=12, ip=10.0.0.1) ",
    "\u{9b}",
    "[rank0]:[rank1]: ",
    "Nov 22 10:00:00 node7 ",
];

fn size_in_message(choices: &mut Choices<'_>) -> &'static str {
    if choices.once_in(24) { choices.pick(&WRONG_SIZES) } else { choices.pick(&SIZES) }
}

/// Returns an out-of-memory message of any version, complete or truncated.
pub(crate) fn message(choices: &mut Choices<'_>) -> String {
    let [tried, total, free, used, allocated, unallocated] = std::array::from_fn(|_| size_in_message(choices));
    let device = choices.pick(&["0", "7", "128", "99999999999"]);
    let mut text = match choices.below(6) {
        0 => format!(
            "CUDA out of memory. Tried to allocate {tried} (GPU {device}; {total} total capacity; {allocated} already allocated; {free} \
             free; {used} reserved in total by PyTorch) If reserved memory is >> allocated memory"
        ),
        1 => format!(
            "CUDA out of memory. Tried to allocate {tried} (GPU {device}; {total} total capacity; {allocated} already allocated; {free} \
             free; {unallocated} cached)"
        ),
        2 => format!(
            "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total capacty of {total} of which {free} is free. \
             Including non-PyTorch memory, this process has {used} memory in use. {used} allowed; Of the allocated memory {allocated} \
             is allocated by PyTorch, with {unallocated} allocated in private pools (e.g., CUDA Graphs), and {unallocated} is reserved \
             by PyTorch but unallocated."
        ),
        3 => choices.words(&WORDS, 24),
        _ => format!(
            "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total capacity of {total} of which {free} is free. Process \
             7 has {used} memory in use. Process 8 has {used} memory in use. Of the allocated memory {allocated} is allocated by \
             PyTorch, and {unallocated} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large"
        ),
    };
    if choices.once_in(8) {
        let mut bytes = text.into_bytes();
        choices.damage(&mut bytes, 6);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    text
}

/// Returns a log of several ranks that contains out-of-memory messages.
pub(crate) fn log(choices: &mut Choices<'_>) -> String {
    let mut text = String::new();
    let lines = if choices.once_in(200) { 3000 } else { choices.below(12) };
    for _ in 0..lines {
        text.push_str(choices.pick(&PREFIXES));
        match choices.below(4) {
            0 => text.push_str(&choices.words(&WORDS, 6)),
            _ => text.push_str(&message(choices)),
        }
        text.push('\n');
    }
    text
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Returns a script of allocator operations as `parkade ops` runs them. Blocks and pools share a few names, so that
/// operations affect each other.
pub(crate) fn script(choices: &mut Choices<'_>) -> String {
    let mut text = String::new();
    for _ in 0..choices.below(40) {
        line(&mut text, choices);
        if choices.once_in(30) {
            text.push_str(&choices.words(&[" ", "alloc", "-1", "1e3", "all", "#"], 3));
        }
        text.push('\n');
    }
    text
}

fn line(text: &mut String, choices: &mut Choices<'_>) {
    let name = choices.pick(&NAMES);
    let stream = choices.pick(&["0", "1", "2", "-1", "18446744073709551615", "x"]);
    let pool = choices.pick(&["p", "q", "r"]);
    let size = choices.size();
    let written = match choices.below(24) {
        0..=6 => format!("alloc {name} {size} {stream}"),
        7..=10 => format!("free {name}"),
        11 => format!("record_stream {name} {stream}"),
        12 => choices.pick(&["empty_cache", "free_all", "sync", "reset_peak", "reset_accumulated"]).to_owned(),
        13 => choices
            .pick(&["snapshot", "trace", "history", "stats", "cache_info", "meminfo", "expandable_sizes", "driver", "name"])
            .to_owned(),
        14 => format!("complete {}", choices.pick(&["all", "0", "1"])),
        15 => format!("set_fraction {}", choices.pick(&["0", "0.5", "1", "1.5", "-1", "nan", "inf", "1e-320"])),
        16 => format!("conf {}", settings(choices)),
        17 => format!("pool_create {pool} {}", choices.pick(&["", "use_on_oom", "no_split", "no_use_on_oom"])),
        18 => format!("pool_begin {pool} {stream}"),
        19 => format!("{} {pool}", choices.pick(&["pool_end", "pool_release", "pool_use_count"])),
        20 => format!("{} {}", choices.pick(&["capacity", "external", "fail_next", "oom_free", "enable", "complete_one"]), size),
        21 => format!("{} {pool} {stream}", choices.pick(&["capture_begin", "capture_end", "ckpt_save", "ckpt_load"])),
        22 => format!("{} {name} {size}", choices.pick(&["rawalloc", "rawfree", "base"])),
        _ => choices.words(&["alloc ", "free ", "a ", "0 ", "-5 ", "\t"], 5),
    };
    text.push_str(&written);
}

/// Returns buffers to pack, as CSV.
pub(crate) fn buffers(choices: &mut Choices<'_>) -> String {
    let wrong =
        choices.pick(&["id,lower,size", "lower;upper;size", "size, upper ,lower,id", "lower,upper,size,alignment,size", ""]);
    let is_aligned = choices.once_in(3);
    let header = if is_aligned { "lower,upper,size,alignment" } else { "id,lower,upper,size" };
    let mut text = if choices.once_in(8) { wrong } else { header }.to_owned();
    text.push_str(choices.pick(&["\n", "\r\n", "\n\n"]));
    for number in 0..choices.below(24) {
        let lower = choices.below(40) as u64;
        let upper = lower + 1 + choices.below(20) as u64;
        let size = if choices.once_in(6) { choices.size() } else { 512 * (1 + choices.below(64) as u64) };
        let end = if choices.once_in(40) { u64::MAX } else { upper };
        let alignment = choices.pick(&["1", "512", "3", "4096", "1048576", "18446744073709551615"]);
        // Writing to a string cannot fail.
        let _ = match choices.below(200) {
            0 => writeln!(text, "{number},{lower}"),
            1 => writeln!(text, "\"{number},{lower},{end},{size}"),
            2 => writeln!(text, "{number},{end},{lower},0"),
            _ if is_aligned => writeln!(text, "{lower},{end},{size},{alignment}"),
            _ => writeln!(text, "{number},{lower},{end},{size}"),
        };
    }
    damaged(text, choices, 8)
}

/// Returns the statistics of a run, as JSON.
pub(crate) fn statistics(choices: &mut Choices<'_>) -> String {
    let mut entries: Vec<String> =
        Stats::default().entries().into_iter().map(|(key, _)| format!("\"{key}\":{}", choices.below(1000))).collect();
    for _ in 0..choices.below(8) {
        let value = choices.pick(&["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "12884901888"]);
        let wrong = choices.pick(&["9223372036854775808", "1e3", "null", "1.5", "true"]);
        let value = if choices.once_in(12) { wrong } else { value };
        let key = choices.pick(&["num_oom_rejections", "a_key_of_tomorrow", "reserved_bytes.all.peak", "num_ooms"]);
        entries.push(format!("\"{key}\":{value}"));
    }
    if choices.once_in(8) {
        entries.remove(choices.below(entries.len()));
    }
    damaged(format!("{{{}}}", entries.join(",")), choices, 10)
}

/// Returns the rows of a sweep as `parkade sweep -o` writes them. `sound` is a valid file.
pub(crate) fn rows(sound: &str, choices: &mut Choices<'_>) -> String {
    let mut lines: Vec<String> = sound.lines().map(str::to_owned).collect();
    for _ in 0..choices.below(3) {
        let Some(at) = choices.place(lines.len()) else { break };
        match choices.below(12) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => {
                let other = choices.below(lines.len());
                lines.swap(at, other);
            }
            _ => another_number(&mut lines[at], choices),
        }
    }
    let mut text = lines.join("\n");
    text.push('\n');
    damaged(text, choices, 12)
}

/// Replaces one of the numbers in a line.
fn another_number(line: &mut String, choices: &mut Choices<'_>) {
    let starts: Vec<usize> = line.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
    let Some(start) = choices.place(starts.len()).map(|place| starts[place]) else { return };
    let end = line[start..].find(|c: char| !c.is_ascii_digit()).map_or(line.len(), |length| start + length);
    let numbers = ["0", "1", "2", "-1", "18446744073709551615", "1e400", "0.5", "null", "\"\"", "9007199254740993"];
    line.replace_range(start..end, choices.pick(&numbers));
}

fn damaged(text: String, choices: &mut Choices<'_>, once_in: usize) -> String {
    if !choices.once_in(once_in) {
        return text;
    }
    let mut bytes = text.into_bytes();
    choices.damage(&mut bytes, 4);
    String::from_utf8_lossy(&bytes).into_owned()
}
