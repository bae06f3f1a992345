//! Decompresses a file: plain, gzip, xz or Zstandard. The file's first bytes identify the format; its name does not matter.
//!
//! Several consecutive gzip members, xz streams or Zstandard frames count as one file, as they do for these formats' own
//! tools. [`decompressed_limit`] bounds the size of the result. If the data turns out not to be a snapshot, reading stops 32
//! MiB later. Memory grows with the decompressed data, never with the size that a header claims.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use crate::pickle::Skim;

/// Any file may decompress to this many bytes: 1 GiB.
const SMALL_LIMIT: u64 = 1 << 30;
/// A file may decompress to at most this many times its length.
///
/// Compression makes recordings 10 to 60 times smaller, and empty ones 1,000 times smaller.
const RATIO_LIMIT: u64 = 2000;
/// The largest file that is read, compressed or not, in bytes: 16 GiB.
pub const LARGEST: u64 = 16 << 30;
/// The number of pieces that may wait for the reader.
const WAITING: usize = 16;

/// Returns the number of bytes that a compressed file of `length` bytes may decompress to: 2,000 times as many, but at least
/// 1 GiB and at most [`LARGEST`].
pub fn decompressed_limit(length: u64) -> u64 {
    length.saturating_mul(RATIO_LIMIT).clamp(SMALL_LIMIT, LARGEST)
}

/// The compression of a file.
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

/// The reason why a file cannot be decompressed. Displayed as one line.
#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file is a known kind of file other than a snapshot.
    #[error("this is {kind}, not a memory snapshot; pass the file that torch.cuda.memory._dump_snapshot writes")]
    OtherKind {
        /// The kind of file, with its article.
        kind: &'static str,
    },
    /// The compressed data is damaged or cut short.
    #[error("the {compression} data is {}; copy or compress the file again", damage(cause))]
    Damaged {
        /// The compression that the first bytes indicate.
        compression: Compression,
        /// The decoder's error; part of the message.
        cause: io::Error,
    },
    /// A decompression bomb: it continues far beyond the point where any snapshot ends.
    #[error(
        "the decompressed file is not a snapshot: at byte {offset}, {what}, and more than 32 MiB follow; decompress it \
         yourself if you trust it"
    )]
    Bomb {
        /// The offset in the decompressed data.
        offset: u64,
        /// A description of the data at that offset.
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

/// Describes the damage. Decoders report a file that ends early as a buffer that they could not fill.
fn damage(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => "cut short".to_owned(),
        _ => format!("damaged or cut short ({cause})"),
    }
}

/// Returns how a file is compressed, judging by its first bytes.
pub fn detect(bytes: &[u8]) -> Compression {
    match bytes {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
        // A frame, or a skippable frame that precedes it.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}

/// Decompresses a file; borrows it if it is not compressed.
///
/// # Errors
/// Returns [`DecompressError`] if the file is empty, damaged or a different well-known kind of file, or if it decompresses to
/// more than [`decompressed_limit`].
pub fn decompress(bytes: &[u8]) -> Result<Cow<'_, [u8]>, DecompressError> {
    decompress_within(bytes, decompressed_limit(bytes.len() as u64))
}

/// Decompresses a compressed file while `read` reads it. `read` receives the pieces in order, through a function that appends
/// the next piece, or nothing at the end.
///
/// # Errors
/// Returns the errors of [`decompress`], regardless of what the reader returned.
pub(crate) fn decompress_beside<T>(
    bytes: &[u8],
    read: impl FnOnce(&mut dyn FnMut(&mut Vec<u8>)) -> T,
) -> Result<T, DecompressError> {
    thread::scope(|scope| {
        let (sender, pieces) = sync_channel::<Vec<u8>>(WAITING);
        let decompressing = thread::Builder::new().spawn_scoped(scope, move || {
            // A reader that has stopped needs no more pieces, but the rest may be damaged.
            let mut is_read = true;
            let mut send = |piece: &[u8]| is_read = is_read && sender.send(piece.to_vec()).is_ok();
            decompress_to(bytes, decompressed_limit(bytes.len() as u64), &mut send)
        });
        let Ok(decompressing) = decompressing else {
            // The system has no more threads.
            return decompress_between(bytes, read);
        };
        let found = read_pieces(pieces, read);
        match decompressing.join() {
            Ok(outcome) => outcome.map(|()| found),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Does the same on the calling thread: decompresses each piece when `read` asks for it.
fn decompress_between<T>(bytes: &[u8], read: impl FnOnce(&mut dyn FnMut(&mut Vec<u8>)) -> T) -> Result<T, DecompressError> {
    let mut unpacking = Unpacking::of(bytes, decompressed_limit(bytes.len() as u64));
    let mut outcome = Ok(true);
    let found = read(&mut |input| {
        if matches!(outcome, Ok(true)) {
            outcome = unpacking.next(input);
        }
    });
    // A reader that has stopped needs no more pieces, but the rest may be damaged.
    let mut unread = Vec::new();
    while matches!(outcome, Ok(true)) {
        unread.clear();
        outcome = unpacking.next(&mut unread);
    }
    unpacking.judge(outcome.map(drop))?;
    Ok(found)
}

fn read_pieces<T>(pieces: Receiver<Vec<u8>>, read: impl FnOnce(&mut dyn FnMut(&mut Vec<u8>)) -> T) -> T {
    read(&mut |input| input.extend_from_slice(&pieces.recv().unwrap_or_default()))
}

/// Returns the first `length` bytes of the decompressed data. `bytes` may be only the beginning of the file. There are fewer
/// bytes if the data is damaged.
#[must_use]
pub fn beginning(bytes: &[u8], length: u64) -> Vec<u8> {
    let (mut decompressed, mut unpacking) = (Vec::new(), Unpacking::of(bytes, length));
    // A decoder that fails has already returned all that it could.
    while let Ok(true) = unpacking.next(&mut decompressed) {}
    decompressed
}

fn decompress_within(bytes: &[u8], limit: u64) -> Result<Cow<'_, [u8]>, DecompressError> {
    if detect(bytes) == Compression::None {
        return plain(bytes);
    }
    let mut decompressed = Vec::new();
    decompress_to(bytes, limit, &mut |piece| decompressed.extend_from_slice(piece))?;
    Ok(Cow::Owned(decompressed))
}

/// Decompresses a compressed file piece by piece.
fn decompress_to(bytes: &[u8], limit: u64, take: &mut dyn FnMut(&[u8])) -> Result<(), DecompressError> {
    let (mut piece, mut unpacking) = (Vec::new(), Unpacking::of(bytes, limit));
    let outcome = loop {
        piece.clear();
        let outcome = unpacking.next(&mut piece);
        take(&piece);
        match outcome {
            Ok(true) => {}
            ended => break ended.map(drop),
        }
    };
    unpacking.judge(outcome)
}

fn plain(bytes: &[u8]) -> Result<Cow<'_, [u8]>, DecompressError> {
    refuse_other_kinds(bytes)?;
    Ok(Cow::Borrowed(bytes))
}

/// Recognises other kinds of files that users mistake for snapshots, so that they are not reported as damaged pickles.
pub(crate) fn refuse_other_kinds(bytes: &[u8]) -> Result<(), DecompressError> {
    let kind = match bytes.trim_ascii_start() {
        [] => return Err(DecompressError::Empty),
        // One of the numbers that begin a skippable frame begins with `[`.
        inner if detect(inner) != Compression::None => "a file that has been compressed twice",
        [b'P', b'K', 3 | 5, 4 | 6, ..] => {
            "a zip archive (torch.save?; unzip -p FILE > snapshot.pickle extracts a snapshot from it)"
        }
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => "bzip2 data",
        [b'7', b'z', 0xbc, 0xaf, ..] => "a 7z archive",
        [b'<', b'!' | b'h' | b'H', ..] => PAGE,
        [b'{' | b'[', ..] => JSON,
        [0x89, b'P', b'N', b'G', ..] => "a PNG image",
        [0xff, 0xd8, 0xff, ..] => "a JPEG image",
        [0x89, b'H', b'D', b'F', ..] => "an HDF5 file",
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => "a NumPy array",
        [0x7f, b'E', b'L', b'F', ..] => "a program or a library",
        [b'%', b'P', b'D', b'F', b'-', ..] => "a PDF document",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => UTF_16,
        [0xef, 0xbb, 0xbf, b'{' | b'[', ..] => "JSON that begins with a byte order mark (save it without the mark)",
        _ if bytes.starts_with(b"SQLite format 3\0") => "an SQLite database (from Nsight Systems?)",
        _ if bytes.get(257..262) == Some(b"ustar") => "a tar archive (tar -xf FILE extracts the snapshot from it)",
        _ => return Ok(()),
    };
    Err(DecompressError::OtherKind { kind })
}

/// The description of JSON and web pages that are not snapshots.
pub(crate) const JSON: &str = "JSON";
pub(crate) const PAGE: &str = "a web page";
/// The description of [text](is_text), such as a log with a run's out-of-memory message.
pub(crate) const UTF_16: &str = "text in UTF-16 (parkade diagnose FILE explains the messages in a log)";
pub(crate) const TEXT: &str = "text (parkade diagnose FILE explains the messages in a log)";
/// The number of bytes in a file that are examined to decide whether it is text.
pub(crate) const TEXT_HEAD: usize = 512;

/// Returns whether the bytes are text with words, in any encoding that contains ASCII, rather than a pickle. A protocol 0 pickle
/// is also text, but a snapshot's begins with the opcodes for a dict or a list and for its memo number or its first string;
/// later protocols begin with a byte that no text begins with, or contain control characters.
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    let head = bytes.get(..TEXT_HEAD).unwrap_or(bytes);
    let is_pickle =
        matches!(head, [0x80, ..] | [b'(', b'd' | b'l', b'p', b'0'..=b'9', ..] | [b'(', b'd' | b'l', b'S' | b'V', ..]);
    let is_control = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\n' | b'\r' | b'\t' | 0x1b);
    !is_pickle && head.contains(&b' ') && !head.iter().any(is_control)
}

/// The number of bytes that may follow the point at which the decompressed data can no longer be a snapshot: 32 MiB. If the
/// file ends before that, the reader reports what is wrong; if it continues, it is a decompression bomb.
const BEYOND_THE_END: u64 = 32 << 20;
/// The number of bytes to decompress before examining them.
const PIECE: u64 = 1 << 18;
/// The largest xz dictionary that is accepted, in KiB: 1 GiB.
///
/// `xz -9` needs 64 MiB; only files made with `--lzma2=dict=` need more.
const XZ_MEMORY_KIB: u32 = 1 << 20;

/// The largest Zstandard window that is accepted, in bytes. `zstd --long` uses this window, and the `zstd` tool
/// accepts no larger one by default.
const ZSTD_WINDOW: u64 = 1 << 27;

/// The number of bytes to keep from the beginning, to recognise other kinds of files.
const HEAD: usize = 1 << 16;

/// The facts known about the decompressed data so far.
#[derive(Default)]
struct Looked {
    /// The number of bytes decompressed.
    length: u64,
    /// The first bytes.
    head: Vec<u8>,
    /// The last bytes, from which `skim` continues.
    tail: Vec<u8>,
    skim: Skim,
    /// The offset at which the data can no longer be a snapshot, and the reason; set when too much data follows.
    bomb: Option<(u64, &'static str)>,
}

impl Looked {
    /// Examines the next piece.
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
        // A small file is read completely and then judged.
        self.bomb = ended.filter(|(end, _)| self.length - end > BEYOND_THE_END);
    }

    /// Returns whether decompression should stop here.
    fn is_enough(&self, limit: u64) -> bool {
        self.bomb.is_some() || self.length > limit
    }
}

/// Decompresses a file piece by piece, to its end, to just past a limit, or until it proves to be a bomb.
struct Unpacking<'a> {
    bytes: &'a [u8],
    decoder: Box<dyn Read + 'a>,
    limit: u64,
    looked: Looked,
}

impl<'a> Unpacking<'a> {
    fn of(bytes: &'a [u8], limit: u64) -> Unpacking<'a> {
        let decoder: Box<dyn Read + 'a> = match detect(bytes) {
            Compression::None => Box::new(bytes),
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(bytes)),
            Compression::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(bytes, true, XZ_MEMORY_KIB)),
            Compression::Zstd => Box::new(ZstdFrames { rest: Rest::of(bytes), frame: None }),
        };
        Unpacking { bytes, decoder, limit, looked: Looked::default() }
    }

    /// Appends the next piece, and returns whether another may follow. If decompression fails, the bytes before the damage have been
    /// appended.
    fn next(&mut self, to: &mut Vec<u8>) -> io::Result<bool> {
        if self.looked.is_enough(self.limit) {
            return Ok(false);
        }
        let left = (self.limit + 1).saturating_sub(self.looked.length).min(PIECE);
        let before = to.len();
        let outcome = self.decoder.by_ref().take(left).read_to_end(to);
        self.looked.piece(&to[before..]);
        Ok(outcome? > 0)
    }

    /// Returns what is wrong with the file, now that decompression has ended.
    fn judge(&self, outcome: io::Result<()>) -> Result<(), DecompressError> {
        if let Some((offset, what)) = self.looked.bomb {
            return Err(DecompressError::Bomb { offset, what });
        }
        outcome.map_err(|cause| DecompressError::Damaged { compression: detect(self.bytes), cause })?;
        if self.looked.length > self.limit {
            return Err(DecompressError::TooLarge { limit: self.limit, length: self.bytes.len() as u64 });
        }
        refuse_other_kinds(&self.looked.head).map_err(|error| match error {
            DecompressError::OtherKind { kind: JSON } => {
                DecompressError::OtherKind { kind: "compressed JSON (if it is from _snapshot(), decompress it first)" }
            }
            DecompressError::OtherKind { kind: PAGE } => {
                DecompressError::OtherKind { kind: "a compressed web page (decompress it first)" }
            }
            error => error,
        })
    }
}

/// The bytes that have not been read yet. A frame's decoder and the code that looks for the next frame share them.
#[derive(Clone)]
struct Rest<'a>(Rc<Cell<&'a [u8]>>);

impl<'a> Rest<'a> {
    fn of(bytes: &'a [u8]) -> Rest<'a> {
        Rest(Rc::new(Cell::new(bytes)))
    }
}

impl Read for Rest<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut rest = self.0.get();
        let read = rest.read(to);
        self.0.set(rest);
        read
    }
}

/// Decompresses consecutive Zstandard frames.
struct ZstdFrames<'a> {
    rest: Rest<'a>,
    frame: Option<ruzstd::decoding::StreamingDecoder<Rest<'a>, ruzstd::decoding::FrameDecoder>>,
}

impl ZstdFrames<'_> {
    /// Begins the next frame that has data. The decoder reports a skippable frame as an error that contains the frame's length.
    fn begin_frame(&mut self) -> io::Result<()> {
        use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
        while self.frame.is_none() && !self.rest.0.get().is_empty() {
            match ruzstd::decoding::StreamingDecoder::new_with_max_window_size(self.rest.clone(), ZSTD_WINDOW) {
                Ok(decoder) => self.frame = Some(decoder),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let after = self.rest.0.get().get(length as usize..);
                    self.rest.0.set(after.ok_or(io::ErrorKind::UnexpectedEof)?);
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
            }
        }
        Ok(())
    }
}

impl Read for ZstdFrames<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            self.begin_frame()?;
            let Some(frame) = &mut self.frame else { return Ok(0) };
            let read = frame.read(to)?;
            if read > 0 || to.is_empty() {
                return Ok(read);
            }
            let (stated, found) = (frame.decoder.get_checksum_from_data(), frame.decoder.get_calculated_checksum());
            if stated.is_some() && stated != found {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "wrong checksum"));
            }
            self.frame = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 100,000 bytes `N`, compressed by each format's own tool.
    fn compressed() -> [Vec<u8>; 3] {
        [
            include_bytes!("../tests/data/n.gz.bin").to_vec(),
            include_bytes!("../tests/data/n.xz.bin").to_vec(),
            include_bytes!("../tests/data/n.zst.bin").to_vec(),
        ]
    }

    /// Returns the numbers that begin a skippable frame, from the Zstandard specification.
    fn skippable() -> impl Iterator<Item = [u8; 4]> {
        (0x184d_2a50_u32..=0x184d_2a5f).map(u32::to_le_bytes)
    }

    #[test]
    fn a_signature_is_recognised_and_nothing_beside_it() {
        let zstd =
            [0xfd2f_b528_u32.to_le_bytes()].into_iter().chain(skippable()).map(|magic| (magic.to_vec(), Compression::Zstd));
        let others = [(vec![0x1f, 0x8b], Compression::Gzip), (b"\xfd7zXZ\0".to_vec(), Compression::Xz)];
        let signatures: Vec<(Vec<u8>, Compression)> = zstd.chain(others).collect();
        let expected = |bytes: &[u8]| {
            let found = signatures.iter().find(|(signature, _)| bytes.starts_with(signature));
            found.map_or(Compression::None, |&(_, compression)| compression)
        };
        for (signature, compression) in &signatures {
            assert_eq!(detect(&[signature, &b"data"[..]].concat()), *compression, "{signature:x?}");
            for length in 0..=signature.len() {
                assert_eq!(detect(&signature[..length]), expected(&signature[..length]), "{length} bytes of {signature:x?}");
            }
            for (place, byte) in (0..signature.len()).flat_map(|place| (0..=u8::MAX).map(move |byte| (place, byte))) {
                let mut changed = signature.clone();
                changed[place] = byte;
                assert_eq!(detect(&changed), expected(&changed), "{changed:x?}");
            }
        }
    }

    #[test]
    fn skippable_frames_are_skipped_wherever_they_are() {
        let [.., frame] = compressed();
        for (number, magic) in skippable().enumerate() {
            let skipped = [&magic[..], &(number as u32).to_le_bytes(), &[0x28; 16][..number]].concat();
            for parts in [[&skipped[..], &frame], [&frame, &skipped]] {
                assert_eq!(decompress(&parts.concat()).expect("a file").as_ref(), vec![b'N'; 100_000], "{magic:x?}");
            }
            assert_eq!(decompress(&[&frame[..], &skipped, &frame].concat()).expect("a file").len(), 200_000, "{magic:x?}");
            let error = decompress(&skipped[..7]).expect_err("its length is cut short");
            assert!(matches!(error, DecompressError::Damaged { compression: Compression::Zstd, .. }), "{error}");
            let twice = refuse_other_kinds(&skipped).expect_err("the first data of a file");
            assert!(twice.to_string().contains("compressed twice"), "{twice}");
        }
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
    #[cfg_attr(target_family = "wasm", ignore = "there are no threads")]
    fn a_bomb_is_refused_long_before_the_limit() {
        // The cases run in parallel, because each takes seconds.
        thread::scope(|scope| {
            for bytes in compressed() {
                scope.spawn(move || is_refused_as_a_bomb(&bytes));
            }
        });
    }

    fn is_refused_as_a_bomb(bytes: &[u8]) {
        // This puts 60 million values on the stack.
        let many = bytes.repeat(600);
        let mut count = 0;
        let mut looked = |piece: &[u8]| count += piece.len() as u64;
        decompress_to(&many, SMALL_LIMIT, &mut looked).expect_err("a bomb");
        assert!(count < BEYOND_THE_END + (8 << 20), "{count} bytes were decompressed");
        let error = decompress(&many).expect_err("a bomb");
        assert!(matches!(error, DecompressError::Bomb { offset: 4_194_304, .. }), "{error}");
        // The same data at a harmless size is read and judged by its contents.
        assert!(decompress(&bytes.repeat(300)).is_ok());
    }

    #[test]
    fn logs_are_text_and_pickles_are_not() {
        for log in [
            &b"(base) me@host$ python train.py"[..],
            b"(RayTrainWorker pid=7) step 1",
            b"[rank0]: Traceback (most recent call last):",
            b"Sch\xf6ne Gr\xfc\xdfe: CUDA out of memory.",
            b"\xc4\xda\xb4\xe6 out of memory",
            "Speicher ist voll: größer".as_bytes(),
            b"\x1b[31merror\x1b[0m: out of memory",
        ] {
            assert!(is_text(log), "{}", log.escape_ascii());
        }
        for other in [
            &b"(dp0\nS'device traces'\np1\n"[..],
            b"(lp1\n(dp2\nS'a b'\n",
            b"(dVdevice traces\n",
            b"\x80\x04\x95 a b",
            b"}q\x00 a b",
            b"\x80 a b",
            b"word",
            b"",
        ] {
            assert!(!is_text(other), "{}", other.escape_ascii());
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

    #[test]
    fn pieces_read_beside_are_the_whole_and_errors_are_the_same() {
        let files = compressed();
        let cut = files.iter().map(|bytes| bytes[..bytes.len() - 1].to_vec());
        let damaged = files.iter().map(|bytes| [&bytes[..], b"garbage!"].concat());
        let bomb = [files[0].repeat(600)];
        for bytes in files.iter().cloned().chain(cut).chain(damaged).chain(bomb) {
            for is_on_a_thread in [true, false] {
                let mut read = Vec::new();
                let beside = in_pieces(&bytes, is_on_a_thread, &mut |next_piece| {
                    let mut length = usize::MAX;
                    while length != read.len() {
                        length = read.len();
                        next_piece(&mut read);
                    }
                });
                let stopped = in_pieces(&bytes, is_on_a_thread, &mut |_| ());
                match decompress(&bytes) {
                    Ok(whole) => assert!(beside.is_ok() && stopped.is_ok() && read == whole.as_ref()),
                    Err(error) => {
                        assert_eq!(beside.expect_err("an error").to_string(), error.to_string());
                        assert_eq!(
                            stopped.expect_err("an error").to_string(),
                            error.to_string(),
                            "a reader that stops hides nothing"
                        );
                    }
                }
            }
        }
    }

    type Read<'r> = &'r mut dyn FnMut(&mut dyn FnMut(&mut Vec<u8>));

    fn in_pieces(bytes: &[u8], is_on_a_thread: bool, read: Read<'_>) -> Result<(), DecompressError> {
        if is_on_a_thread { decompress_beside(bytes, read) } else { decompress_between(bytes, read) }
    }

    /// Without threads, memory for the decompressed file would otherwise be needed in addition to the recording.
    #[test]
    fn without_threads_a_piece_is_decompressed_on_demand() {
        for bytes in compressed() {
            let many = bytes.repeat(20);
            let mut first = Vec::new();
            in_pieces(&many, false, &mut |next_piece| next_piece(&mut first)).expect("a file");
            assert!(!first.is_empty() && first.len() as u64 <= PIECE, "{} bytes", first.len());
        }
    }
}
