//! Parsing a message from left to right.

use super::out_of_memory::{MessageError, OutOfMemoryMessage, ProcessUse};
use super::size::Size;

/// How many characters of the text an error quotes.
const SHOWN: usize = 40;
/// The units of sizes, as powers of two.
const UNITS: [(&str, u32); 4] = [("bytes", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30)];

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
