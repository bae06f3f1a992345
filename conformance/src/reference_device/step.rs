//! What a program does with a device: its calls, the work on it, and what tests set. Everything is written relative to what the
//! device holds, so that steps can be removed from a program.

use serde::{Deserialize, Serialize};

use super::faults::Fault;

/// The kind of range that an address is relative to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Base {
    /// A live cudaMalloc.
    Malloc,
    /// A reservation.
    Reservation,
    /// A mapping.
    Mapping,
    /// Any range that the device has ever returned.
    Ever,
    /// The address space.
    Space,
}

/// An address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Spot {
    pub(crate) base: Base,
    pub(crate) which: usize,
    /// Whether the offset counts from the range's end.
    pub(crate) from_end: bool,
    pub(crate) offset: i64,
}

/// The number of whatever was added last.
pub(crate) const LAST: usize = usize::MAX;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Size {
    /// Exactly these bytes.
    Bytes(u64),
    /// What can be taken from the device, plus this.
    Room(i64),
    /// From the address to the end of the range in which it is, plus this.
    Rest(i64),
    /// The bytes of the memory that the step is about, or that was mapped last, plus this.
    Same(i64),
}

/// A range that a kernel uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Use {
    pub(crate) at: Spot,
    pub(crate) size: Size,
    pub(crate) writes: bool,
}

/// A step. Memory, events and streams are numbered in the order in which the program got them, modulo how many there are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    Malloc(Size),
    Free(Spot),
    Info,
    Processes,
    SetCapacity(Size),
    SetExternal(Size),
    SetProcess(u32, Size),
    FailNext(u64),
    Plan(Vec<Fault>),
    /// Sets the level and takes the log.
    Log(u8),
    Reserve(Size),
    Unreserve(Spot, Size),
    Create(Size),
    CreateRun(u64, u64),
    /// Keeps these pages of the memory's size, or of a different size.
    SplitRun(usize, u64, bool),
    Map(Spot, Size, usize),
    SetAccess(Spot, Size),
    Unmap(Spot, Size),
    /// Unmaps this many pages of the size of the memory.
    UnmapRun(Spot, usize, u64),
    Release(usize),
    /// Releases or maps memory that was already released.
    ReleaseAgain(usize),
    MapAgain(Spot, usize),
    /// Breaks memory where it is mapped into parts: offset and size, in pages, and bytes beyond the size.
    Break(usize, Spot, Vec<(u64, u64)>, u64),
    CreateEvent,
    Record(usize, usize),
    Query(usize),
    Wait(usize),
    /// The stream waits for the event: as a call of the allocator, or of the program.
    StreamWait(usize, usize, bool),
    DestroyEvent(usize),
    IsIdle(usize),
    SynchronizeStream(usize),
    Synchronize,
    CreateStream,
    DestroyStream(usize),
    WaitFor(usize),
    Spin(usize, u64),
    Advance(u64),
    Complete(usize),
    CompleteOne(usize),
    CompleteAll,
    Kernel(usize, u64, Vec<Use>),
    /// As many kernels, each of which uses four bytes, eight bytes after those of the one before.
    Crowd(usize, u64, Spot, bool),
    Fill(Spot, Size, u32, usize),
    Copy(Spot, Spot, Size, usize),
    Read(Spot, u64),
    /// Asks what is known about an address: its name, its page and its pages.
    Ask(Spot),
    BeginCapture(usize),
    EndCapture(usize),
    CaptureWork(usize),
    CaptureWait(usize, usize),
    /// Asks for the capture of a stream, and for what it awaits beyond a few nodes.
    Capture(usize, u64),
    /// Appends an address to the list of the model for cudaMalloc or for reservations, or drops the list.
    Addresses(bool, Option<u64>),
    /// Tells the address model how far the program has progressed.
    Moment(u64),
    /// Continues with a clone, while the original does something else.
    Clone,
}
