use std::fmt::Write as _;

use parkade::settings::{ErrorKind, Settings, SettingsError};

fn hex(text: &str) -> String {
    text.bytes().fold(String::new(), |mut output, byte| {
        let _ = write!(output, "{byte:02x}");
        output
    })
}

fn outcome(error: Option<&SettingsError>) -> String {
    let Some(error) = error else { return String::from("-\t") };
    let kind = match error.kind() {
        ErrorKind::Value => "value",
        ErrorKind::Check => "check",
        ErrorKind::Internal => "internal",
        ErrorKind::InvalidNumber => "argument",
        ErrorKind::NumberOutOfRange => "range",
    };
    format!("{kind}\t{}", hex(error.message()))
}

fn fields(settings: &Settings) -> String {
    let roundup: Vec<String> = settings.roundup_power2_divisions.iter().map(u64::to_string).collect();
    format!(
        "large={}\tsplit={}\trounding={}\tgc={:016x}\texpandable={}\tbackground={}\trelease={}\tgraph={}\tfraction={:016x}\t\
         register={}\tthreads={}\treserve={}\tbackend={}\troundup={}\ttext={}",
        settings.large_segment_bytes,
        settings.max_split_bytes,
        settings.max_non_split_rounding_bytes,
        settings.garbage_collection_threshold.to_bits(),
        u8::from(settings.expandable_segments),
        u8::from(settings.pinned_use_background_threads),
        u8::from(settings.release_lock_on_cudamalloc),
        u8::from(settings.graph_capture_record_stream_reuse),
        settings.per_process_memory_fraction.to_bits(),
        u8::from(settings.pinned_use_cuda_host_register),
        settings.pinned_num_register_threads,
        settings.pinned_reserve_segment_mb,
        settings.backend.name(),
        roundup.join(","),
        hex(&settings.text)
    )
}
