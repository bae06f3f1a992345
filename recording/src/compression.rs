//! Decompressing a file: plain, gzip, xz or Zstandard. Its first bytes say which; its name does not matter.
//!
//! Several gzip members, xz streams or Zstandard frames in a row are one file, as they are for the tools of
//! these formats. [`decompressed_limit`] bounds the size of the result, and what cannot be a snapshot is refused 32 MiB
//! after that shows. Memory grows with the data that comes out, never with the size that a header announces.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read};

use crate::pickle::Skim;

/// Every file may decompress to this many bytes: 1 GiB.
const SMALL_LIMIT: u64 = 1 << 30;
/// A file may decompress to this many times its length.
///
/// Compressing makes recordings 10 to 60 times smaller, and empty ones 1,000 times.
const RATIO_LIMIT: u64 = 2000;
/// The largest file that is read, compressed or not, in bytes: 16 GiB.
pub const LARGEST: u64 = 16 << 30;
/// How many bytes may follow the place where what was decompressed cannot be a snapshot any more: 32 MiB. Reading then says
/// what is wrong there; a file that goes on for longer is a decompression bomb.
const BEYOND_THE_END: u64 = 32 << 20;
/// How many bytes are decompressed before they are looked at.
const PIECE: u64 = 1 << 20;

/// The largest xz dictionary that is accepted, in KiB: 1 GiB.
///
/// `xz -9` needs 64 MiB; only files made with `--lzma2=dict=` need more.
const XZ_MEMORY_KIB: u32 = 1 << 20;

/// The largest Zstandard window that is accepted, in bytes: that of `zstd --long`, where the `zstd` tool stops too.
const ZSTD_WINDOW: u64 = 1 << 27;

/// How many bytes a compressed file of `length` bytes may decompress to: 2,000 times as many, but at
/// least 1 GiB and at most [`LARGEST`].
pub fn decompressed_limit(length: u64) -> u64 {
    length.saturating_mul(RATIO_LIMIT).clamp(SMALL_LIMIT, LARGEST)
}

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    None,
    /// gzip, one or more members.
    Gzip,
    /// xz, one or more streams.
    Xz,
    /// Zstandard, one or more frames.
    Zstd,
}

/// Why a file cannot be decompressed. Displays as one line.
#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file is of a known kind, and not a snapshot.
    #[error("this is {kind}, not a memory snapshot; pass the file that torch.cuda.memory._dump_snapshot writes")]
    OtherKind {
        /// The kind of file, with its article.
        kind: &'static str,
    },
    /// The compressed data is damaged or cut short.
    #[error("the {compression} data is {}; copy or compress the file again", damage(cause))]
    Damaged {
        /// The compression that the first bytes announce.
        compression: Compression,
        /// What the decoder says; part of the message.
        cause: io::Error,
    },
    /// A decompression bomb: it goes on for long where no snapshot does.
    #[error(
        "the file decompresses to what is no snapshot: at byte {offset} of it, {what}, and more than 32 MiB follow; decompress it \
         yourself if you trust it"
    )]
    Bomb {
        /// The place in the decompressed data.
        offset: u64,
        /// What is there.
        what: &'static str,
    },
    /// A decompression bomb, or an unreasonably large recording.
    #[error(
        "the file decompresses to more than {limit} bytes, the limit for a file of {length} bytes; decompress it yourself if \
         you trust it"
    )]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
        /// The file's length, in bytes.
        length: u64,
    },
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::None => "plain",
            Compression::Gzip => "gzip",
            Compression::Xz => "xz",
            Compression::Zstd => "Zstandard",
        })
    }
}

/// Decoders report a file that ends early as a buffer that they could not fill.
fn damage(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => "cut short".to_owned(),
        _ => format!("damaged or cut short ({cause})"),
    }
}

/// How a file is compressed, by its first bytes.
pub fn detect(bytes: &[u8]) -> Compression {
    match bytes {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
        // A frame, or a skippable frame that precedes it.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}

/// Decompresses a file; borrows one that is not compressed.
///
/// # Errors
/// [`DecompressError`] if the file is empty, of another well-known kind or damaged, or if it decompresses to more than
/// [`decompressed_limit`].
pub fn decompress(bytes: &[u8]) -> Result<Cow<'_, [u8]>, DecompressError> {
    decompress_within(bytes, decompressed_limit(bytes.len() as u64))
}

/// The first `length` bytes of the decompressed data, of a file of which perhaps only the beginning is given; fewer where it is damaged.
pub(crate) fn beginning(bytes: &[u8], length: u64) -> Vec<u8> {
    let mut decompressed = Looked::default();
    // A decoder that fails has given what it could.
    let _ = match detect(bytes) {
        Compression::None => drain(bytes, length, &mut decompressed),
        Compression::Gzip => drain(flate2::bufread::MultiGzDecoder::new(bytes), length, &mut decompressed),
        Compression::Xz => drain(lzma_rust2::XzReader::new_mem_limit(bytes, true, XZ_MEMORY_KIB), length, &mut decompressed),
        Compression::Zstd => drain_zstd(bytes, length, &mut decompressed),
    };
    decompressed.bytes
}

fn decompress_within(bytes: &[u8], limit: u64) -> Result<Cow<'_, [u8]>, DecompressError> {
    let compression = detect(bytes);
    let mut decompressed = Looked::default();
    let outcome = match compression {
        Compression::None => return plain(bytes),
        Compression::Gzip => drain(flate2::bufread::MultiGzDecoder::new(bytes), limit, &mut decompressed),
        Compression::Xz => drain(lzma_rust2::XzReader::new_mem_limit(bytes, true, XZ_MEMORY_KIB), limit, &mut decompressed),
        Compression::Zstd => drain_zstd(bytes, limit, &mut decompressed),
    };
    let Looked { bytes: decompressed, bomb, .. } = decompressed;
    match outcome {
        _ if bomb.is_some() => Err(bomb.map_or(DecompressError::Empty, |(offset, what)| DecompressError::Bomb { offset, what })),
        Err(cause) => Err(DecompressError::Damaged { compression, cause }),
        Ok(()) if decompressed.len() as u64 > limit => Err(DecompressError::TooLarge { limit, length: bytes.len() as u64 }),
        Ok(()) => {
            refuse_other_kinds(&decompressed)?;
            Ok(Cow::Owned(decompressed))
        }
    }
}

fn plain(bytes: &[u8]) -> Result<Cow<'_, [u8]>, DecompressError> {
    refuse_other_kinds(bytes)?;
    Ok(Cow::Borrowed(bytes))
}

/// Names the kinds of files that people take for snapshots, instead of calling them damaged pickles.
fn refuse_other_kinds(bytes: &[u8]) -> Result<(), DecompressError> {
    let kind = match bytes.trim_ascii_start() {
        [] => return Err(DecompressError::Empty),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => "a zip archive (torch.save?)",
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => "bzip2 data",
        [b'7', b'z', 0xbc, 0xaf, ..] => "a 7z archive",
        [b'<', b'!' | b'h' | b'H', ..] => "a web page",
        [b'{' | b'[', ..] => "JSON",
        [0x89, b'P', b'N', b'G', ..] => "a PNG image",
        [0x1f, 0x8b, ..] | [0xfd, b'7', b'z', b'X', ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => "a file that was compressed twice",
        _ => return Ok(()),
    };
    Err(DecompressError::OtherKind { kind })
}

/// What is said of [text](is_text), such as the log that has a run's out-of-memory message.
pub(crate) const TEXT: &str = "text (messages in a log: parkade diagnose --message - < FILE)";
/// So much of a file is looked at to tell whether it is text.
const TEXT_HEAD: usize = 512;

/// Whether bytes that are no pickle are text with words. A pickle of protocol 0 is text too, but a snapshot's begins with a parenthesis.
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    let head = bytes.get(..TEXT_HEAD).unwrap_or(bytes);
    // A character may be cut at the end.
    let is_utf8 = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    let is_control = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\n' | b'\r' | b'\t' | 0x1b);
    is_utf8 && !head.starts_with(b"(") && head.contains(&b' ') && !head.iter().any(is_control)
}

/// What was decompressed so far, and what was seen of it.
#[derive(Default)]
struct Looked {
    bytes: Vec<u8>,
    skim: Skim,
    /// Where it cannot be a snapshot any more, and why, once too much follows.
    bomb: Option<(u64, &'static str)>,
}

impl Looked {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether decompressing ends here.
    fn is_enough(&mut self, limit: u64) -> bool {
        // A small file is read and judged as a whole.
        if self.len() > BEYOND_THE_END && self.bomb.is_none() {
            self.bomb = self.skim.advance(&self.bytes).filter(|(end, _)| self.bytes.len() as u64 - end > BEYOND_THE_END);
        }
        self.bomb.is_some() || self.len() > limit
    }
}

/// Reads a decoder to its end, or one byte past the limit, or until a bomb shows.
fn drain(mut decoder: impl Read, limit: u64, decompressed: &mut Looked) -> io::Result<()> {
    while !decompressed.is_enough(limit) {
        let left = (limit + 1).saturating_sub(decompressed.len()).min(PIECE);
        if decoder.by_ref().take(left).read_to_end(&mut decompressed.bytes)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Decompresses frame by frame. The decoder reports a skippable frame as an error that has the frame's length.
fn drain_zstd(bytes: &[u8], limit: u64, decompressed: &mut Looked) -> io::Result<()> {
    use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
    let mut rest = bytes;
    while !rest.is_empty() && decompressed.bomb.is_none() && decompressed.len() <= limit {
        match ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut rest, ZSTD_WINDOW) {
            Ok(mut decoder) => {
                drain(&mut decoder, limit, decompressed)?;
                let (stated, found) = (decoder.decoder.get_checksum_from_data(), decoder.decoder.get_calculated_checksum());
                if stated.is_some() && stated != found && decompressed.bomb.is_none() && decompressed.len() <= limit {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 100,000 bytes `N`, compressed by each format's own tool.
    fn compressed() -> [Vec<u8>; 3] {
        [
            include_bytes!("../tests/data/n.gz.bin").to_vec(),
            include_bytes!("../tests/data/n.xz.bin").to_vec(),
            include_bytes!("../tests/data/n.zst.bin").to_vec(),
        ]
    }

    #[test]
    fn the_limit_is_the_largest_size_that_passes() {
        for bytes in compressed() {
            assert_eq!(decompress_within(&bytes, 100_000).expect("within the limit").as_ref(), vec![b'N'; 100_000]);
            let twice = [&bytes[..], &bytes[..]].concat();
            assert_eq!(decompress_within(&twice, 200_000).expect("two members").len(), 200_000);
            for limit in [0, 1, 99_999] {
                let error = decompress_within(&bytes, limit).expect_err("beyond the limit");
                assert!(matches!(error, DecompressError::TooLarge { .. }), "{error}");
            }
            assert!(matches!(decompress_within(&twice, 150_000), Err(DecompressError::TooLarge { .. })));
        }
    }

    #[test]
    fn a_bomb_is_refused_long_before_the_limit() {
        for bytes in compressed() {
            // 60 million values on the stack.
            let mut found = Looked::default();
            let many = bytes.repeat(600);
            match detect(&bytes) {
                Compression::Gzip => drain(flate2::bufread::MultiGzDecoder::new(&many[..]), SMALL_LIMIT, &mut found),
                Compression::Xz => {
                    drain(lzma_rust2::XzReader::new_mem_limit(&many[..], true, XZ_MEMORY_KIB), SMALL_LIMIT, &mut found)
                }
                _ => drain_zstd(&many, SMALL_LIMIT, &mut found),
            }
            .expect("whole data");
            assert!(found.len() < BEYOND_THE_END + (8 << 20), "{} bytes were decompressed", found.len());
            let error = decompress(&many).expect_err("a bomb");
            assert!(matches!(error, DecompressError::Bomb { offset: 4_194_304, .. }), "{error}");
            // The same in a size that does no harm is read, and judged by what it is.
            assert!(decompress(&bytes.repeat(300)).is_ok());
        }
    }

    #[test]
    fn the_limit_grows_with_the_length() {
        assert_eq!(decompressed_limit(0), SMALL_LIMIT);
        assert_eq!(decompressed_limit(1 << 20), 2000 << 20);
        assert_eq!(decompressed_limit(u64::MAX), LARGEST);
    }

    #[test]
    fn garbage_after_a_member_is_damage() {
        for bytes in compressed() {
            let error = decompress(&[&bytes[..], b"garbage!"].concat()).expect_err("garbage");
            assert!(matches!(error, DecompressError::Damaged { .. }), "{error}");
        }
    }
}
