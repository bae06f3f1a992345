//! Converts UTF-16 to UTF-8 as bytes arrive. On Windows, logs may be UTF-16 (`> log.txt` in PowerShell).

use std::borrow::Cow;

/// The encoding that the first bytes of a log indicate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Encoding {
    /// UTF-8, or bytes that are not text.
    Utf8,
    /// UTF-16, the low byte of a unit first.
    Little,
    /// UTF-16, the high byte of a unit first.
    Big,
}

/// Decodes a log piece by piece.
#[derive(Default)]
pub(super) struct Decoder {
    encoding: Option<Encoding>,
    /// The bytes that have arrived but have not been decoded yet: the first bytes of the log, or part of a character.
    kept: Vec<u8>,
}

impl Encoding {
    /// UTF-16 begins with a byte order mark or has letters in which every other byte is zero.
    fn of(first: &[u8]) -> Encoding {
        match first {
            [0xff, 0xfe, ..] => Encoding::Little,
            [0xfe, 0xff, ..] => Encoding::Big,
            [first, 0, second, 0, ..] if *first > 0 && *second > 0 => Encoding::Little,
            [0, first, 0, second, ..] if *first > 0 && *second > 0 => Encoding::Big,
            _ => Encoding::Utf8,
        }
    }
}

impl Decoder {
    /// The next bytes, in UTF-8 if the log is UTF-16.
    pub(super) fn read<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        match self.encoding {
            Some(Encoding::Utf8) => return Cow::Borrowed(bytes),
            Some(_) => self.kept.extend_from_slice(bytes),
            None => {
                self.kept.extend_from_slice(bytes);
                if self.kept.len() < 4 {
                    return Cow::Borrowed(&[]);
                }
                self.encoding = Some(Encoding::of(&self.kept));
            }
        }
        self.decode(false)
    }

    /// The remaining bytes at the end of the log.
    pub(super) fn end(&mut self) -> Cow<'static, [u8]> {
        self.encoding.get_or_insert_with(|| Encoding::of(&self.kept));
        self.decode(true)
    }

    fn decode(&mut self, is_end: bool) -> Cow<'static, [u8]> {
        if self.encoding == Some(Encoding::Utf8) {
            return Cow::Owned(std::mem::take(&mut self.kept));
        }
        let unit = |pair: &[u8]| match self.encoding {
            Some(Encoding::Big) => u16::from_be_bytes([pair[0], pair[1]]),
            _ => u16::from_le_bytes([pair[0], pair[1]]),
        };
        let mut units: Vec<u16> = self.kept.chunks_exact(2).map(unit).collect();
        // The second half of the character may still arrive.
        let is_open = !is_end && units.last().is_some_and(|unit| (0xd800..0xdc00).contains(unit));
        units.truncate(units.len() - usize::from(is_open));
        self.kept.drain(..2 * units.len());
        let characters = char::decode_utf16(units).map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER));
        let text: String = characters.filter(|&character| character != '\u{feff}').collect();
        Cow::Owned(text.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf_16_is_decoded_in_pieces_of_any_length() {
        let text = "epoch 1\r\nCUDA out of memory \u{1f697} é";
        let plain: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let marked: Vec<u8> = [0xff, 0xfe].into_iter().chain(plain.clone()).collect();
        let big: Vec<u8> = [0xfe, 0xff].into_iter().chain(text.encode_utf16().flat_map(u16::to_be_bytes)).collect();
        for bytes in [text.as_bytes().to_vec(), plain, marked, big] {
            for length in 1..9 {
                let mut decoder = Decoder::default();
                let mut read: Vec<u8> = bytes.chunks(length).flat_map(|piece| decoder.read(piece).into_owned()).collect();
                read.extend_from_slice(&decoder.end());
                assert_eq!(String::from_utf8_lossy(&read), text, "{length}");
            }
        }
    }
}
