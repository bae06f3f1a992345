//! Reading the opcodes' arguments from the input: fixed-width numbers, counted bytes, lines of text.

use super::error::PickleProblem;

/// A place in the input.
pub(crate) struct Cursor<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    #[cold]
    fn truncated(&self, needed: u64) -> PickleProblem {
        PickleProblem::Truncated { needed, left: (self.input.len() - self.at) as u64 }
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, PickleProblem> {
        match self.input.get(self.at) {
            Some(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            None => Err(self.truncated(1)),
        }
    }

    /// Everything that is left.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.input.get(self.at..).unwrap_or(&[])
    }

    /// The next byte, which stays where it is; at the end 0, which is not an opcode.
    #[inline]
    pub(crate) fn peek(&self) -> u8 {
        self.input.get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleProblem> {
        match self.rest().first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(self.truncated(N as u64)),
        }
    }

    /// Skips `length` bytes; returns their offset and length.
    #[inline]
    pub(crate) fn skip(&mut self, length: u64) -> Result<(usize, usize), PickleProblem> {
        let left = self.input.len() - self.at;
        if length > left as u64 {
            return Err(self.truncated(length));
        }
        let start = self.at;
        self.at += length as usize;
        Ok((start, length as usize))
    }

    /// The next `length` bytes.
    #[inline]
    pub(crate) fn bytes(&mut self, length: u64) -> Result<&'a [u8], PickleProblem> {
        let (start, length) = self.skip(length)?;
        Ok(self.input.get(start..start + length).unwrap_or(&[]))
    }

    /// A line, without its line feed.
    pub(crate) fn line(&mut self) -> Result<&'a [u8], PickleProblem> {
        let rest = self.rest();
        match rest.iter().position(|&byte| byte == b'\n') {
            Some(length) => {
                self.at += length + 1;
                Ok(&rest[..length])
            }
            None => Err(PickleProblem::UnfinishedLine),
        }
    }

    /// A four-byte length that Python writes as signed (BINSTRING, LONG4).
    pub(crate) fn signed_length(&mut self) -> Result<u64, PickleProblem> {
        let length = i32::from_le_bytes(self.array()?);
        u64::try_from(length).map_err(|_| PickleProblem::NegativeLength { length })
    }
}
