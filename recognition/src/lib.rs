#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod capacity_hint;
mod groups;
mod names;
mod possible;
mod recognise;
mod recognition;
mod recorded_limit;
mod reserved;

pub use capacity_hint::{CapacityHint, hint as capacity_hint};
pub use names::in_words;
pub use possible::{Evidence, Possible, possible};
pub use recognise::{Asked, RecognitionError, VerifiedDevice, recognise, verify};
pub use recognition::{Basis, Differing, Recognition, RefutedLimit};
pub use recorded_limit::{find_limit, finding_limit, verify_finding_limit};
pub use reserved::{growth_bytes, most_reserved, reserved_at_start, segment_bytes};
