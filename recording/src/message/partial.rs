//! A message of which a part is missing: its figures, each told by the words around it.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::out_of_memory::{OutOfMemoryMessage, ProcessUse, Size, UNITS};
use super::patterns::compiled;

/// The figures of a message that is cut.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct PartialMessage {
    /// The size of the segment that the device was asked for.
    pub tried: Option<Size>,
    /// The device's index.
    pub device: Option<u32>,
    /// The device's total memory.
    pub total: Option<Size>,
    /// The free part of it.
    pub free: Option<Size>,
    /// The processes that used memory.
    pub processes: Vec<ProcessUse>,
    /// The memory limit.
    pub limit: Option<Size>,
    /// Memory in allocated blocks, and that of `private_pools`.
    pub allocated: Option<Size>,
    /// Memory that the process's allocator had reserved from the device.
    pub reserved: Option<Size>,
    /// Reserved memory that was not allocated.
    pub unallocated: Option<Size>,
    /// The free memory of private pools, which the message calls allocated.
    pub private_pools: Option<Size>,
    /// Whether it has the form of PyTorch until 2.0, which names no private pools.
    pub is_old: bool,
}

/// A size with the words before or after it. Without words before it, it must be seen that no digit is missing.
fn figure(before: &str, after: &str) -> Regex {
    let before = if before.is_empty() { "[^0-9.]" } else { before };
    compiled(&format!(r"{before}([0-9]{{1,20}})(?:\.([0-9]{{2}}))? (bytes|KiB|MiB|GiB){after}"))
}

/// Where a figure is put.
type Place = fn(&mut PartialMessage) -> &mut Option<Size>;
/// The figures, and where they are put.
static FIGURES: LazyLock<[(Regex, Place); 19]> = LazyLock::new(|| {
    [
        (figure("Tried to allocate ", ""), |message| &mut message.tried),
        (figure("total capaci?ty of ", ""), |message| &mut message.total),
        (figure("", " total capacity;"), |message| &mut message.total),
        (figure("GPU [0-9]{1,9}; ", ""), |message| &mut message.total),
        (figure("of which ", ""), |message| &mut message.free),
        (figure("already allocated; ", ""), |message| &mut message.free),
        (figure("total capacity; ", ""), |message| &mut message.allocated),
        (figure("allocated memory ", ""), |message| &mut message.allocated),
        (figure("by PyTorch, with ", ""), |message| &mut message.private_pools),
        (figure("by PyTorch, and ", ""), |message| &mut message.unallocated),
        (figure("", " is free"), |message| &mut message.free),
        (figure("", " free;"), |message| &mut message.free),
        (figure("", " allowed;"), |message| &mut message.limit),
        (figure("", " is allocated by PyTorch"), |message| &mut message.allocated),
        (figure("", " already allocated"), |message| &mut message.allocated),
        (figure("", " allocated in private pools"), |message| &mut message.private_pools),
        (figure("", " is reserved by PyTorch but"), |message| &mut message.unallocated),
        (figure("", " cached\\)"), |message| &mut message.unallocated),
        (figure("", " reserved in total"), |message| &mut message.reserved),
    ]
});
static DEVICE: LazyLock<Regex> = LazyLock::new(|| compiled(r"GPU ([0-9]{1,9})(?:;| has a total)"));
static PROCESS: LazyLock<Regex> = LazyLock::new(|| {
    compiled(r"(?:Process ([0-9]{1,9})|this process) has ([0-9]{1,20})(?:\.([0-9]{2}))? (bytes|KiB|MiB|GiB) memory in")
});

impl PartialMessage {
    /// The figures in a text without line breaks. A number at its very beginning may have lost digits and does not count.
    pub(super) fn find(text: &str) -> PartialMessage {
        let mut message = PartialMessage::default();
        for (figure, place) in FIGURES.iter() {
            let place = place(&mut message);
            *place = place.or_else(|| size(&figure.captures(text)?, 1));
        }
        message.is_old = ["(GPU ", " total capacity;", " already allocated;"].iter().any(|words| text.contains(words));
        message.device = DEVICE.captures(text).and_then(|captures| captures[1].parse().ok());
        let process = |captures: Captures<'_>| {
            let pid = captures.get(1).and_then(|digits| digits.as_str().parse().ok());
            Some(ProcessUse { pid, used: size(&captures, 2)? })
        };
        message.processes = PROCESS.captures_iter(text).filter_map(process).collect();
        message.complete();
        message
    }

    /// Of what is reserved, allocated and unallocated, two give the third.
    fn complete(&mut self) {
        if let Some(allocated) = self.allocated {
            self.unallocated = self.unallocated.or_else(|| self.reserved.map(|reserved| reserved.minus(allocated)));
            self.reserved = self.reserved.or_else(|| self.unallocated.map(|unallocated| allocated.plus(unallocated)));
        }
    }

    /// Whether every figure is also in this message.
    pub(super) fn is_part_of(&self, whole: &OutOfMemoryMessage) -> bool {
        let figures = [
            (self.tried, Some(whole.tried)),
            (self.total, Some(whole.total)),
            (self.free, Some(whole.free)),
            (self.allocated, Some(whole.allocated)),
            (self.limit, whole.limit),
            (self.reserved, Some(whole.reserved)),
            (self.unallocated, Some(whole.unallocated)),
            (self.private_pools, whole.private_pools),
        ];
        self.device.is_none_or(|device| device == whole.device)
            && figures.iter().all(|(part, whole)| part.is_none() || part == whole)
    }

    /// Whether there is no figure.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.missing().len() == PARTS && self.limit.or(self.private_pools).is_none() && self.processes.is_empty()
    }

    /// What every complete message has and this one lacks, in words.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let parts: [(bool, &str); PARTS] = [
            (self.tried.is_none(), "the size that was tried"),
            (self.device.is_none(), "the device"),
            (self.total.is_none(), "the device's memory"),
            (self.free.is_none(), "what was free on the device"),
            (self.allocated.is_none(), "what PyTorch had allocated"),
            (self.reserved.is_none() && self.unallocated.is_none(), "what PyTorch had reserved"),
        ];
        parts.into_iter().filter_map(|(is_missing, part)| is_missing.then_some(part)).collect()
    }

    /// Whether a limit would have been read if the message named one: it stands between what was free and what was reserved.
    #[must_use]
    pub fn is_limit_known(&self) -> bool {
        self.limit.is_some() || (self.free.is_some() && self.reserved.is_some())
    }

    /// Whether the memory of private pools would have been read if the message named it: it stands between what was allocated and what
    /// was not.
    #[must_use]
    pub fn is_private_known(&self) -> bool {
        self.is_old || self.private_pools.is_some() || (self.allocated.is_some() && self.reserved.is_some())
    }
}

/// How many parts every complete message has.
const PARTS: usize = 6;

/// The size in three groups, from this one on.
fn size(captures: &Captures<'_>, group: usize) -> Option<Size> {
    let digits = |group: usize| captures.get(group).map_or("0", |digits| digits.as_str());
    let unit = captures.get(group + 2)?.as_str();
    let (_, shift) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    Size::new(digits(group).parse().ok()?, digits(group + 1).parse().ok()?, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = "Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 24.00 GiB of which 512.00 MiB is free. Including \
        non-PyTorch memory, this process has 20.00 GiB memory in use. Process 7 has 3.00 GiB memory in use. 22.00 GiB allowed; Of the \
        allocated memory 19.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 768.00 \
        MiB is reserved by PyTorch but unallocated. If";
    const OLD: &str = "Tried to allocate 2.00 GiB (GPU 1; 24.00 GiB total capacity; 19.00 GiB already allocated; 512.00 MiB free; \
        22.00 GiB allowed; 19.75 GiB reserved in total by PyTorch)";

    #[test]
    fn every_figure_is_told_by_the_words_around_it() {
        for text in [NEW, OLD] {
            let found = PartialMessage::find(text);
            let bytes = |size: Option<Size>| size.map(|size| size.bytes >> 20);
            assert_eq!((found.missing(), found.device), (Vec::new(), Some(1)), "{text}");
            assert_eq!([found.tried, found.total, found.free].map(bytes), [Some(2 << 10), Some(24 << 10), Some(512)]);
            assert_eq!([found.allocated, found.unallocated, found.limit].map(bytes), [Some(19 << 10), Some(768), Some(22 << 10)]);
        }
        let found = PartialMessage::find(NEW);
        assert_eq!((found.private_pools.map(|size| size.bytes), found.processes.len()), (Some(1 << 30), 2));
    }

    /// Whatever is cut off, at either end, a figure that is left is the whole message's.
    #[test]
    fn a_cut_makes_no_figure() {
        for text in [NEW, OLD] {
            let whole = PartialMessage::find(text);
            let of = |message: &PartialMessage| {
                let PartialMessage { tried, total, free, limit, allocated, private_pools, .. } = message.clone();
                [tried, total, free, limit, allocated, private_pools, message.unallocated, message.reserved]
            };
            for cut in 0..text.len() {
                for part in [&text[..cut], &text[cut..]] {
                    let found = PartialMessage::find(part);
                    for (place, (found, whole)) in of(&found).into_iter().zip(of(&whole)).enumerate() {
                        assert!(found.is_none() || found == whole, "figure {place} in {part:?}");
                    }
                    assert!(found.device.is_none() || found.device == whole.device, "{part:?}");
                }
            }
        }
    }
}
