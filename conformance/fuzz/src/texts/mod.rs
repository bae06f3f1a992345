//! Texts that parkade reads: settings, logs and messages, scripts, tables.
//!
//! Each is made of the words of its language, in an order that is mostly right.

mod logs;
mod scripts;
mod tables;

pub(crate) use logs::{log, message};
pub(crate) use scripts::script;
pub(crate) use tables::{buffers, rows, statistics};

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

/// A settings string, as in `PYTORCH_CUDA_ALLOC_CONF`.
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
        text.push_str(choices.pick(&VALUES));
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

/// A size as people write it.
pub(crate) fn size(choices: &mut Choices<'_>) -> String {
    const UNITS: [&str; 14] = ["", "GiB", "G", "GB", "MiB", "KB", "B", "TiB", "PiB", "EiB", " gib", "g", "%", "x"];
    const NUMBERS: [&str; 12] =
        ["0", "1", "7.2", "16", "-1", "1e9", "0.0000001", "nan", "18446744073709551615", ".5", "5.", "0x10"];
    let number = if choices.once_in(2) { choices.number().to_string() } else { choices.pick(&NUMBERS).to_owned() };
    format!("{number}{}", choices.pick(&UNITS))
}
