//! The CUDA driver behind types that cannot be misused: a context, and the memory, streams and events in it.
//!
//! Unsafe code is only here and in `nvml::table`. The functions are safe to call because a handle can only
//! come from the driver, everything that lives in a context keeps the context alive, each handle is released
//! once, by its owner, and reads and writes stay inside memory that the device owns. Queued work whose memory
//! is then unmapped fails on the device; as with the driver itself, the caller must wait for it first.

mod call;
mod capture;
mod context;
mod event;
mod identity;
mod memory;
mod peer;
mod physical;
mod reservation;
mod shared;
mod span;
mod spin;
mod stage;
mod stream;
mod table;

pub(crate) use call::{INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, STREAM_CAPTURE_CODES};
pub(crate) use capture::{add_awaited, of_stream as capture_of_stream};
pub(crate) use context::Context;
pub use event::CudaEvent;
pub(crate) use memory::Memory;
pub(crate) use peer::{PEER_ACCESS_NOT_ENABLED, Peer, can_access_peer};
pub use physical::CudaPhysical;
pub(crate) use physical::granularity_bytes;
pub(crate) use reservation::Reservation;
pub use shared::SharedMemory;
pub(crate) use span::Span;
pub use spin::LONGEST_SPIN_NS;
pub(crate) use spin::Spin;
pub(crate) use stage::Stage;
pub(crate) use stream::{Stream, is_idle as is_stream_idle, synchronize as synchronize_stream};
pub use stream::{StreamsAreValid, WorkIsSerial};
