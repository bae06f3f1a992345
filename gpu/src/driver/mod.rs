//! The CUDA driver, wrapped in types that cannot be misused: a context, and the memory, streams and events in it.
//!
//! This crate has unsafe code only here and in `nvml`. The functions are safe to call because handles are
//! created only by the driver, everything that lives in a context keeps the context alive, the owner of a handle
//! releases it once, and reads and writes stay inside memory that the device owns. Queued work whose memory is then
//! unmapped fails on the device; as with the driver itself, the caller must wait for it first.

mod context;
mod memory;
mod stream;
mod table;

pub(crate) use context::{Context, PEER_ACCESS_NOT_ENABLED, Peer, can_access_peer};
pub use memory::{CudaPhysical, SharedMemory};
pub(crate) use memory::{Memory, Reservation, Span, Stage, granularity_bytes};
pub use stream::{CudaEvent, LONGEST_SPIN_NS, StreamsAreValid, WorkIsSerial};
pub(crate) use stream::{
    Spin, Stream, add_awaited, capture_of_stream, is_idle as is_stream_idle, knows_captures, synchronize as synchronize_stream,
};
pub use table::{DriverError, Unavailable};
pub(crate) use table::{INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, STREAM_CAPTURE_CODES};
