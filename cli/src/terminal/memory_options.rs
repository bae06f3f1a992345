//! The error for an option that people guess when they mean the memory of a GPU, such as `--card 24GiB` or `--vram 24GiB`.
//!
//! None is an alias of `--capacity`: that is the memory that the allocator may use, and a card has more, of which the driver takes a part.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use parkade_research::study::largest_batch::CONTEXT_BYTES;

use crate::terminal::size;

/// The options that people guess, without their hyphens.
const GUESSED: [&str; 14] = [
    "card",
    "gpu",
    "gpu-memory",
    "device-memory",
    "memory",
    "mem",
    "vram",
    "size",
    "gib",
    "gb",
    "max-memory",
    "memory-limit",
    "total",
    "ram",
];

/// Replaces clap's suggestion by the option that the command has for the memory of a GPU.
pub(crate) fn explain(mut error: Error, program: &Command, arguments: &[OsString]) -> Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return error };
    let guess = unknown.trim_start_matches('-').split('=').next().unwrap_or_default().to_ascii_lowercase().replace('_', "-");
    let text = |argument: &OsString| argument.to_string_lossy().into_owned();
    let command = arguments.get(1).and_then(|name| program.find_subcommand(name));
    let Some(command) = command.filter(|_| GUESSED.contains(&guess.as_str())) else { return error };
    let place = arguments.iter().position(|argument| text(argument).split('=').next() == unknown.split('=').next());
    let attached = place.and_then(|place| text(&arguments[place]).split_once('=').map(|(_, value)| value.to_owned()));
    let value = attached.or_else(|| arguments.get(place? + 1).map(text)).and_then(|value| size::parse(&value).ok());
    let Some(hint) = hint(command, value) else { return error };
    let styled = ContextValue::StyledStrs(vec![hint.into()]);
    error.remove(ContextKind::SuggestedArg);
    error.remove(ContextKind::Usage);
    error.insert(ContextKind::Suggested, styled);
    error
}

/// Names the options of a command that limit memory, with the value that they should have for a GPU of this size.
fn hint(command: &Command, gpu_bytes: Option<u64>) -> Option<String> {
    let has = |name: &str| command.get_arguments().any(|argument| argument.get_long() == Some(name));
    let usable = gpu_bytes.and_then(|bytes| bytes.checked_sub(CONTEXT_BYTES)).filter(|&bytes| bytes > 0);
    let of = |option: &str| {
        let value = usable.map_or_else(|| "SIZE".to_owned(), size::exact);
        let gpu = gpu_bytes.map_or_else(String::new, |bytes| format!(" for a GPU with {}", size::exact(bytes)));
        format!("--{option} {value}{gpu}")
    };
    let less = "the memory of the GPU minus about 500 MiB for the driver and what other processes use";
    let limit = "--limit SIZE is the limit that the program sets (set_per_process_memory_fraction)";
    match (has("capacity"), has("limit")) {
        (true, true) => Some(format!("use {}: {less}; {limit}", of("capacity"))),
        (true, false) => Some(format!("use {}: {less}", of("capacity"))),
        (false, true) => Some(format!("use {}: what the process may reserve, which is {less}", of("limit"))),
        (false, false) if has("capacities") => Some(format!(
            "use --capacities {}: factors of LOAD or sizes",
            gpu_bytes.map_or_else(|| "SIZE".to_owned(), size::exact)
        )),
        (false, false) if has("fail-above") => Some(format!(
            "use --fail-above {}: the bound on the peak of reserved memory",
            usable.map_or_else(|| "SIZE".to_owned(), size::exact)
        )),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn said(options: &[&'static str], line: &str) -> String {
        let command = options.iter().fold(Command::new("advise"), |command, option| command.arg(Arg::new(*option).long(*option)));
        let program = Command::new("parkade").subcommand(command.arg(Arg::new("file")));
        let arguments: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        let error = program.clone().try_get_matches_from(&arguments).expect_err(line);
        explain(error, &program, &arguments).to_string()
    }

    #[test]
    fn a_card_is_not_a_capacity_but_names_it() {
        let both = ["capacity", "limit"];
        for line in ["parkade advise f --card 24GiB", "parkade advise f --vram=24GiB", "parkade advise --GPU_MEMORY 24GiB f"] {
            assert!(said(&both, line).contains("use --capacity 24076MiB for a GPU with 24GiB: "), "{}", said(&both, line));
        }
        assert!(said(&both, "parkade advise f --gpu A100").contains("use --capacity SIZE: "), "no size");
        assert!(said(&["limit"], "parkade advise f --memory 8GiB").contains("use --limit 7692MiB for a GPU with 8GiB"));
        assert!(!said(&both, "parkade advise f --nonsense 24GiB").contains("--capacity SIZE"));
        assert!(!said(&["all"], "parkade advise f --card 24GiB").contains("use --"));
    }
}
