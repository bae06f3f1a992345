//! The address ranges that the device has handed out, against which each further answer is checked.
//!
//! The heap relies on the device's guarantee that ranges do not overlap. If a device broke this guarantee, two
//! allocations would share memory, so the allocator refuses the answer before it uses the range.

use alloc::collections::BTreeMap;
use core::fmt;

use crate::units::{Bytes, DeviceAddress};

/// Every range starts on a multiple of this.
const ALIGNMENT: u64 = 512;

/// A range that the device handed out but that cannot be used. The allocator neither uses it nor returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongAnswer {
    /// The call, by its name in [`DeviceBackend`](crate::device::DeviceBackend).
    pub call: &'static str,
    /// The address that it returned.
    pub address: DeviceAddress,
    /// The requested bytes.
    pub bytes: Bytes,
    /// What is wrong with the range.
    pub problem: AnswerProblem,
}

/// The reason why a range that the device handed out cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerProblem {
    /// The range starts at address 0.
    Null,
    /// The range does not start on a multiple of 512 bytes.
    Unaligned,
    /// The range extends beyond 64 bits.
    TooLong,
    /// The range overlaps a range that the device has already handed out and that has not been returned: the first
    /// byte and the size of that range.
    Overlaps(DeviceAddress, Bytes),
    /// With this range, the allocator would hold more bytes than its statistics can count (2^63 - 1).
    TooMuch,
}

impl fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongAnswer { call, address, bytes, .. } = self;
        write!(f, "the device's answer cannot be used: {call} of {bytes} bytes returned {address}, which ")?;
        match self.problem {
            AnswerProblem::Null => f.write_str("is the null pointer"),
            AnswerProblem::Unaligned => write!(f, "is not a multiple of {ALIGNMENT}"),
            AnswerProblem::TooLong => f.write_str("leaves no room for them below 2^64"),
            AnswerProblem::Overlaps(other, size) => write!(f, "overlaps the {size} bytes at {other} that are still held"),
            AnswerProblem::TooMuch => f.write_str("would bring the total above 2^63 - 1 bytes"),
        }
    }
}

impl core::error::Error for WrongAnswer {}

/// The ranges that the allocator holds, by first byte. They do not overlap.
#[derive(Clone, Default, Debug)]
pub(crate) struct DeviceRanges {
    by_start: BTreeMap<u64, u64>,
}

impl DeviceRanges {
    /// Adds a range.
    ///
    /// # Errors
    /// The reason why it cannot be used. Nothing has changed.
    pub(crate) fn add(&mut self, start: u64, bytes: u64) -> Result<(), AnswerProblem> {
        if start == 0 {
            return Err(AnswerProblem::Null);
        }
        if !start.is_multiple_of(ALIGNMENT) {
            return Err(AnswerProblem::Unaligned);
        }
        let end = start.checked_add(bytes).ok_or(AnswerProblem::TooLong)?;
        if let Some((&other, &size)) = self.by_start.range(..end).next_back()
            && other + size > start
        {
            return Err(AnswerProblem::Overlaps(DeviceAddress(other), Bytes(size)));
        }
        self.by_start.insert(start, bytes);
        Ok(())
    }

    /// Removes a range that has been returned.
    pub(crate) fn remove(&mut self, start: u64) {
        self.by_start.remove(&start);
    }
}
