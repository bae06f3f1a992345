//! PyTorch's out-of-memory message: what it says, as plain data, and parsing it from left to right.
//!
//! Its sizes are printed with two decimals, so each is known to within half of its last digit.

use std::fmt;

/// What a message says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OutOfMemoryMessage {
    /// The size of the segment that the device was asked for, which may be larger than the request.
    pub tried: Size,
    /// The device's index.
    pub device: u32,
    /// The device's total memory.
    pub total: Size,
    /// The free part of it.
    pub free: Size,
    /// The processes that used memory, if NVML knew. Messages from before PyTorch 2.1 have none.
    pub processes: Vec<ProcessUse>,
    /// The memory limit, if one was set.
    pub limit: Option<Size>,
    /// Memory in allocated blocks, and that of `private_pools`.
    pub allocated: Size,
    /// Memory that the process's allocator had reserved from the device.
    pub reserved: Size,
    /// Reserved memory that was not allocated.
    pub unallocated: Size,
    /// What the message calls allocated in private pools, if there was any: in fact
    /// their free, cached memory (spec 2.13).
    pub private_pools: Option<Size>,
}

/// A process that used memory of the device.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ProcessUse {
    /// Its process id; `None` for the process whose message this is.
    pub pid: Option<u32>,
    /// The memory that it used.
    pub used: Size,
}

/// Why a text could not be read as an out-of-memory message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// It does not contain a message.
    #[error("there is no out-of-memory message (`out of memory. Tried to allocate`) in the text")]
    NotFound,
    /// The message has no figures: the request was for an exabyte or more, or was
    /// rejected before the device was asked.
    #[error("the message has no figures: {0}")]
    NoFigures(&'static str),
    /// The message ends, or continues differently, where this should follow.
    #[error("expected {expected} at `{at}`; is the message complete?")]
    Expected {
        /// What should follow.
        expected: &'static str,
        /// The text there, up to 40 characters.
        at: String,
    },
}

impl OutOfMemoryMessage {
    /// Whether the reserved but unallocated memory is at least the size that was tried: enough memory, but in pieces.
    #[must_use]
    pub fn is_fragmentation(&self) -> bool {
        self.unallocated.bytes >= self.tried.bytes
    }
}

impl fmt::Display for OutOfMemoryMessage {
    /// The figures of the allocator, without those of the device and of other processes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tried to allocate {}", self.tried)?;
        if let Some(limit) = self.limit {
            write!(f, ", {limit} allowed")?;
        }
        write!(f, ", {} allocated", self.allocated)?;
        if let Some(private) = self.private_pools {
            write!(f, " ({private} of it in private pools)")?;
        }
        write!(f, ", {} reserved but unallocated", self.unallocated)
    }
}

/// How many characters of the text an error quotes.
const SHOWN: usize = 40;
/// The units of sizes, as powers of two.
pub(super) const UNITS: [(&str, u32); 4] = [("bytes", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30)];

impl OutOfMemoryMessage {
    /// Parses the first complete out-of-memory message in a text.
    ///
    /// # Errors
    /// [`MessageError`] if there is none. If the text has incomplete messages, or ones of an unknown form, the error is about
    /// the first of them.
    pub fn parse(text: &str) -> Result<OutOfMemoryMessage, MessageError> {
        first_complete(text)
    }
}

/// The first complete message in the text. If there is none, the error of the first incomplete one.
fn first_complete(text: &str) -> Result<OutOfMemoryMessage, MessageError> {
    // A log may have broken the message into lines, and the message itself contains double spaces.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut first_error = MessageError::NotFound;
    // No message contains the words that the next one begins with, so every part is read once: the time is linear.
    for (at, words) in text.match_indices("out of memory. ") {
        match message(&text[at + words.len()..]) {
            Ok(message) => return Ok(message),
            Err(error) if first_error == MessageError::NotFound => first_error = error,
            Err(_) => {}
        }
    }
    Err(first_error)
}

/// A message, from after `out of memory. ` on.
pub(super) fn message(rest: &str) -> Result<OutOfMemoryMessage, MessageError> {
    let mut reader = Reader { rest };
    if reader.skip("Allocation was preemptively rejected") {
        return Err(MessageError::NoFigures("the request was rejected before the device was asked"));
    }
    if !reader.skip("Tried to allocate ") {
        return Err(MessageError::NotFound);
    }
    if reader.skip("more than 1EB") {
        return Err(MessageError::NoFigures("the request was for an exabyte or more"));
    }
    let tried = reader.size("the size that was tried")?;
    if reader.skip(" (GPU ") { parenthesis(&mut reader, tried) } else { sentences(&mut reader, tried) }
}

/// `4.88 GiB (GPU 2; 39.59 GiB total capacity; 28.60 GiB already allocated; 3.92 GiB free;
/// 33.95 GiB reserved in total by PyTorch)`
fn parenthesis(reader: &mut Reader<'_>, tried: Size) -> Result<OutOfMemoryMessage, MessageError> {
    let device = reader.number("the device's index")?;
    reader.expect("; ")?;
    let total = reader.size("the total capacity")?;
    reader.expect(" total capacity; ")?;
    let allocated = reader.size("what is allocated")?;
    reader.expect(" already allocated; ")?;
    let free = reader.size("what is free")?;
    reader.expect(" free; ")?;
    let mut last = reader.size("what is reserved")?;
    let mut limit = None;
    if reader.skip(" allowed; ") {
        limit = Some(last);
        last = reader.size("what is reserved")?;
    }
    let (reserved, unallocated) = if reader.skip(" cached)") {
        (allocated.plus(last), last)
    } else {
        reader.expect(" reserved in total by PyTorch)")?;
        (last, last.minus(allocated))
    };
    let (processes, private_pools) = (Vec::new(), None);
    Ok(OutOfMemoryMessage { tried, device, total, free, processes, limit, allocated, reserved, unallocated, private_pools })
}

/// `. GPU 0 has a total capacity of ... of which ... is free. ... Of the allocated memory ...`
fn sentences(reader: &mut Reader<'_>, tried: Size) -> Result<OutOfMemoryMessage, MessageError> {
    reader.expect(". GPU ")?;
    let device = reader.number("the device's index")?;
    if !reader.skip(" has a total capacty of ") {
        reader.expect(" has a total capacity of ")?;
    }
    let total = reader.size("the total capacity")?;
    reader.expect(" of which ")?;
    let free = reader.size("what is free")?;
    reader.expect(" is free. ")?;
    let mut processes = Vec::new();
    while let Some(process) = process(reader)? {
        processes.push(process);
    }
    let mut limit = None;
    if !reader.skip("Of the allocated memory ") {
        limit = Some(reader.size("the limit")?);
        reader.expect(" allowed; ")?;
        reader.expect("Of the allocated memory ")?;
    }
    let allocated = reader.size("what is allocated")?;
    reader.expect(" is allocated by PyTorch, ")?;
    let mut private_pools = None;
    if reader.skip("with ") {
        private_pools = Some(reader.size("what private pools hold")?);
        reader.expect(" allocated in private pools (e.g., CUDA Graphs), ")?;
    }
    reader.expect("and ")?;
    let unallocated = reader.size("what is not allocated")?;
    reader.expect(" is reserved by PyTorch but unallocated.")?;
    let reserved = allocated.plus(unallocated);
    Ok(OutOfMemoryMessage { tried, device, total, free, processes, limit, allocated, reserved, unallocated, private_pools })
}

/// The next sentence about a process, if the next sentence is one.
fn process(reader: &mut Reader<'_>) -> Result<Option<ProcessUse>, MessageError> {
    let pid = if reader.skip("Including non-PyTorch memory, this process") {
        None
    } else if reader.skip("Process ") {
        Some(reader.number("a process's number")?)
    } else {
        return Ok(None);
    };
    reader.expect(" has ")?;
    let used = reader.size("what a process holds")?;
    reader.expect(" memory in use. ")?;
    Ok(Some(ProcessUse { pid, used }))
}

/// The part of the text that has not been read yet.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Skips `text` if it comes next.
    fn skip(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, text: &'static str) -> Result<(), MessageError> {
        if self.skip(text) { Ok(()) } else { Err(self.error(text)) }
    }

    fn error(&self, expected: &'static str) -> MessageError {
        MessageError::Expected { expected, at: self.rest.chars().take(SHOWN).collect() }
    }

    fn digits(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits
    }

    fn number(&mut self, what: &'static str) -> Result<u32, MessageError> {
        let error = self.error(what);
        self.digits().parse().map_err(|_| error)
    }

    /// `1024 bytes` or `4.88 GiB`.
    fn size(&mut self, what: &'static str) -> Result<Size, MessageError> {
        let error = self.error(what);
        let size = self.digits().parse().ok().and_then(|whole| {
            let hundredths = if self.skip(".") { Some(self.digits()).filter(|digits| digits.len() == 2)? } else { "0" };
            let hundredths = hundredths.parse().ok()?;
            self.skip(" ").then_some(())?;
            let (_, shift) = UNITS.into_iter().find(|(unit, _)| self.skip(unit))?;
            Size::new(whole, hundredths, shift)
        });
        size.ok_or(error)
    }
}

/// A number of bytes, known as precisely as the message prints it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Size {
    /// The nearest whole number of bytes.
    pub bytes: u64,
    /// How far the true number may be from that, in bytes.
    pub within: u64,
}

impl Size {
    /// `whole` and `hundredths` of a unit of 2^`shift` bytes. `None` if that does not fit in 64 bits.
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

    /// The sum; the uncertainties add up.
    pub fn plus(self, other: Size) -> Size {
        Size { bytes: self.bytes.saturating_add(other.bytes), within: self.within.saturating_add(other.within) }
    }

    /// The difference, at least 0; the uncertainties add up.
    pub fn minus(self, other: Size) -> Size {
        Size { bytes: self.bytes.saturating_sub(other.bytes), within: self.within.saturating_add(other.within) }
    }
}

impl fmt::Display for Size {
    /// In the unit of the message: a smaller one would show digits that the message does not have.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_in_gibibytes = self.within >= (1 << 30) / 200;
        if is_in_gibibytes && self.bytes <= 1 << 30 {
            return write!(f, "{:.2} GiB", self.bytes as f64 / f64::from(1 << 30));
        }
        f.write_str(&parkade::texts::format_bytes(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use parkade::device::ProcessMemory;
    use parkade::texts::{Hint, MORE_THAN_ONE_EXABYTE, OomWords, OutOfMemory, rejection_message};
    use parkade::units::Bytes;
    use proptest::prelude::*;

    use super::*;

    /// The message of the document, with its line breaks.
    const DOCUMENT: &str = "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59\nGiB total capacity; 28.60 GiB \
        already allocated; 3.92 GiB free; 33.95 GiB\nreserved in total by PyTorch). If reserved memory is substantially greater than \
        allocated memory, consider\nsetting max_split_size_mb to counteract fragmentation.";

    fn gib(hundredths: u64) -> u64 {
        ((u128::from(hundredths) << 30) as f64 / 100.0).round() as u64
    }

    #[test]
    fn the_old_form_is_read() {
        let message = OutOfMemoryMessage::parse(DOCUMENT).expect("a message");
        assert_eq!((message.tried.bytes, message.device, message.total.bytes), (gib(488), 2, gib(3959)));
        assert_eq!((message.allocated.bytes, message.free.bytes, message.reserved.bytes), (gib(2860), gib(392), gib(3395)));
        assert_eq!((message.limit, message.private_pools, message.processes.len()), (None, None, 0));
        assert_eq!(message.unallocated.to_string(), "5.35 GiB");
        assert!(message.is_fragmentation());
    }

    #[test]
    fn the_oldest_form_gives_cached_instead_of_reserved_memory() {
        let text = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 6.41 GiB already \
            allocated; 12.44 MiB free; 100.00 MiB cached)";
        let message = OutOfMemoryMessage::parse(text).expect("a message");
        assert_eq!(message.unallocated.bytes, 100 << 20);
        assert_eq!(message.reserved.bytes, gib(641) + (100 << 20));
    }

    #[test]
    fn the_old_form_with_a_limit_is_read() {
        let text = "HIP out of memory. Tried to allocate 512 bytes (GPU 0; 8.00 GiB total capacity; 1024 bytes already allocated; 7.00 GiB \
            free; 2.00 MiB allowed; 2.00 MiB reserved in total by PyTorch) If reserved";
        let message = OutOfMemoryMessage::parse(text).expect("a message");
        assert_eq!(message.limit, Some(Size { bytes: 2 << 20, within: 5244 }));
        assert_eq!(message.tried, Size { bytes: 512, within: 0 });
    }

    #[test]
    fn version_2_1_misspelt_capacity() {
        let text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 22.17 GiB of which 1.94 GiB is free. Process \
            712 has 20.20 GiB memory in use. Of the allocated memory 19.00 GiB is allocated by PyTorch, and 816.00 MiB is reserved by \
            PyTorch but unallocated. If reserved";
        let message = OutOfMemoryMessage::parse(text).expect("a message");
        assert_eq!(message.total.bytes, gib(2217));
        assert_eq!((message.processes.len(), message.processes[0].pid), (1, Some(712)));
    }

    #[test]
    fn what_is_no_message_is_an_error_that_says_where() {
        assert_eq!(OutOfMemoryMessage::parse(""), Err(MessageError::NotFound));
        assert_eq!(OutOfMemoryMessage::parse("CUDA out of memory."), Err(MessageError::NotFound));
        assert!(matches!(OutOfMemoryMessage::parse(MORE_THAN_ONE_EXABYTE), Err(MessageError::NoFigures(_))));
        assert!(matches!(OutOfMemoryMessage::parse(&rejection_message(Bytes(5))), Err(MessageError::NoFigures(_))));
        let cut = "CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59 GiB total capacity; 28.6";
        let error = OutOfMemoryMessage::parse(cut).expect_err("it is cut");
        assert_eq!(error.to_string(), "expected what is allocated at `28.6`; is the message complete?");
        let long = "CUDA out of memory. Tried to allocate 99999999999999999999999999.00 GiB. GPU 0";
        assert!(matches!(OutOfMemoryMessage::parse(long), Err(MessageError::Expected { .. })));
    }

    #[test]
    fn what_comes_before_a_message_does_not_hide_it() {
        let retry = "WARNING: out of memory. Retrying with a smaller batch.\n";
        let cut = "CUDA out of memory. Tried to allocate 4.88 GiB (GPU 2; 39.59 GiB total capacity; 28.6\n";
        let rejected = rejection_message(Bytes(5));
        for before in [retry, cut, &format!("{rejected}\n"), &[retry, cut, MORE_THAN_ONE_EXABYTE, "\n"].concat()] {
            let message = OutOfMemoryMessage::parse(&format!("{before}{DOCUMENT}"));
            assert_eq!(message.map(|message| message.tried.bytes), Ok(gib(488)), "{before}");
        }
        // Of several complete messages the first counts; if none is complete, the error is about the first.
        let second = DOCUMENT.replace("4.88", "9.99");
        let message = OutOfMemoryMessage::parse(&format!("{retry}{DOCUMENT}\n{second}")).expect("a message");
        assert_eq!(message.tried.bytes, gib(488));
        assert_eq!(OutOfMemoryMessage::parse(retry), Err(MessageError::NotFound));
        let error = OutOfMemoryMessage::parse(&format!("{retry}{cut}{rejected}")).expect_err("none is complete");
        assert!(error.to_string().starts_with("expected what is allocated at `28.6"), "{error}");
    }

    /// A log may consist of beginnings of messages. Each is read only up to the next.
    #[test]
    fn many_beginnings_take_linear_time() {
        let beginning =
            "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. ";
        let text = beginning.repeat(100_000) + DOCUMENT;
        let before = std::time::Instant::now();
        assert_eq!(OutOfMemoryMessage::parse(&text).map(|message| message.tried.bytes), Ok(gib(488)));
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
        assert!(is_close(message.tried, told), "{message:?}");
    }

    fn process() -> impl Strategy<Value = ProcessMemory> {
        (any::<Option<u32>>(), any::<u64>()).prop_map(|(pid, used)| ProcessMemory { pid, used: Bytes(used) })
    }

    /// Any size; most are in the range that devices have.
    fn bytes() -> impl Strategy<Value = u64> {
        prop_oneof![0..1_u64 << 11, 0..1_u64 << 21, 0..1_u64 << 31, 0..1_u64 << 40, any::<u64>()]
    }

    fn report() -> impl Strategy<Value = OutOfMemory> {
        let figures = (bytes(), bytes(), bytes(), 0..1_u64 << 50, 0..1_u64 << 50, 0..1_u64 << 50);
        let hint = prop_oneof![
            Just(Hint::None),
            Just(Hint::ExpandableSegments),
            Just(Hint::Addresses),
            bytes().prop_map(|b| Hint::LargerReserve(Bytes(b)))
        ];
        let rest = (any::<u32>(), proptest::collection::vec(process(), 0..4), proptest::option::of(bytes()), hint, any::<bool>());
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
                }
            },
        )
    }

    fn is_close(read: Size, told: u64) -> bool {
        read.bytes.abs_diff(told) <= read.within
    }

    proptest! {
        #[test]
        fn what_the_core_prints_is_read_back(report in report()) {
            let text = report.to_string();
            let message = OutOfMemoryMessage::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            prop_assert!(is_close(message.tried, report.segment_bytes.get()), "{message:?}");
            prop_assert!(is_close(message.total, report.device_total.get()), "{message:?}");
            prop_assert!(is_close(message.free, report.device_free.get()), "{message:?}");
            prop_assert_eq!(message.device, report.device);
            prop_assert_eq!(message.processes.len(), report.processes.len());
            for (read, told) in message.processes.iter().zip(&report.processes) {
                prop_assert_eq!(read.pid, told.pid);
                prop_assert!(is_close(read.used, told.used.get()), "{message:?}");
            }
            prop_assert_eq!(message.limit.is_some(), report.limit.is_some());
            prop_assert!(message.limit.zip(report.limit).is_none_or(|(read, told)| is_close(read, told.get())), "{message:?}");
            let private = report.private_cached_bytes.get();
            let allocated = report.allocated_bytes as u64 + private;
            prop_assert!(is_close(message.allocated, allocated), "{message:?}");
            prop_assert!(is_close(message.reserved, report.reserved_bytes as u64), "{message:?}");
            prop_assert!(is_close(message.unallocated, report.reserved_bytes as u64 - allocated), "{message:?}");
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
}
