//! Reading the opcodes' arguments from the input: fixed-width numbers, counted bytes, lines of text.

use std::ops::Range;

use super::error::PickleProblem;

/// Appends the next piece of the input to a vector; nothing at the end.
pub(crate) type NextPiece<'a> = &'a mut dyn FnMut(&mut Vec<u8>);

/// How many bytes are ahead of every opcode, unless the input ends before: more than nearly every opcode has.
const AHEAD: usize = 1 << 12;

/// A place in the input, which comes piece by piece. What was read is forgotten.
pub(crate) struct Cursor<'a> {
    /// The bytes that are here.
    pub(crate) input: Vec<u8>,
    /// The place in them.
    pub(crate) at: usize,
    /// How many bytes came before them.
    before: u64,
    next_piece: Option<NextPiece<'a>>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(next_piece: NextPiece<'a>) -> Self {
        let mut cursor = Cursor { input: Vec::new(), at: 0, before: 0, next_piece: Some(next_piece) };
        cursor.fetch();
        cursor
    }

    /// The place in the whole input.
    pub(crate) fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    /// How many bytes of the whole input were fetched.
    pub(crate) fn fetched(&self) -> u64 {
        self.before + self.input.len() as u64
    }

    /// Forgets what was read and fetches the next piece; false at the end of the input.
    #[cold]
    fn fetch(&mut self) -> bool {
        let Some(next_piece) = &mut self.next_piece else { return false };
        self.before += self.at as u64;
        self.input.drain(..self.at);
        self.at = 0;
        let had = self.input.len();
        next_piece(&mut self.input);
        if self.input.len() == had {
            self.next_piece = None;
        }
        self.input.len() > had
    }

    /// Fetches pieces until enough is ahead for nearly every opcode.
    #[inline]
    pub(crate) fn look_ahead(&mut self) {
        while self.input.len() - self.at < AHEAD && self.next_piece.is_some() {
            self.fetch();
        }
    }

    /// Goes back to `offset` and fetches as much again as there is, for an opcode that was cut short there; false at the end of the input.
    #[cold]
    pub(crate) fn retry_with_more(&mut self, offset: u64) -> bool {
        self.at = (offset - self.before) as usize;
        let enough = 2 * (self.input.len() - self.at);
        let has_more = self.fetch();
        while self.input.len() < enough && self.fetch() {}
        has_more
    }

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
    pub(crate) fn rest(&self) -> &[u8] {
        self.input.get(self.at..).unwrap_or(&[])
    }

    /// The next byte, which stays where it is; at the end 0, which is not an opcode.
    #[inline]
    pub(crate) fn peek(&self) -> u8 {
        self.input.get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleProblem> {
        match self.rest().first_chunk::<N>().copied() {
            Some(bytes) => {
                self.at += N;
                Ok(bytes)
            }
            None => Err(self.truncated(N as u64)),
        }
    }

    /// Skips `length` bytes; returns where they begin and end in `input`.
    #[inline]
    pub(crate) fn skip(&mut self, length: u64) -> Result<Range<usize>, PickleProblem> {
        let left = self.input.len() - self.at;
        if length > left as u64 {
            return Err(self.truncated(length));
        }
        let start = self.at;
        self.at += length as usize;
        Ok(start..self.at)
    }

    /// The next `length` bytes.
    #[inline]
    pub(crate) fn bytes(&mut self, length: u64) -> Result<&[u8], PickleProblem> {
        let range = self.skip(length)?;
        Ok(self.input.get(range).unwrap_or(&[]))
    }

    /// A line, without its line feed.
    pub(crate) fn line(&mut self) -> Result<&[u8], PickleProblem> {
        let start = self.at;
        match self.rest().iter().position(|&byte| byte == b'\n') {
            Some(length) => {
                self.at += length + 1;
                Ok(self.input.get(start..start + length).unwrap_or(&[]))
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
