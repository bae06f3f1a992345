//! A recorded run over its length, as plain data to draw: levels, lives of blocks and segments, markers.
//!
//! A *moment* is a number of entries that are done: moment 0 is the state before the first entry, moment `n` that after the last of
//! `n`. `log` records from which moment to which each block and segment existed; the heap at any moment, the levels and who holds the
//! memory all follow from it. `levels` aggregates for drawing, `markers` finds events, `what_if` runs the same requests under other
//! settings, and `packed` packs a log into few bytes and reads it back.

mod heap;
mod holders;
mod levels;
mod log;
mod markers;
mod packed;
mod run;
mod times;
mod varint;
mod what_if;

pub use heap::{BlockNow, SegmentNow};
pub use holders::{Holder, HolderKey, holders};
pub use levels::{Bucket, Curve, Levels};
pub use log::{BlockLife, HeapLog, NEVER, SegmentLife};
pub use markers::{Marker, MarkerKind};
pub use packed::{Column, Packed};
pub use run::Timeline;
pub use times::TimeSamples;
pub use varint::{PackedError, pack_numbers};
pub use what_if::{Rest, Span, WhatIf, WhatIfRun, in_use, what_if};
