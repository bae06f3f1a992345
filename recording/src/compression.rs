//! Decompressing a file: plain, gzip, xz or Zstandard. Its first bytes say which; its name does not matter.
//!
//! Several gzip members, xz streams or Zstandard frames in a row are one file, as they are for the tools of
//! these formats. [`decompressed_limit`] bounds the size of the result. Memory grows with the data that comes
//! out, never with the size that a header announces.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read};

/// Every file may decompress to this many bytes: 1 GiB.
const SMALL_LIMIT: u64 = 1 << 30;
/// A file may decompress to this many times its length.
///
/// Compressing makes recordings 10 to 60 times smaller, and empty ones 1,000 times.
const RATIO_LIMIT: u64 = 2000;
/// The largest file that is read, compressed or not, in bytes: 16 GiB.
pub const LARGEST: u64 = 16 << 30;
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
    let mut decompressed = Vec::new();
    // A decoder that fails has given what it could.
    let _ = match detect(bytes) {
        Compression::None => drain(bytes, length, &mut decompressed),
        Compression::Gzip => drain(flate2::bufread::MultiGzDecoder::new(bytes), length, &mut decompressed),
        Compression::Xz => drain(lzma_rust2::XzReader::new_mem_limit(bytes, true, XZ_MEMORY_KIB), length, &mut decompressed),
        Compression::Zstd => drain_zstd(bytes, length, &mut decompressed),
    };
    decompressed
}

fn decompress_within(bytes: &[u8], limit: u64) -> Result<Cow<'_, [u8]>, DecompressError> {
    let compression = detect(bytes);
    let mut decompressed = Vec::new();
    let outcome = match compression {
        Compression::None => return plain(bytes),
        Compression::Gzip => drain(flate2::bufread::MultiGzDecoder::new(bytes), limit, &mut decompressed),
        Compression::Xz => drain(lzma_rust2::XzReader::new_mem_limit(bytes, true, XZ_MEMORY_KIB), limit, &mut decompressed),
        Compression::Zstd => drain_zstd(bytes, limit, &mut decompressed),
    };
    match outcome {
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

/// Reads a decoder to its end, or one byte past the limit.
fn drain(decoder: impl Read, limit: u64, decompressed: &mut Vec<u8>) -> io::Result<()> {
    let left = (limit + 1).saturating_sub(decompressed.len() as u64);
    decoder.take(left).read_to_end(decompressed).map(|_| ())
}

/// Decompresses frame by frame. The decoder reports a skippable frame as an error that has the frame's length.
fn drain_zstd(bytes: &[u8], limit: u64, decompressed: &mut Vec<u8>) -> io::Result<()> {
    use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
    let mut rest = bytes;
    while !rest.is_empty() && decompressed.len() as u64 <= limit {
        match ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut rest, ZSTD_WINDOW) {
            Ok(mut decoder) => {
                drain(&mut decoder, limit, decompressed)?;
                let (stated, found) = (decoder.decoder.get_checksum_from_data(), decoder.decoder.get_calculated_checksum());
                if stated.is_some() && stated != found && decompressed.len() as u64 <= limit {
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
