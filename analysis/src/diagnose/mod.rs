//! Why a recorded program was out of memory, from its snapshot or from the error message alone.
//!
//! [`diagnose_device`] carries out the documents' five-step workflow (capacity? fragmentation? settings? empty_cache? the snapshot) on
//! the heap that the failing request met. `moment` finds that heap by replaying the recording, `stranded` breaks it down
//! ([`Breakdown`]), `limit` says what is known of the memory there was, `verdict` answers the five questions, `owners` and `fences`
//! name stacks and blocks, and `onset` says when it began. Where nothing failed, `excess` says why more is reserved than allocated at the
//! peak that `peaks` found. A file without a trace is diagnosed from its final segments (`from_segments`). [`diagnose_message`] does what
//! is possible without a snapshot, [`diagnose_partial`] what is possible with a part of the message.

mod breakdown;
mod diagnosis;
mod excess;
mod fences;
mod from_segments;
mod from_trace;
mod limit;
mod message;
mod moment;
mod onset;
mod owners;
mod partial;
mod peaks;
mod stranded;
#[cfg(test)]
mod tests;
mod verdict;

pub use breakdown::{Asked, Breakdown, Cause, Hole, PINNED_PART, Strand};
pub use diagnosis::{DiagnoseError, DiagnoseOptions, Diagnosis, GivenBack, Request};
pub use excess::{Excess, ExcessCause, ExcessPart, excess};
pub use fences::Fence;
pub use from_trace::diagnose_device;
pub use limit::{Contradiction, Limit, LimitEvidence};
pub use message::{Certainty, MessageDiagnosis, MessageVerdict, diagnose_message};
pub use moment::{Question, Why};
pub use onset::Onset;
pub use owners::Owner;
pub use partial::{PartialDiagnosis, diagnose_partial};
pub use peaks::{Peak, Peaks};
pub use stranded::stranded;
pub use verdict::{Applies, Steps, Verdict};
