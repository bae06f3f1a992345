//! Finds which release of PyTorch made a memory snapshot, and under which memory limit. A snapshot does not state these
//! facts, but they can be inferred from it.
//!
//! ```rust
//! use parkade_replay::recognition::{Asked, Basis, recognise};
//!
//! let recording = parkade_recording::read_file("../conformance/recordings/deep_mlp.default.pickle.xz")?;
//! let devices: Vec<_> = recording.devices.iter().collect();
//! let found = recognise(&recording, &devices, &Asked::default())?;
//! assert_eq!(found.basis, Basis::Replay, "every decision was made again");
//! assert!(found.releases.iter().any(|release| release.name == "2.11.0"));
//! println!("{}", found.words());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ## How a release is recognised
//!
//! 1. **The file's contents.** Each release writes certain keys into a snapshot and understands certain keys in the settings
//!    string. `possible` keeps the releases that may have written exactly the keys that are present.
//! 2. **Groups.** Releases whose rules cannot differ for this file are tried together: for example, the rules for private
//!    pools do not matter in a file without private pools. `recognise.rs` forms them; `Profile::decides_like` knows which
//!    rules matter.
//! 3. **A replay of each group, up to its first difference.** Different rules usually lead to a difference within a few
//!    hundred entries.
//! 4. **A full replay of each group**, if none explains the file in its first reading. This includes guesses for private
//!    pools that the file does not name.
//! 5. **The other releases,** up to their first difference, if still none explains the file, in which case its decisions
//!    contradict its contents.
//!
//! Every release that makes each of the recorded decisions is named (docs/recognition.md). If none does, the release with the
//! fewest differences is used, and the answer states this. A limit that the recorded run exceeded does not rule out any
//! release.
//!
//! ## Errors and panics
//!
//! An error means that the settings or the trace cannot be read under the rules of any release. No recording makes this
//! crate panic. There is no `unsafe` code.

mod limit;
mod outcome;
mod recognise;

pub use limit::{
    CapacityHint, find_limit, finding_limit, growth_bytes, hint as capacity_hint, most_reserved, reserved_at_start,
    segment_bytes, verify_finding_limit,
};
pub use outcome::{Basis, Differing, Evidence, Possible, Recognition, RefutedLimit, in_words, possible};
pub use recognise::{Asked, RecognitionError, VerifiedDevice, recognise, verify};
