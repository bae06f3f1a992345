//! What a recording is: the contents of a PyTorch memory snapshot as plain, checked data.
//!
//! Sources: spec 7.3 (segments), spec 7.4 (trace), spec 7.5 (settings, annotations), spec 7.8 (older and newer
//! files). Addresses and sizes are in bytes, times in microseconds since 1970.

mod dated;
mod pools;
mod recording;
mod segments;
mod stacks;
mod trace;

pub use dated::{DATED_KEYS, DatedKey, FieldEvidence, FileFields, Minor, Part};
pub use pools::{PoolId, PoolTable};
pub use recording::{Annotation, DeviceRecording, RecordedSettings, Recording, Tolerated};
pub use segments::{Block, BlockState, Segment};
pub use stacks::{Frame, StackId, StackTable};
pub use trace::{Action, Entry};
