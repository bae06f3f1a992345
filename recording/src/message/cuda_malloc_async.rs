//! The out-of-memory message of PyTorch's other GPU allocator, `backend:cudaMallocAsync`, which leaves caching to the driver.
//!
//! PyTorch writes it in six lines, with the colons below each other:
//!
//! ```text
//! Allocation on device 0 would exceed allowed memory. (out of memory)
//! Currently allocated     : 54.14 GiB
//! Requested               : 686.41 MiB
//! Device limit            : 79.35 GiB
//! Free (according to CUDA): 27.19 MiB
//! PyTorch limit (set by user-supplied memory fraction)
//!                         : 17179869184.00 GiB
//! ```
//!
//! Without a fraction the limit is 2^64 - 1 bytes, as in this one. Programs often show the first line alone.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::prefix::compiled;
use super::size::Size;

/// The message; what a cut one lacks is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CudaMallocAsyncMessage {
    /// The device.
    pub device: u32,
    /// What PyTorch had allocated, as it was requested.
    pub allocated: Option<Size>,
    /// What was requested.
    pub requested: Option<Size>,
    /// The device's memory.
    pub total: Option<Size>,
    /// What the driver said was free.
    pub free: Option<Size>,
    /// The limit; `Some(None)` if no fraction was set.
    pub limit: Option<Option<Size>>,
}

/// The first line.
static HEAD: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"Allocation on device ([0-9]{1,9}) would exceed allowed memory\. \(out of memory\)"));
/// The labels of the figures, and the figures.
static FIGURE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(Currently allocated|Requested|Device limit|Free \(according to CUDA\)|PyTorch limit \(set by user-supplied memory fraction\)) ?: ?([0-9]{1,20})(?:\.([0-9]{2}))? (bytes|KiB|MiB|GiB)",
    )
});
/// How far behind the first line the figures may be, with prefixes of lines between them.
const NEAR: usize = 1000;

impl CudaMallocAsyncMessage {
    /// The first such message that begins in a part of a text without line breaks, of which more is known behind it.
    pub(super) fn find(text: &str, part: Range<usize>) -> Option<CudaMallocAsyncMessage> {
        let near = &text[..text.floor_char_boundary(part.end + NEAR)];
        let head = HEAD.captures_at(near, part.start)?;
        let (device, begin) = (head[1].parse().ok()?, head.get(0).filter(|head| head.start() < part.end)?.end());
        let mut found = CudaMallocAsyncMessage { device, allocated: None, requested: None, total: None, free: None, limit: None };
        let end = text.floor_char_boundary(begin.saturating_add(NEAR));
        for figure in FIGURE.captures_iter(&text[begin..end]) {
            let shift = match &figure[4] {
                "KiB" => 10,
                "MiB" => 20,
                "GiB" => 30,
                _ => 0,
            };
            let hundredths = figure.get(3).map_or(Some(0), |digits| digits.as_str().parse().ok());
            let size = figure[2].parse().ok().zip(hundredths).and_then(|(whole, part)| Size::new(whole, part, shift));
            let Some(size) = size else { continue };
            // The figures of a later message are not this one's.
            let place = match figure[1].as_bytes()[0] {
                b'C' => &mut found.allocated,
                b'R' => &mut found.requested,
                b'D' => &mut found.total,
                b'F' => &mut found.free,
                _ => {
                    let limit = (size.bytes < u64::MAX).then_some(size);
                    found.limit = found.limit.or(Some(limit));
                    continue;
                }
            };
            *place = place.or(Some(size));
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::MessageLog;
    use super::*;

    fn message(allocated: &str, requested: &str, free: &str, limit: &str) -> String {
        format!(
            "torch.OutOfMemoryError: Allocation on device 5 would exceed allowed memory. (out of memory)\n\
             Currently allocated     : {allocated}\n\
             Requested               : {requested}\n\
             Device limit            : 79.35 GiB\n\
             Free (according to CUDA): {free}\n\
             PyTorch limit (set by user-supplied memory fraction)\n\
             \x20                       : {limit}\n"
        )
    }

    #[test]
    fn all_figures_are_read_however_the_lines_are_laid_out() {
        let text = message("54.14 GiB", "686.41 MiB", "0 bytes", "17179869184.00 GiB");
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let prefixed: String = text.lines().map(|line| format!("[rank3]: {line}\n")).collect();
        for text in [&text, &joined, &prefixed] {
            let log = MessageLog::read(text);
            let found = log.cuda_malloc_async.unwrap_or_else(|| panic!("{text}"));
            let bytes = |size: Option<Size>| size.map(|size| size.bytes >> 20);
            assert_eq!((found.device, found.limit), (5, Some(None)), "{text}");
            let figures = [found.allocated, found.requested, found.total, found.free].map(bytes);
            assert_eq!(figures, [Some(55_439), Some(686), Some(81_254), Some(0)], "{text}");
            assert!(log.messages.is_empty() && log.foreign.is_none());
        }
        let limited = MessageLog::read(&message("1.00 GiB", "512 bytes", "2.00 GiB", "1.00 GiB")).cuda_malloc_async;
        assert_eq!(limited.and_then(|found| found.limit).flatten().map(|limit| limit.bytes), Some(1 << 30));
    }

    #[test]
    fn a_cut_one_has_what_is_left() {
        let text = message("54.14 GiB", "686.41 MiB", "27.19 MiB", "17179869184.00 GiB");
        let first = text.lines().next().expect("a line");
        let found = MessageLog::read(first).cuda_malloc_async.expect("the first line is enough");
        assert_eq!((found.device, found.allocated, found.limit), (5, None, None));
        for cut in 0..text.len() {
            let _ = MessageLog::read(&text[..cut]);
        }
        let absurd = MessageLog::read(&message("99999999999999999999 GiB", "1.00 GiB", "0 bytes", "x")).cuda_malloc_async;
        assert!(absurd.is_some_and(|found| found.allocated.is_none() && found.requested.is_some()));
    }
}
