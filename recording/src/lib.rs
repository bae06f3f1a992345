#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod compression;
mod dated_keys;
mod file;
mod format;
mod json;
pub mod message;
mod named;
mod pickle;
mod recording;
mod summary;

pub use dated_keys::{DATED_KEYS, DatedKey, FieldEvidence, FileFields, Minor, Part};
pub use file::{ReadError, begins_as_snapshot, opened_as_snapshot, read, read_file, read_opened};
pub use format::{FormatError, FormatProblem, Place, write};
pub use json::JsonError;
pub use named::Named;
pub use pickle::{PickleError, PickleProblem, Style, memory_bound};
pub use recording::{
    Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, LeftOut, LimitSource, PoolId, PoolTable,
    RecordedSettings, Recording, RunLimit, Segment, Simulated, StackId, StackTable, Tolerated,
};
pub use summary::memory_summary;
