//! The words for changes and origins that the parts of an answer share.

use parkade_analysis::diff::{Origin, Phase, SizeClass};
use parkade_recording::StackId;

use super::compared::Compared;
use crate::commands::diagnose::parts;
use crate::terminal::output;
use crate::terminal::size::show_bytes;

/// The change from one value to the other as a share of the first; `None` if the first is 0.
pub(super) fn share(a: u64, b: u64) -> Option<f64> {
    (a > 0).then(|| (b as f64 - a as f64) / a as f64)
}

/// The same in percent, with a sign.
pub(super) fn percent(a: u64, b: u64) -> String {
    match share(a, b) {
        _ if a == b => String::new(),
        Some(share) if share >= 10.0 => format!("x {:.0}", share + 1.0),
        Some(share) => format!("{:+.1} %", share * 100.0),
        None => String::new(),
    }
}

/// A change in bytes with its sign.
pub(super) fn change(a: u64, b: u64) -> String {
    match b.cmp(&a) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", show_bytes(b - a)),
        std::cmp::Ordering::Less => format!("-{}", show_bytes(a - b)),
    }
}

/// The end of the name of blocks that are grouped by size.
pub(super) const WITHOUT_STACK: &str = " without a stack";

/// The origin of blocks, on one line.
pub(super) fn origin(compared: &Compared, origin: Origin) -> String {
    match origin {
        Origin::Sizes(SizeClass { least_bytes: 0, below_bytes }) => {
            format!("blocks of less than {}{WITHOUT_STACK}", power(below_bytes))
        }
        Origin::Sizes(class) => format!("blocks of {} to {}{WITHOUT_STACK}", power(class.least_bytes), power(class.below_bytes)),
        Origin::Stack { a, b } => {
            let (file, stack) = match b {
                Some(b) => (compared.second(), b),
                None => (&compared.a, a.unwrap_or(StackId::NONE)),
            };
            let (recording, names) = (&file.recording, &file.names);
            let is_named = names.has_native(&recording.stacks, stack);
            let innermost = recording.stacks.frames(stack).next().filter(|_| !is_named).map(|frame| frame.name.as_ref());
            let line = parts::stack_line(names, recording, stack).unwrap_or_else(|| "an empty stack".to_owned());
            // It distinguishes the requests of one line of the program.
            match innermost.filter(|name| !line.starts_with(&format!("{name} "))) {
                Some(name) => format!("{} in {line}", output::one_line(&output::shorten(name, 60))),
                None => line,
            }
        }
    }
}

/// A power of two that is at least 1 MiB, in the largest unit in which it is whole.
fn power(bytes: u64) -> String {
    let units = [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30)];
    let unit = units.into_iter().find(|(_, bits)| bytes >> bits > 0);
    let (name, bits) = unit.unwrap_or(("MiB", 20));
    format!("{} {name}", bytes >> bits)
}

/// A phase in words. `has_others` means that scopes other than the optimizer's are annotated.
pub(super) fn phase_words(phase: &Phase, has_others: bool) -> String {
    match phase {
        Phase::Outside if has_others => "outside of these".to_owned(),
        Phase::Outside => "outside the optimizer".to_owned(),
        Phase::BeforeTrace => "before the first entry".to_owned(),
        Phase::ZeroGrad => "zero_grad".to_owned(),
        Phase::Scope(name) => output::one_line(&output::shorten(name, 60)),
        Phase::Forward | Phase::Backward | Phase::Optimizer => phase.name().to_owned(),
    }
}
