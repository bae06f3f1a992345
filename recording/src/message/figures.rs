//! A message: its source, and its figures, each identified by the words around it.
//!
//! The order of the figures does not matter, and any of them may be missing: PyTorch's releases, and its ports to other
//! devices, order them differently, add some and leave some out. White space between words does not matter either, because
//! terminals break lines anywhere. A [`Size`] is known as a message prints it: rounded to two decimals of its unit.

use std::fmt;

/// The source of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// PyTorch's caching allocator for GPUs, or the allocator of a port to another device (HIP, XPU, NPU, MLU, MUSA).
    PyTorch,
    /// PyTorch's caching allocator, refusing a request because of the program's own memory fraction, without asking
    /// the device.
    Fraction,
    /// PyTorch's other GPU allocator, `backend:cudaMallocAsync`, which leaves caching to the driver.
    CudaMallocAsync,
    /// PyTorch on Apple GPUs.
    Mps,
    /// A table of PyTorch's statistics (`torch.cuda.memory_summary()`).
    Summary,
    /// An assertion inside one of PyTorch's GPU allocators.
    Assertion,
    /// A warning from PyTorch's allocator that the device has refused memory, before the allocator frees what it can and
    /// retries.
    Retry,
    /// TensorFlow.
    TensorFlow,
    /// JAX, or another user of XLA.
    Jax,
    /// The BFC allocator, which is shared by TensorFlow and XLA.
    Bfc,
    /// PaddlePaddle.
    Paddle,
    /// CuPy's memory pool.
    CuPy,
    /// RAPIDS Memory Manager.
    Rmm,
    /// llama.cpp and the programs built on it.
    Ggml,
    /// PyTorch's host memory allocator, or any other host allocator.
    MainMemory,
    /// The operating system, which ended a process because host memory was short.
    System,
    /// An inference server that found too little memory for its cache.
    Server,
    /// NCCL.
    Nccl,
    /// cuBLAS, cuDNN, or AMD's counterparts.
    Library,
    /// CUDA itself: `cudaMalloc` or another call, outside PyTorch's allocator.
    Cuda,
    /// HIP itself, on AMD GPUs.
    Hip,
    /// Level Zero, the driver for Intel GPUs.
    LevelZero,
    /// The driver of another accelerator.
    Driver,
    /// A kernel that needs more of a multiprocessor's memory than exists; no allocator manages that memory.
    Kernel,
    /// A source that states only that CUDA, HIP or the GPU is out of memory.
    Plain,
}

impl Source {
    /// Returns its name, for use in a sentence.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Source::PyTorch | Source::Fraction => "PyTorch's GPU allocator",
            Source::CudaMallocAsync => "PyTorch's cudaMallocAsync backend",
            Source::Mps => "PyTorch on Apple GPUs (MPS)",
            Source::Summary => "torch.cuda.memory_summary()",
            Source::Assertion => "PyTorch's GPU allocator, about an internal error",
            Source::Retry => "PyTorch's GPU allocator, before a retry",
            Source::TensorFlow => "TensorFlow",
            Source::Jax => "JAX (XLA)",
            Source::Bfc => "the BFC allocator in TensorFlow or XLA",
            Source::Paddle => "PaddlePaddle",
            Source::CuPy => "CuPy",
            Source::Rmm => "RAPIDS Memory Manager (RMM)",
            Source::Ggml => "llama.cpp (ggml)",
            Source::MainMemory => "a host memory allocator (not the GPU's)",
            Source::System => "the operating system, about host memory (not the GPU's)",
            Source::Server => "an inference server, about its cache",
            Source::Nccl => "NCCL",
            Source::Library => "cuBLAS, cuDNN or a similar library",
            Source::Cuda => "CUDA itself",
            Source::Hip => "HIP itself",
            Source::LevelZero => "Level Zero",
            Source::Driver => "the device's driver",
            Source::Kernel => "a kernel compiler, about the memory of a multiprocessor",
            Source::Plain => "a program that states no figures",
        }
    }

    /// Returns whether the figures in its messages are identified by words, as in messages from PyTorch's GPU allocator.
    pub(super) const fn has_figures(self) -> bool {
        matches!(self, Source::CudaMallocAsync | Source::Mps | Source::Summary | Source::Driver)
    }

    /// Returns whether its signs are words that also occur in or around PyTorch's own messages; they count only in a log that
    /// has none of those messages.
    pub(super) const fn is_general(self) -> bool {
        use Source::{Assertion, Cuda, Driver, Hip, Kernel, LevelZero, Library, Nccl, Plain, Retry, Server, Summary};
        matches!(self, Cuda | Hip | Plain | Library | Nccl | Retry | Assertion | Server | LevelZero | Driver | Kernel | Summary)
    }
}

/// The contents of a message; missing parts are `None`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OutOfMemoryMessage {
    /// The source of the message.
    pub source: Source,
    /// Whether the message is complete. A complete message names everything that existed; if it names no limit or
    /// private pools, there were none.
    pub is_complete: bool,
    /// Whether it has the form used by PyTorch up to 2.0, with parentheses, which does not mention private pools.
    pub is_old: bool,
    /// The size of the failed allocation. PyTorch's allocator prints the size of the segment that it asked the device for,
    /// which may exceed the request.
    pub tried: Option<Size>,
    /// The device's index.
    pub device: Option<u32>,
    /// The device's total memory.
    pub total: Option<Size>,
    /// The device's free memory.
    pub free: Option<Size>,
    /// The processes that used memory, if NVML reported them. Messages from before PyTorch 2.1 list none.
    pub processes: Vec<ProcessUse>,
    /// The memory limit, if one was set.
    pub limit: Option<Size>,
    /// Memory in allocated blocks, including `private_pools`.
    pub allocated: Option<Size>,
    /// Memory that the process's allocator had reserved on the device.
    pub reserved: Option<Size>,
    /// Reserved memory that was not allocated.
    pub unallocated: Option<Size>,
    /// The memory that the message calls allocated in private pools, if there was any. It is in fact their free,
    /// cached memory (spec 2.13).
    pub private_pools: Option<Size>,
    /// Memory in blocks that are allocated or waiting for other streams, if the message is a table of statistics that states
    /// it.
    pub active: Option<Size>,
    /// The device memory that the process used outside this allocator, if the message states it.
    pub others: Option<Size>,
}

/// A process that used memory on the device.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ProcessUse {
    /// Its process id; `None` for the process that wrote the message.
    pub pid: Option<u32>,
    /// The memory that the process used.
    pub used: Size,
}

/// The reason why no out-of-memory message could be read from a text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The text does not contain a message.
    #[error("there is no out-of-memory message (such as `out of memory. Tried to allocate`) in the text")]
    NotFound,
    /// The first message is truncated.
    #[error("the message is truncated; missing: {0}")]
    Cut(String),
}

/// The words that precede every message from PyTorch's GPU allocator.
pub(super) const MARK: &str = "out of memory. ";
/// The words that precede the size of the failed allocation.
pub(super) const TRIED: &str = "Tried to allocate ";
/// The words that replace the size if the request was for 2^60 bytes or more.
const EXABYTE: &str = "more than 1EB";
/// The words for a request that was refused because of the program's own memory fraction, without asking the device.
const REJECTED: &str = "Allocation was preemptively rejected";
/// The words that end the figures of PyTorch's messages, without white space.
const ENDS: [&str; 6] = [
    "reservedbyPyTorchbutunallocated",
    "reservedintotalbyPyTorch",
    "cached)",
    "onprivatepool",
    "onsharedpool",
    "(setbyuser-suppliedmemoryfraction)",
];

impl OutOfMemoryMessage {
    /// Returns a message without figures.
    #[must_use]
    pub const fn of(source: Source) -> OutOfMemoryMessage {
        OutOfMemoryMessage {
            source,
            is_complete: false,
            is_old: false,
            tried: None,
            device: None,
            total: None,
            free: None,
            processes: Vec::new(),
            limit: None,
            allocated: None,
            reserved: None,
            unallocated: None,
            private_pools: None,
            active: None,
            others: None,
        }
    }

    /// Reads the first complete message from PyTorch's GPU allocator in a text.
    ///
    /// # Errors
    /// Returns [`MessageError`] if the text contains none.
    pub fn parse(text: &str) -> Result<OutOfMemoryMessage, MessageError> {
        // A log may have broken the message into lines, and the message itself contains double spaces.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut error = MessageError::NotFound;
        // No message contains the words that begin the next one, so every part is read once: the time is linear.
        let marks = text.match_indices(MARK);
        let starts: Vec<usize> = marks.map(|(at, words)| at + words.len()).collect();
        for (place, &start) in starts.iter().enumerate() {
            let end = starts.get(place + 1).copied().unwrap_or(text.len());
            match OutOfMemoryMessage::after_mark(&text[start..end]) {
                Some(message) if message.is_complete => return Ok(message),
                Some(message) if error == MessageError::NotFound => error = MessageError::Cut(message.missing().join(", ")),
                _ => {}
            }
        }
        Err(error)
    }

    /// Returns the message from PyTorch's GPU allocator that continues with this text after `out of memory. `, if it is one
    /// and has a figure.
    pub(super) fn after_mark(rest: &str) -> Option<OutOfMemoryMessage> {
        if rest.starts_with(REJECTED) {
            let mut message = OutOfMemoryMessage::of(Source::Fraction);
            (message.is_complete, message.tried) = (true, sizes(rest).into_iter().next().map(|found| found.size));
            return Some(message);
        }
        let size = rest.strip_prefix(TRIED)?;
        if size.starts_with(EXABYTE) {
            let mut message = OutOfMemoryMessage::of(Source::PyTorch);
            (message.is_complete, message.tried) = (true, Some(Size { bytes: 1 << 60, within: 0 }));
            return Some(message);
        }
        let message = OutOfMemoryMessage::read(Source::PyTorch, rest);
        (!message.is_empty()).then_some(message)
    }

    /// Returns the figures in a text without line breaks, up to the end of the first message that ends there.
    pub(super) fn read(source: Source, text: &str) -> OutOfMemoryMessage {
        let mut message = OutOfMemoryMessage::of(source);
        let end = end_of_figures(text);
        let text = &text[..end.unwrap_or(text.len())];
        let found = sizes(text);
        for (place, figure) in found.iter().enumerate() {
            let from = place.checked_sub(1).map_or(0, |place| found[place].end);
            let to = found.get(place + 1).map_or(text.len(), |next| next.start);
            message.put(figure, &text[from..figure.start], &text[figure.end..to]);
        }
        message.device = device(text);
        message.is_old = [" total capacity;", " already allocated;"].iter().any(|words| text.contains(words));
        message.complete();
        message.is_complete = end.is_some() && message.has_all();
        message
    }

    /// Stores a figure in the field that the words before and after it indicate.
    fn put(&mut self, figure: &Found, before: &str, after: &str) {
        let size = figure.size;
        if is_next(after, "memoryinuse") {
            return self.processes.extend(process(before, size));
        }
        let place = AFTER.iter().find(|(words, _)| is_next(after, words)).map(|(_, place)| place);
        let place = place.or_else(|| BEFORE.iter().find(|(words, _)| is_last(before, words)).map(|(_, place)| place));
        let total: Place = |message| &mut message.total;
        let place = place.copied().or_else(|| names_device(before).then_some(total));
        if let Some(place) = place {
            place(self).get_or_insert(size);
        }
    }

    /// Computes the third of reserved, allocated and unallocated memory if two are known.
    fn complete(&mut self) {
        if self.source == Source::CudaMallocAsync {
            // The message prints 2^64 - 1 if no fraction was set.
            self.limit = self.limit.filter(|limit| limit.bytes < u64::MAX);
        }
        if let Some(allocated) = self.allocated {
            self.unallocated = self.unallocated.or_else(|| self.reserved.map(|reserved| reserved.minus(allocated)));
            self.reserved = self.reserved.or_else(|| self.unallocated.map(|unallocated| allocated.plus(unallocated)));
        }
    }

    /// Returns whether the message has the figures that every message from its source has.
    fn has_all(&self) -> bool {
        let is_there = [self.tried, self.allocated, self.total.or(self.limit)].iter().all(Option::is_some);
        is_there && (self.reserved.is_some() || self.source != Source::PyTorch)
    }

    /// Returns whether all of its figures are also in `whole`.
    pub(super) fn is_part_of(&self, whole: &OutOfMemoryMessage) -> bool {
        let figures = |message: &OutOfMemoryMessage| {
            let OutOfMemoryMessage { tried, total, free, limit, allocated, reserved, unallocated, private_pools, .. } = *message;
            [tried, total, free, limit, allocated, reserved, unallocated, private_pools]
        };
        let is_part = |(part, whole): (Option<Size>, Option<Size>)| part.is_none() || part == whole;
        self.source == whole.source
            && (self.device.is_none() || self.device == whole.device)
            && figures(self).into_iter().zip(figures(whole)).all(is_part)
    }

    /// Returns whether there are no figures.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lacks().iter().all(|(is_missing, _)| *is_missing)
            && self.limit.or(self.private_pools).is_none()
            && self.processes.is_empty()
    }

    /// Returns the parts, in words, that a complete message would have but this one lacks.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        if self.is_complete {
            return Vec::new();
        }
        self.lacks().into_iter().filter_map(|(is_missing, part)| is_missing.then_some(part)).collect()
    }

    fn lacks(&self) -> [(bool, &'static str); 6] {
        [
            (self.tried.is_none(), "the size tried"),
            (self.device.is_none(), "the device"),
            (self.total.is_none(), "the device's memory"),
            (self.free.is_none(), "the device's free memory"),
            (self.allocated.is_none(), "PyTorch's allocated memory"),
            (self.reserved.is_none() && self.unallocated.is_none(), "PyTorch's reserved memory"),
        ]
    }

    /// Returns whether the message would show a limit if there were one: the limit is stated between the free and the
    /// reserved memory.
    #[must_use]
    pub fn is_limit_known(&self) -> bool {
        self.is_complete || self.limit.is_some() || (self.free.is_some() && self.reserved.is_some())
    }

    /// Returns whether the message would show the memory of private pools if there were any: it is stated between the
    /// allocated and the unallocated memory.
    #[must_use]
    pub fn is_private_known(&self) -> bool {
        self.is_complete || self.is_old || self.private_pools.is_some() || (self.allocated.is_some() && self.reserved.is_some())
    }

    /// Returns whether the reserved but unallocated memory is at least the size of the failed allocation: there was enough
    /// memory, but it was fragmented or pending.
    #[must_use]
    pub fn is_fragmentation(&self) -> bool {
        self.unallocated.zip(self.tried).is_some_and(|(unallocated, tried)| unallocated.bytes >= tried.bytes)
    }
}

impl fmt::Display for OutOfMemoryMessage {
    /// Returns the allocator's figures in the message, without those for the device and for other processes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let private = self.private_pools.map_or_else(String::new, |private| format!(" ({private} of it in private pools)"));
        let parts = [
            self.tried.map(|tried| format!("tried to allocate {tried}")),
            self.limit.map(|limit| format!("{limit} allowed")),
            self.allocated.map(|allocated| format!("{allocated} allocated{private}")),
            self.unallocated.map(|unallocated| format!("{unallocated} reserved but unallocated")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The field that stores a figure.
type Place = fn(&mut OutOfMemoryMessage) -> &mut Option<Size>;

/// The words right after a figure, in all forms, in lower case and without white space.
const AFTER: [(&str, Place); 13] = [
    ("totalcapa", |message| &mut message.total),
    ("alreadyallocated", |message| &mut message.allocated),
    ("isallocatedby", |message| &mut message.allocated),
    ("allocatedinprivatepools", |message| &mut message.private_pools),
    ("currentactive", |message| &mut message.active),
    ("isreservedby", |message| &mut message.unallocated),
    ("reservedintotal", |message| &mut message.reserved),
    ("reservedby", |message| &mut message.unallocated),
    ("cached)", |message| &mut message.unallocated),
    ("isfree", |message| &mut message.free),
    ("free;", |message| &mut message.free),
    ("free)", |message| &mut message.free),
    ("allowed;", |message| &mut message.limit),
];

/// The words right before a figure, for figures that have no words after them.
const BEFORE: [(&str, Place); 16] = [
    ("triedtoallocate", |message| &mut message.tried),
    ("requested:", |message| &mut message.tried),
    ("capacityof", |message| &mut message.total),
    ("capactyof", |message| &mut message.total),
    ("devicelimit:", |message| &mut message.total),
    ("ofwhich", |message| &mut message.free),
    ("free(accordingtocuda):", |message| &mut message.free),
    ("totalcapacity;", |message| &mut message.allocated),
    ("allocatedmemory", |message| &mut message.allocated),
    ("mpsallocated:", |message| &mut message.allocated),
    ("currentlyallocated:", |message| &mut message.allocated),
    ("bypytorch,with", |message| &mut message.private_pools),
    ("bypytorch,and", |message| &mut message.unallocated),
    ("otherallocations:", |message| &mut message.others),
    ("maxallowed:", |message| &mut message.limit),
    ("memoryfraction):", |message| &mut message.limit),
];

/// The number of bytes before and after a figure that are searched for the words that identify it.
const NEAR: usize = 64;

/// Returns whether the text begins with these words, ignoring white space and case.
fn is_next(text: &str, words: &str) -> bool {
    let mut letters = text.bytes().take(NEAR).filter(|byte| !byte.is_ascii_whitespace()).map(|byte| byte.to_ascii_lowercase());
    words.bytes().all(|word| letters.next() == Some(word))
}

/// Returns whether the text ends with these words.
fn is_last(text: &str, words: &str) -> bool {
    let mut letters =
        text.bytes().rev().take(NEAR).filter(|byte| !byte.is_ascii_whitespace()).map(|byte| byte.to_ascii_lowercase());
    words.bytes().rev().all(|word| letters.next() == Some(word))
}

/// Returns the position after the words that end a message's figures.
fn end_of_figures(text: &str) -> Option<usize> {
    let letters: Vec<(usize, u8)> = text.bytes().enumerate().filter(|(_, byte)| !byte.is_ascii_whitespace()).collect();
    let starts = ENDS.map(|words| words.as_bytes()[0]);
    (0..letters.len()).filter(|&at| starts.contains(&letters[at].1)).find_map(|at| {
        let is_next = |(step, word): (usize, u8)| letters.get(at + step).is_some_and(|letter| letter.1 == word);
        let words = ENDS.iter().find(|words| words.bytes().enumerate().all(is_next))?;
        let end = letters[at + words.len() - 1].0 + 1;
        // In one form of the message, the last figure follows these words.
        if words.starts_with("(set") { sizes(&text[end - 1..]).first().map(|found| end - 1 + found.end) } else { Some(end) }
    })
}

/// Returns whether a text ends with `GPU 0;` or similar words, which precede the device's memory.
fn names_device(before: &str) -> bool {
    let Some(rest) = before.trim_end().strip_suffix(';') else { return false };
    let name = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    name.len() < rest.len() && name.ends_with(' ') && name.trim_end().ends_with(|c: char| c.is_ascii_uppercase())
}

/// Returns the device's index: `GPU 0;`, `NPU 3 has a total`, `on device 5 would`.
fn device(text: &str) -> Option<u32> {
    text.match_indices(' ').find_map(|(at, _)| {
        let (before, rest) = (&text[..at], &text[at + 1..]);
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let is_named = before.ends_with(|c: char| c.is_ascii_uppercase()) || before.ends_with("device");
        let is_whole =
            rest.get(digits..).is_some_and(|rest| rest.starts_with(';') || is_next(rest, "hasatotal") || is_next(rest, "would"));
        if digits > 0 && is_named && is_whole { rest[..digits].parse().ok() } else { None }
    })
}

/// Returns the process named before `17.00 GiB memory in use`.
fn process(before: &str, used: Size) -> Option<ProcessUse> {
    let words = before.trim_end().strip_suffix("has")?.trim_end();
    if is_last(words, "thisprocess") {
        return Some(ProcessUse { pid: None, used });
    }
    let name = words.trim_end_matches(|c: char| c.is_ascii_digit());
    let pid = words[name.len()..].parse().ok()?;
    is_last(name, "process").then_some(ProcessUse { pid: Some(pid), used })
}

/// The units of sizes, as powers of two. Messages that use `MB` also count in powers of 1024.
const UNITS: [(&str, u32); 9] =
    [("bytes", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("KB", 10), ("MB", 20), ("GB", 30), ("B", 0)];

/// A number of bytes, known only as precisely as the message prints it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Size {
    /// The nearest whole number of bytes.
    pub bytes: u64,
    /// The maximum difference between the true number and `bytes`.
    pub within: u64,
}

impl Size {
    /// Creates a size of `whole` units and `hundredths` of a unit, where a unit is 2^`shift` bytes. Returns `None` if it does
    /// not fit in 64 bits.
    pub(super) fn new(whole: u64, hundredths: u64, shift: u32) -> Option<Size> {
        let hundredths = u128::from(whole) * 100 + u128::from(hundredths);
        // Each factor is below 2^71 and 2^30.
        let bytes = ((hundredths << shift) + 50) / 100;
        // A message prints 2^64 - 1 rounded, as 2^34 GiB.
        let bytes = if bytes == 1 << 64 { u64::MAX } else { u64::try_from(bytes).ok()? };
        // PyTorch converts to a double, which has 53 bits, before it rounds.
        let within = if shift == 0 { 0 } else { (1_u64 << shift).div_ceil(200) + 1 + (bytes >> 53) };
        Some(Size { bytes, within })
    }

    /// Returns the smallest possible number of bytes.
    #[must_use]
    pub const fn least(self) -> u64 {
        self.bytes.saturating_sub(self.within)
    }

    /// Returns the largest possible number of bytes.
    #[must_use]
    pub const fn most(self) -> u64 {
        self.bytes.saturating_add(self.within)
    }

    /// Returns the sum; the uncertainties add up.
    pub fn plus(self, other: Size) -> Size {
        Size { bytes: self.bytes.saturating_add(other.bytes), within: self.within.saturating_add(other.within) }
    }

    /// Returns the difference, at least 0; the uncertainties add up.
    pub fn minus(self, other: Size) -> Size {
        Size { bytes: self.bytes.saturating_sub(other.bytes), within: self.within.saturating_add(other.within) }
    }
}

impl fmt::Display for Size {
    /// Uses the message's unit, because a smaller unit would show digits that the message does not contain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter().find(|(shift, _)| self.within >= (1 << shift) / 200);
        match unit {
            Some((shift, name)) if self.bytes <= 1 << shift => {
                write!(f, "{:.2} {name}", self.bytes as f64 / f64::from(1 << shift))
            }
            _ => f.write_str(&parkade::texts::format_bytes(self.bytes)),
        }
    }
}

/// A size in a text, and its position.
pub(super) struct Found {
    start: usize,
    end: usize,
    pub(super) size: Size,
}

/// Returns the sizes in a text, such as `1024 bytes` or `4.88 GiB`. Ignores a number at the very beginning, because its first
/// digits may be missing, and a number that does not fit in 64 bits.
pub(super) fn sizes(text: &str) -> Vec<Found> {
    let (bytes, mut found, mut at) = (text.as_bytes(), Vec::new(), 1);
    while let Some(start) = (at..bytes.len()).find(|&at| bytes[at].is_ascii_digit() && !is_of_number(bytes[at - 1])) {
        let (end, size) = size_at(text, start);
        found.extend(size.map(|size| Found { start, end, size }));
        at = end + 1;
    }
    found
}

/// Returns whether this byte belongs to a number, so that a number before it continues.
fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'.'
}

/// Returns the size whose number begins at this position, and the position after it.
fn size_at(text: &str, start: usize) -> (usize, Option<Size>) {
    let digits_from = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let whole_end = start + digits_from(start);
    let fraction = if text[whole_end..].starts_with('.') { digits_from(whole_end + 1) } else { 0 };
    let end = if fraction > 0 { whole_end + 1 + fraction } else { whole_end };
    let read = || {
        let whole = text[start..whole_end].parse().ok()?;
        let hundredths = match fraction {
            0 => 0,
            1 => 10 * text[whole_end + 1..end].parse::<u64>().ok()?,
            2 => text[whole_end + 1..end].parse().ok()?,
            _ => return None,
        };
        let rest = text[end..].strip_prefix(' ').unwrap_or(&text[end..]);
        let (unit, shift) = UNITS.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        let after = &rest[unit.len()..];
        // One vendor's text has no space before `is free`.
        let is_word = after.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric()) && !after.starts_with("is ");
        (!is_word).then_some(())?;
        Some((text.len() - after.len(), Size::new(whole, hundredths, shift)?))
    };
    read().map_or((end, None), |(end, size)| (end, Some(size)))
}

#[cfg(test)]
mod tests {
    #[cfg(not(target_family = "wasm"))]
    use parkade::device::ProcessMemory;
    #[cfg(not(target_family = "wasm"))]
    use parkade::texts::{Hint, OomWords, OutOfMemory};
    use parkade::texts::{MORE_THAN_ONE_EXABYTE, rejection_message};
    use parkade::units::Bytes;
    #[cfg(not(target_family = "wasm"))]
    use proptest::prelude::*;

    use super::*;

    /// The message in the document, with its line breaks.
    const DOCUMENT: &str = "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59\nGiB total capacity; 28.60 GiB \
        already allocated; 3.92 GiB free; 33.95 GiB\nreserved in total by PyTorch). If reserved memory is substantially greater than \
        allocated memory, consider\nsetting max_split_size_mb to counteract fragmentation.";

    fn gib(hundredths: u64) -> u64 {
        ((u128::from(hundredths) << 30) as f64 / 100.0).round() as u64
    }

    #[test]
    fn the_old_form_is_read() {
        let message = OutOfMemoryMessage::parse(DOCUMENT).expect("a message");
        assert_eq!((bytes(message.tried), message.device, bytes(message.total)), (gib(488), Some(2), gib(3959)));
        assert_eq!([message.allocated, message.free, message.reserved].map(bytes), [2860, 392, 3395].map(gib));
        assert_eq!((message.limit, message.private_pools, message.processes.len()), (None, None, 0));
        assert_eq!(message.unallocated.map(|size| size.to_string()).as_deref(), Some("5.35 GiB"));
        assert!(message.is_fragmentation());
    }

    #[test]
    fn the_oldest_form_gives_cached_instead_of_reserved_memory() {
        let text = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 6.41 GiB already \
            allocated; 12.44 MiB free; 100.00 MiB cached)";
        let message = OutOfMemoryMessage::parse(text).expect("a message");
        assert_eq!(bytes(message.unallocated), 100 << 20);
        assert_eq!(bytes(message.reserved), gib(641) + (100 << 20));
    }

    #[test]
    fn the_old_form_with_a_limit_is_read() {
        let text = "HIP out of memory. Tried to allocate 512 bytes (GPU 0; 8.00 GiB total capacity; 1024 bytes already allocated; 7.00 GiB \
            free; 2.00 MiB allowed; 2.00 MiB reserved in total by PyTorch) If reserved";
        let message = OutOfMemoryMessage::parse(text).expect("a message");
        assert_eq!(message.limit, Some(Size { bytes: 2 << 20, within: 5244 }));
        assert_eq!(message.tried, Some(Size { bytes: 512, within: 0 }));
    }

    #[test]
    fn version_2_1_misspelt_capacity() {
        let text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 22.17 GiB of which 1.94 GiB is free. Process \
            712 has 20.20 GiB memory in use. Of the allocated memory 19.00 GiB is allocated by PyTorch, and 816.00 MiB is reserved by \
            PyTorch but unallocated. If reserved";
        let message = OutOfMemoryMessage::parse(text).expect("a message");
        assert_eq!(bytes(message.total), gib(2217));
        assert_eq!((message.processes.len(), message.processes[0].pid), (1, Some(712)));
    }

    #[test]
    fn what_is_no_message_is_an_error_that_says_what_is_missing() {
        assert_eq!(OutOfMemoryMessage::parse(""), Err(MessageError::NotFound));
        assert_eq!(OutOfMemoryMessage::parse("CUDA out of memory."), Err(MessageError::NotFound));
        let cut = "CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59 GiB total capacity; 28.6";
        let error = OutOfMemoryMessage::parse(cut).expect_err("it is cut");
        assert_eq!(
            error.to_string(),
            "the message is truncated; missing: the device's free memory, PyTorch's allocated memory, PyTorch's reserved memory"
        );
        let long = "CUDA out of memory. Tried to allocate 99999999999999999999999999.00 GiB. GPU 0";
        assert_eq!(OutOfMemoryMessage::parse(long), Err(MessageError::NotFound), "no size");
    }

    /// A message about a request that was refused without asking the device states only the request.
    #[test]
    fn requests_that_no_device_was_asked_for_are_messages() {
        let large = OutOfMemoryMessage::parse(MORE_THAN_ONE_EXABYTE).expect("a message");
        assert_eq!((large.source, bytes(large.tried), large.total), (Source::PyTorch, 1 << 60, None));
        let rejected = OutOfMemoryMessage::parse(&rejection_message(Bytes(5 << 20))).expect("a message");
        assert_eq!((rejected.source, bytes(rejected.tried)), (Source::Fraction, 5 << 20));
    }

    /// Ports omit figures, add some and reorder them; terminals break lines within words.
    #[test]
    fn the_words_tell_a_figure_and_not_its_place() {
        let read = |text: &str| {
            let message = OutOfMemoryMessage::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let figures = [message.tried, message.total, message.allocated, message.reserved, message.free, message.active];
            (message.device, figures.map(|size| size.map(|size| size.bytes >> 20)))
        };
        let npu = "NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.00 GiB total capacity; 50.00 GiB already allocated; 51.00 GiB \
                   current active; 1.25 GiB free; 58.00 GiB reserved in total by PyTorch).If reserved";
        let all = |device, figures: [u64; 6]| (Some(device), figures.map(Some));
        assert_eq!(read(npu), all(3, [2048, 61_440, 51_200, 59_392, 1280, 52_224]));
        let xpu = "XPU out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 15.00 GiB. Of the allocated memory 0 bytes is \
                   allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. Please";
        assert_eq!(read(xpu), (Some(0), [Some(8192), Some(15_360), Some(0), Some(1024), None, None]));
        let old = "XPU out of memory. Tried to allocate 1.00 GiB (GPU 0; 15.00 GiB total capacity; 990.00 MiB already allocated; 990.00 MiB \
                   reserved in total by PyTorch)";
        assert_eq!(read(old), (Some(0), [Some(1024), Some(15_360), Some(990), Some(990), None, None]));
        let mlu = "MLU out of memory. Tried to allocate 2.00 GiB. MLU 3 has a total capa\ncity of 47.00 GiB of which 1.25 GiBis free. Of the \
                   allocated mem\nory 40.00 GiB is alloca ted by PyTorch, and 4.50 GiB is reserved by PyTorch but un\nallocated.";
        assert_eq!(read(mlu), (Some(3), [Some(2048), Some(48_128), Some(40_960), Some(45_568), Some(1280), None]));
    }

    const NEW: &str = "Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 24.00 GiB of which 512.00 MiB is free. Including \
        non-PyTorch memory, this process has 20.00 GiB memory in use. Process 7 has 3.00 GiB memory in use. 22.00 GiB allowed; Of the \
        allocated memory 19.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 768.00 \
        MiB is reserved by PyTorch but unallocated. If";
    const OLD: &str = "Tried to allocate 2.00 GiB (GPU 1; 24.00 GiB total capacity; 19.00 GiB already allocated; 512.00 MiB free; \
        22.00 GiB allowed; 19.75 GiB reserved in total by PyTorch)";

    #[test]
    fn every_figure_is_told_by_the_words_around_it() {
        for text in [NEW, OLD] {
            let found = OutOfMemoryMessage::read(Source::PyTorch, &format!(" {text}"));
            assert_eq!((found.is_complete, found.device), (true, Some(1)), "{text}");
            assert_eq!([found.tried, found.total, found.free].map(bytes), [2 << 30, 24 << 30, 512 << 20]);
            assert_eq!([found.allocated, found.unallocated, found.limit].map(bytes), [19 << 30, 768 << 20, 22 << 30]);
        }
        let found = OutOfMemoryMessage::read(Source::PyTorch, NEW);
        assert_eq!((bytes(found.private_pools), found.processes.len()), (1 << 30, 2));
    }

    /// If as much memory is unallocated as was tried, it would have been enough in one piece.
    #[test]
    fn memory_that_would_be_enough_is_fragmented() {
        let size = |bytes: u64| Size { bytes, within: 0 };
        let sizes = [0, 1, 511, 512, 513, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, u64::MAX];
        let all: Vec<Option<u64>> = sizes.into_iter().map(Some).chain([None]).collect();
        for (unallocated, tried) in all.iter().flat_map(|one| all.iter().map(move |other| (*one, *other))) {
            let mut message = OutOfMemoryMessage::of(Source::PyTorch);
            (message.unallocated, message.tried) = (unallocated.map(size), tried.map(size));
            let is_short = unallocated.zip(tried).is_none_or(|(unallocated, tried)| unallocated < tried);
            assert_eq!(message.is_fragmentation(), !is_short, "{unallocated:?} of {tried:?}");
        }
    }

    /// Whatever is cut off, a limit and private pools that the complete message has are found or not known.
    #[test]
    fn what_a_cut_hides_is_not_known_to_be_missing() {
        for text in [NEW, OLD] {
            let ends = (0..=text.len()).flat_map(|cut| [&text[..cut], &text[cut..]]);
            for part in ends {
                let found = OutOfMemoryMessage::read(Source::PyTorch, part);
                assert!(found.limit.is_some() || !found.is_limit_known(), "{part:?}");
                assert!(found.private_pools.is_some() || !found.is_private_known() || text == OLD, "{part:?}");
            }
            let found = OutOfMemoryMessage::read(Source::PyTorch, &format!(" {}", text.replace("22.00 GiB allowed; ", "")));
            assert_eq!((found.limit, found.is_limit_known(), found.is_private_known()), (None, true, true), "{text}");
        }
    }

    /// A size is printed in the unit in which it was read, even if it is exactly one of them.
    #[test]
    fn a_size_is_printed_as_it_was_read() {
        for (unit, hundredths) in
            ["KiB", "MiB", "GiB"].iter().flat_map(|unit| (0..300).chain([102_399, 102_400]).map(move |h| (unit, h)))
        {
            let text = format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100);
            let read = sizes(&format!(" {text}")).remove(0).size;
            assert_eq!(read.to_string(), text);
            assert_eq!((read.least() < read.bytes, read.bytes < read.most()), (hundredths > 0, true), "{text}");
        }
        assert_eq!(Size { bytes: 1 << 20, within: 0 }.to_string(), "1024.00 KiB", "PyTorch prints an exact size so");
    }

    /// Whatever is cut off, at either end, the remaining figures equal those of the complete message.
    #[test]
    fn a_cut_makes_no_figure() {
        for text in [NEW, OLD] {
            let whole = OutOfMemoryMessage::read(Source::PyTorch, text);
            let of = |message: &OutOfMemoryMessage| {
                let OutOfMemoryMessage { tried, total, free, limit, allocated, private_pools, .. } = message.clone();
                [tried, total, free, limit, allocated, private_pools, message.unallocated, message.reserved]
            };
            for cut in 0..text.len() {
                for part in [&text[..cut], &text[cut..]] {
                    let found = OutOfMemoryMessage::read(Source::PyTorch, part);
                    for (place, (found, whole)) in of(&found).into_iter().zip(of(&whole)).enumerate() {
                        assert!(found.is_none() || found == whole, "figure {place} in {part:?}");
                    }
                    assert!(found.device.is_none() || found.device == whole.device, "{part:?}");
                }
            }
        }
    }

    #[test]
    fn what_comes_before_a_message_does_not_hide_it() {
        let retry = "WARNING: out of memory. Retrying with a smaller batch.\n";
        let cut = "CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59 GiB total capacity; 28.6\n";
        for before in [retry, cut, &[retry, cut, "\n"].concat()] {
            let message = OutOfMemoryMessage::parse(&format!("{before}{DOCUMENT}"));
            assert_eq!(message.map(|message| bytes(message.tried)), Ok(gib(488)), "{before}");
        }
        // Of several complete messages, the first one counts. If none is complete, the error refers to the first.
        let second = DOCUMENT.replace("4.88", "9.99");
        let message = OutOfMemoryMessage::parse(&format!("{retry}{DOCUMENT}\n{second}")).expect("a message");
        assert_eq!(bytes(message.tried), gib(488));
        assert_eq!(OutOfMemoryMessage::parse(retry), Err(MessageError::NotFound));
        let error = OutOfMemoryMessage::parse(&format!("{retry}{cut}{cut}")).expect_err("none is complete");
        assert!(matches!(error, MessageError::Cut(_)), "{error}");
    }

    /// A log may consist of only the beginnings of messages. Each is read only up to the next one.
    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "there is no clock")]
    fn many_beginnings_take_linear_time() {
        let beginning =
            "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. ";
        let text = beginning.repeat(100_000) + DOCUMENT;
        let before = std::time::Instant::now();
        assert_eq!(OutOfMemoryMessage::parse(&text).map(|message| bytes(message.tried)), Ok(gib(488)));
        assert!(before.elapsed().as_secs() < 30, "{:?}", before.elapsed());
    }

    #[test]
    fn a_size_that_no_double_holds_is_within_what_is_said() {
        let told = 3_535_117_072_110_410_796;
        let text = parkade::texts::format_bytes(told);
        let message = format!(
            "CUDA out of memory. Tried to allocate {text}. GPU 0 has a total capacity of 1.00 GiB of which 1.00 GiB is free. Of the \
             allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
        );
        let message = OutOfMemoryMessage::parse(&message).expect("a message");
        assert!(is_read(message.tried, told), "{message:?}");
    }

    #[cfg(not(target_family = "wasm"))]
    fn process() -> impl Strategy<Value = ProcessMemory> {
        (any::<Option<u32>>(), any::<u64>()).prop_map(|(pid, used)| ProcessMemory { pid, used: Bytes(used) })
    }

    #[cfg(not(target_family = "wasm"))]
    /// Generates any size; most are in the range of real devices.
    fn any_bytes() -> impl Strategy<Value = u64> {
        prop_oneof![0..1_u64 << 11, 0..1_u64 << 21, 0..1_u64 << 31, 0..1_u64 << 40, any::<u64>()]
    }

    #[cfg(not(target_family = "wasm"))]
    fn report() -> impl Strategy<Value = OutOfMemory> {
        let figures = (any_bytes(), any_bytes(), any_bytes(), 0..1_u64 << 50, 0..1_u64 << 50, 0..1_u64 << 50);
        let hint = prop_oneof![
            Just(Hint::None),
            Just(Hint::ExpandableSegments),
            Just(Hint::Addresses),
            any_bytes().prop_map(|b| Hint::LargerReserve(Bytes(b)))
        ];
        let rest =
            (any::<u32>(), proptest::collection::vec(process(), 0..4), proptest::option::of(any_bytes()), hint, any::<bool>());
        (figures, rest).prop_map(
            |((segment, total, free, allocated, private, rest), (device, processes, limit, hint, has_private))| {
                let private = if has_private { private } else { 0 };
                OutOfMemory {
                    segment_bytes: Bytes(segment),
                    device,
                    device_total: Bytes(total),
                    device_free: Bytes(free),
                    processes,
                    limit: limit.map(Bytes),
                    allocated_bytes: allocated as i64,
                    reserved_bytes: (allocated + private + rest) as i64,
                    private_cached_bytes: Bytes(private),
                    hint,
                    words: &OomWords::PYTORCH_2_11,
                    rescue: None,
                }
            },
        )
    }

    fn is_close(read: Size, told: u64) -> bool {
        read.bytes.abs_diff(told) <= read.within
    }

    fn is_read(read: Option<Size>, told: u64) -> bool {
        read.is_some_and(|read| is_close(read, told))
    }

    fn bytes(size: Option<Size>) -> u64 {
        size.map_or(u64::MAX, |size| size.bytes)
    }

    #[cfg(not(target_family = "wasm"))]
    proptest! {
        #[test]
        fn what_the_core_prints_is_read_back(report in report()) {
            let text = report.to_string();
            let message = OutOfMemoryMessage::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            prop_assert!(is_read(message.tried, report.segment_bytes.get()), "{message:?}");
            prop_assert!(is_read(message.total, report.device_total.get()), "{message:?}");
            prop_assert!(is_read(message.free, report.device_free.get()), "{message:?}");
            prop_assert_eq!(message.device, Some(report.device));
            prop_assert_eq!(message.processes.len(), report.processes.len());
            for (read, told) in message.processes.iter().zip(&report.processes) {
                prop_assert_eq!(read.pid, told.pid);
                prop_assert!(is_close(read.used, told.used.get()), "{message:?}");
            }
            prop_assert_eq!(message.limit.is_some(), report.limit.is_some());
            prop_assert!(message.limit.zip(report.limit).is_none_or(|(read, told)| is_close(read, told.get())), "{message:?}");
            let private = report.private_cached_bytes.get();
            let allocated = report.allocated_bytes as u64 + private;
            prop_assert!(is_read(message.allocated, allocated), "{message:?}");
            prop_assert!(is_read(message.reserved, report.reserved_bytes as u64), "{message:?}");
            prop_assert!(is_read(message.unallocated, report.reserved_bytes as u64 - allocated), "{message:?}");
            prop_assert_eq!(message.private_pools.is_some(), private > 0);
        }

        #[test]
        fn nothing_makes_it_panic(text in "(CUDA )?(out of memory\\. Tried to allocate )?[0-9.]{0,30} (GiB|MiB|bytes)?.{0,60}") {
            let _ = OutOfMemoryMessage::parse(&text);
        }

        #[test]
        fn a_message_cut_anywhere_is_an_error(report in report(), at in 0..200_usize) {
            let text = report.to_string();
            let cut: String = text.chars().take(at).collect();
            prop_assert!(OutOfMemoryMessage::parse(&cut).is_err());
        }
    }

    #[test]
    fn sizes_are_found_with_the_words_between_them() {
        let text = "of 39.59 GiB; 512 bytes, 1.20 GiBis free, 7.93 GB and 4608 B: 3 apples, 1.234 GiB, 1 GiBs, 7 Boxes, 2.5 MiB";
        let found: Vec<&str> = sizes(text).iter().map(|found| &text[found.start..found.end]).collect();
        assert_eq!(found, ["39.59 GiB", "512 bytes", "1.20 GiB", "7.93 GB", "4608 B", "2.5 MiB"]);
        assert_eq!(
            sizes("9.59 GiB, .59 GiB, 99999999999999999999999 GiB").len(),
            0,
            "digits may be missing, or there are too many"
        );
    }
}
