//! Scripts of allocator operations, as `parkade ops` runs them.

use crate::choices::Choices;
use crate::texts;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A script. Blocks and pools have few names, so that operations meet.
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
        16 => format!("conf {}", texts::settings(choices)),
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
