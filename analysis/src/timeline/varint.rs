//! Numbers in few bytes: little-endian base 128, where the high bit of a byte says that more follow.
//!
//! Signed differences are folded, so that 0, -1, 1, -2 become 0, 1, 2, 3. A moment that may be [`NEVER`] is written as 0 for that, else as
//! one more than the difference to an earlier moment.

use thiserror::Error;

use super::log::NEVER;

/// Why packed columns cannot be read as a log.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PackedError {
    /// There is no such column.
    #[error("the column {0:?} is missing")]
    Missing(&'static str),
    /// A column ends too early, or a number in it exceeds 64 bits or refers to nothing.
    #[error("the column {0:?} is damaged")]
    Damaged(&'static str),
}

/// Appends a number.
pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a difference of two 64-bit numbers, taken modulo 2^64, as a signed number.
pub(super) fn put_signed(bytes: &mut Vec<u8>, difference: u64) {
    put(bytes, difference << 1 ^ (difference.cast_signed() >> 63).cast_unsigned());
}

/// Packs numbers into one column: each as the difference to the previous one, modulo 2^64; the first one to 0.
#[must_use]
pub fn pack_numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0);
    for number in numbers {
        put_signed(&mut bytes, number.wrapping_sub(before));
        before = number;
    }
    bytes
}

/// Appends a moment that is not before `since`, or [`NEVER`].
pub(super) fn put_moment(bytes: &mut Vec<u8>, moment: u32, since: u32) {
    put(bytes, if moment == NEVER { 0 } else { u64::from(moment.saturating_sub(since)) + 1 });
}

/// Reads a column.
#[derive(Default)]
pub(super) struct Reader<'a> {
    name: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn of(name: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { name, rest: bytes }
    }

    pub(super) fn number(&mut self) -> Result<u64, PackedError> {
        let (mut number, mut shift) = (0_u64, 0);
        while let Some((&byte, rest)) = self.rest.split_first().filter(|_| shift < 64) {
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
        }
        Err(PackedError::Damaged(self.name))
    }

    /// A number stored as the difference to `before`.
    pub(super) fn signed(&mut self, before: u64) -> Result<u64, PackedError> {
        let folded = self.number()?;
        Ok(before.wrapping_add(folded >> 1 ^ (folded & 1).wrapping_neg()))
    }

    /// A moment stored as the difference to `before`.
    pub(super) fn later(&mut self, before: u32) -> Result<u32, PackedError> {
        let later = u64::from(before).checked_add(self.number()?).and_then(|moment| u32::try_from(moment).ok());
        later.ok_or(PackedError::Damaged(self.name))
    }

    /// A moment stored by [`put_moment`].
    pub(super) fn moment(&mut self, since: u32) -> Result<u32, PackedError> {
        match self.number()?.checked_sub(1) {
            None => Ok(NEVER),
            Some(after) => {
                let moment = u64::from(since).checked_add(after).and_then(|moment| u32::try_from(moment).ok());
                moment.ok_or(PackedError::Damaged(self.name))
            }
        }
    }

    /// The entry of `list` that a number read from this column refers to.
    pub(super) fn look_up<T: Copy>(&self, number: u64, list: &[T]) -> Result<T, PackedError> {
        let value = usize::try_from(number).ok().and_then(|place| list.get(place));
        value.copied().ok_or(PackedError::Damaged(self.name))
    }
}
