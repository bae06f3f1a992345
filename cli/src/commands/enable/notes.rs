//! What settings do and what is often misunderstood, from what PyTorch's parser made of the string, which may not be what was meant.

use parkade::settings::{Backend, Settings};
use parkade::texts::format_double;

use crate::terminal::size::show_bytes;

/// A line for each setting.
pub(super) fn of(settings: &Settings) -> Vec<String> {
    let usual = Settings::default();
    let mut notes = Vec::new();
    if settings.backend == Backend::CudaMallocAsync {
        notes.push(String::from(
            "backend: CUDA's own allocator instead of PyTorch's; max_split_size_mb, roundup_power2_divisions and \
             garbage_collection_threshold do nothing with it",
        ));
    }
    if settings.expandable_segments {
        notes.push(String::from(
            "expandable_segments: a segment grows in place, so its free memory stays in one piece; garbage collection does not touch \
             it",
        ));
    }
    notes.extend(max_split(settings, &usual));
    notes.extend(garbage_collection(settings));
    if settings.per_process_memory_fraction < 1.0 {
        let percent = format_double(settings.per_process_memory_fraction * 100.0);
        notes.push(format!(
            "per_process_memory_fraction: no more than {percent} % of the device's total memory, not counting the CUDA context (about \
             500 MiB); a request beyond that runs out of memory even if the device has room"
        ));
    }
    if settings.large_segment_bytes != usual.large_segment_bytes {
        let size = show_bytes(settings.large_segment_bytes);
        notes.push(format!("large_segment_size_mb: requests of 1 to 10 MiB share segments of {size}"));
    }
    if settings.roundup_power2_divisions != usual.roundup_power2_divisions {
        notes.push(String::from(
            "roundup_power2_divisions: sizes are rounded up to steps between powers of two; blocks of fewer sizes are easier to reuse, \
             but larger than their requests",
        ));
    }
    if notes.is_empty() {
        notes.push(String::from("this changes nothing: PyTorch manages the device's memory as by default"));
    }
    notes
}

/// The most misunderstood setting.
fn max_split(settings: &Settings, usual: &Settings) -> Option<String> {
    if settings.max_split_bytes == usual.max_split_bytes {
        return None;
    }
    let size = show_bytes(settings.max_split_bytes);
    let slack = show_bytes(settings.max_non_split_rounding_bytes);
    Some(format!(
        "max_split_size_mb: free blocks of {size} and more do not serve smaller requests at all, not even whole; a larger request \
         takes one if it leaves less than {slack} of it unused. A lower value keeps more blocks whole, a higher one fewer (the \
         lowest is 20)"
    ))
}

fn garbage_collection(settings: &Settings) -> Option<String> {
    let threshold = settings.garbage_collection_threshold;
    if threshold <= 0.0 {
        return None;
    }
    let percent = format_double(threshold * 100.0);
    let does = format!(
        "garbage_collection_threshold: before memory runs out, old free segments are released once more than {percent} % of"
    );
    Some(if settings.per_process_memory_fraction < 1.0 {
        format!("{does} the memory limit is reserved")
    } else {
        format!(
            "{does} a memory limit is reserved. Without a limit it does nothing: set per_process_memory_fraction too, or call \
             torch.cuda.set_per_process_memory_fraction"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(text: &str) -> String {
        of(&Settings::from_environment(text).expect("taken")).join("\n")
    }

    #[test]
    fn a_threshold_is_warned_of_unless_there_is_a_limit() {
        assert!(
            notes("garbage_collection_threshold:0.8")
                .contains("80 % of a memory limit is reserved. Without a limit it does nothing")
        );
        let limited = notes("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5");
        assert!(!limited.contains("does nothing") && limited.contains("no more than 50 %"), "{limited}");
    }

    #[test]
    fn notes_tell_what_was_understood() {
        assert!(notes("max_split_size_mb:128xyz").contains("free blocks of 128.00 MiB and more"));
        assert!(notes("large_segment_size_mb:40,max_split_size_mb:64").contains("less than 40.00 MiB of it"));
        assert!(notes("backend:cudaMallocAsync").contains("do nothing with it"));
        assert!(notes("expandable_segments:True").starts_with("expandable_segments: "));
        assert!(notes("roundup_power2_divisions:[256:1,>:4]").starts_with("roundup_power2_divisions: "));
        for nothing in ["", "expandable_segments:False", "pinned_num_register_threads:4"] {
            assert!(notes(nothing).contains("by default"), "{nothing}");
        }
    }
}
