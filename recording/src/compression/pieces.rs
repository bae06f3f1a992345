//! The decoders, and what is seen of the decompressed data while it is passed on piece by piece.

use std::io::{self, Read};

use super::{Compression, detect};
use crate::pickle::Skim;

/// How many bytes may follow the place where what was decompressed cannot be a snapshot any more: 32 MiB. Reading then says
/// what is wrong there; a file that goes on for longer is a decompression bomb.
pub(super) const BEYOND_THE_END: u64 = 32 << 20;
/// How many bytes are decompressed before they are looked at.
const PIECE: u64 = 1 << 18;
/// The largest xz dictionary that is accepted, in KiB: 1 GiB.
///
/// `xz -9` needs 64 MiB; only files made with `--lzma2=dict=` need more.
const XZ_MEMORY_KIB: u32 = 1 << 20;

/// The largest Zstandard window that is accepted, in bytes: that of `zstd --long`, where the `zstd` tool stops too.
const ZSTD_WINDOW: u64 = 1 << 27;

/// How many of the first bytes are kept to tell other kinds of files.
const HEAD: usize = 1 << 16;

/// What was seen of the decompressed data.
pub(super) struct Looked<'a> {
    take: &'a mut dyn FnMut(&[u8]),
    /// How many bytes were decompressed.
    pub(super) length: u64,
    /// The first ones.
    pub(super) head: Vec<u8>,
    /// The last ones, from where `skim` goes on.
    tail: Vec<u8>,
    skim: Skim,
    /// Where it cannot be a snapshot any more, and why, once too much follows.
    pub(super) bomb: Option<(u64, &'static str)>,
}

impl<'a> Looked<'a> {
    /// Nothing yet. `take` gets the pieces.
    pub(super) fn new(take: &'a mut dyn FnMut(&[u8])) -> Looked<'a> {
        Looked { take, length: 0, head: Vec::new(), tail: Vec::new(), skim: Skim::default(), bomb: None }
    }

    /// Looks at the next piece and passes it on.
    fn piece(&mut self, piece: &[u8]) {
        if piece.is_empty() {
            return;
        }
        self.length += piece.len() as u64;
        self.head.extend_from_slice(&piece[..piece.len().min(HEAD - self.head.len())]);
        self.tail.extend_from_slice(piece);
        let offset = self.length - self.tail.len() as u64;
        let ended = self.skim.advance(&self.tail, offset);
        let done = self.skim.done().saturating_sub(offset).min(self.tail.len() as u64);
        self.tail.drain(..if ended.is_some() { self.tail.len() } else { done as usize });
        // A small file is read and judged as a whole.
        self.bomb = ended.filter(|(end, _)| self.length - end > BEYOND_THE_END);
        (self.take)(piece);
    }

    /// Whether decompressing ends here.
    fn is_enough(&self, limit: u64) -> bool {
        self.bomb.is_some() || self.length > limit
    }
}

/// Decompresses a file to its end, or past the limit, or until a bomb shows.
pub(super) fn drain_any(bytes: &[u8], limit: u64, looked: &mut Looked<'_>) -> io::Result<()> {
    match detect(bytes) {
        Compression::None => drain(bytes, limit, looked),
        Compression::Gzip => drain(flate2::bufread::MultiGzDecoder::new(bytes), limit, looked),
        Compression::Xz => drain(lzma_rust2::XzReader::new_mem_limit(bytes, true, XZ_MEMORY_KIB), limit, looked),
        Compression::Zstd => drain_zstd(bytes, limit, looked),
    }
}

/// Reads a decoder to its end, or one byte past the limit, or until a bomb shows.
fn drain(mut decoder: impl Read, limit: u64, looked: &mut Looked<'_>) -> io::Result<()> {
    let mut piece = Vec::new();
    while !looked.is_enough(limit) {
        let left = (limit + 1).saturating_sub(looked.length).min(PIECE);
        piece.clear();
        let outcome = decoder.by_ref().take(left).read_to_end(&mut piece);
        looked.piece(&piece);
        if outcome? == 0 {
            break;
        }
    }
    Ok(())
}

/// Decompresses frame by frame. The decoder reports a skippable frame as an error that has the frame's length.
fn drain_zstd(bytes: &[u8], limit: u64, looked: &mut Looked<'_>) -> io::Result<()> {
    use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
    let mut rest = bytes;
    while !rest.is_empty() && !looked.is_enough(limit) {
        match ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut rest, ZSTD_WINDOW) {
            Ok(mut decoder) => {
                drain(&mut decoder, limit, looked)?;
                let (stated, found) = (decoder.decoder.get_checksum_from_data(), decoder.decoder.get_calculated_checksum());
                if stated.is_some() && stated != found && !looked.is_enough(limit) {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "wrong checksum"));
                }
            }
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                rest = rest.get(length as usize..).ok_or(io::ErrorKind::UnexpectedEof)?;
            }
            Err(error) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
            }
        }
    }
    Ok(())
}
