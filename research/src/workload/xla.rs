//! Reads what XLA writes about a compiled program's memory with `--xla_dump_to`: `*-buffer-assignment.txt`, which has the size
//! and the place of each value, followed by `*-live-range.txt`, which has the instructions at which it is live
//! (`BufferAssignment::ToString` in xla/service/buffer_assignment.cc, `HloLiveRange::ToString` in
//! xla/hlo/utils/hlo_live_range.cc).
//!
//! Values that overlap both in address and in time are one buffer to XLA, such as an operand and the result that replaces it
//! in place.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use super::trace_error::TraceError;

/// The rest of a longer line is passed over.
const LOOKED_AT_BYTES: u64 = 64 << 10;
/// The memory space of values in the host's memory (`Layout::kHostMemorySpace` in xla/layout.h).
const HOST: &str = "@5";
/// The first words of the two files.
const ASSIGNMENT: &str = "BufferAssignment:";
const LIVE_RANGES: &str = "HloLiveRange (max ";
const INSTRUCTION: &str = "number of an instruction";

/// A buffer and the instructions at which it is live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lifetime {
    pub(super) start: u64,
    /// The first instruction at which it is no longer live.
    pub(super) end: u64,
    pub(super) bytes: u64,
}

/// Whether a file that begins with these bytes is one of the two.
pub(super) fn is_dump(head: &[u8]) -> bool {
    let head = head.trim_ascii_start();
    [ASSIGNMENT, LIVE_RANGES].iter().any(|first| head.starts_with(first.as_bytes()))
}

/// Reads both files, one after the other in either order. Parameters and constants are live in the whole program. Memory of
/// single threads and of the host is left out.
///
/// # Errors
/// A line cannot be read, or one of the two files is missing or belongs to a different program. Lines are counted from the
/// first line of their file.
pub(super) fn read(mut from: impl BufRead) -> Result<Vec<Lifetime>, TraceError> {
    let (mut dump, mut text, mut line) = (Dump::default(), Vec::new(), 0);
    while next_line(&mut from, &mut text)? {
        let found = String::from_utf8_lossy(&text);
        let found = found.trim_end();
        line = if [ASSIGNMENT, LIVE_RANGES].iter().any(|first| found.starts_with(first)) { 1 } else { line + 1 };
        dump.line(found, line).map_err(|problem| TraceError::Line { line, problem })?;
    }
    dump.lifetimes()
}

/// Reads the beginning of the next line and passes over the rest of it; false at the end.
fn next_line(from: &mut impl BufRead, text: &mut Vec<u8>) -> io::Result<bool> {
    text.clear();
    from.take(LOOKED_AT_BYTES).read_until(b'\n', text)?;
    if text.len() as u64 == LOOKED_AT_BYTES && !text.ends_with(b"\n") {
        from.skip_until(b'\n')?;
    }
    Ok(!text.is_empty())
}

/// A value's place in its allocation.
#[derive(Debug)]
struct Value {
    /// The instruction and, in braces, the part of its result, as in the live ranges.
    name: String,
    offset: u64,
    bytes: u64,
    line: usize,
}

/// One piece of memory, which values share.
#[derive(Debug)]
struct Allocation {
    bytes: u64,
    kind: Kind,
    values: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A parameter or a constant.
    WholeProgram,
    /// Of a single thread.
    Thread,
    Values,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Section {
    #[default]
    Other,
    Assignment,
    LiveRanges,
}

#[derive(Default)]
struct Dump {
    section: Section,
    has_assignment: bool,
    has_ranges: bool,
    allocations: Vec<Allocation>,
    ranges: BTreeMap<String, (u64, u64)>,
    /// The last instruction.
    last: u64,
}

impl Dump {
    fn line(&mut self, text: &str, line: usize) -> Result<(), String> {
        if let Some(rest) = text.strip_prefix(LIVE_RANGES) {
            self.last = self.last.max(number(rest.split(')').next(), INSTRUCTION)?);
            (self.section, self.has_ranges) = (Section::Other, true);
        } else if text == ASSIGNMENT {
            (self.section, self.has_assignment) = (Section::Assignment, true);
        } else if text.trim() == "BufferLiveRange:" {
            self.section = Section::LiveRanges;
        } else if self.section == Section::LiveRanges {
            // The section ends where lines are indented less.
            match text.strip_prefix("    ") {
                Some(entry) => self.range(entry)?,
                None => self.section = Section::Other,
            }
        } else if self.section == Section::Assignment {
            if text.starts_with("Total bytes used:") || text == "Used values:" {
                self.section = Section::Other;
            } else if let Some(rest) = text.strip_prefix("allocation ") {
                self.allocations.push(allocation(rest)?);
            } else if let Some(rest) = text.trim_start().strip_prefix("value: <") {
                let value = value(rest, line)?;
                self.allocations.last_mut().ok_or("is a value before the first allocation")?.values.extend(value);
            }
        }
        Ok(())
    }

    /// Reads a line such as `fusion.2{0}:3-17`.
    fn range(&mut self, entry: &str) -> Result<(), String> {
        let (name, range) = entry.rsplit_once(':').ok_or_else(|| format!("{entry:?} is not a live range"))?;
        let (start, end) = range.split_once('-').ok_or_else(|| format!("{range:?} is not a live range"))?;
        let (start, end) = (number(Some(start), INSTRUCTION)?, number(Some(end), INSTRUCTION)?);
        if start > end {
            return Err(format!("{name} is live from {start} to {end}"));
        }
        self.last = self.last.max(end);
        let known = self.ranges.entry(name.to_owned()).or_insert((start, end));
        *known = (known.0.min(start), known.1.max(end));
        Ok(())
    }

    fn lifetimes(&self) -> Result<Vec<Lifetime>, TraceError> {
        let lacks = |problem: &str| Err(TraceError::Line { line: 1, problem: problem.to_owned() });
        if !self.has_assignment {
            return lacks("has live ranges without sizes: the file *-buffer-assignment.txt of the same program is needed too");
        }
        if !self.has_ranges {
            return lacks(
                "has sizes without live ranges: the file *-live-range.txt of the same program is needed too; if XLA does not \
                 write it, add --xla_dump_buffer_assignment_analysis to XLA_FLAGS",
            );
        }
        let end = self.last.saturating_add(1);
        let mut found = Vec::new();
        for allocation in &self.allocations {
            match allocation.kind {
                Kind::Thread => {}
                Kind::WholeProgram => found.push(Lifetime { start: 0, end, bytes: allocation.bytes }),
                Kind::Values => found.extend(self.buffers(&allocation.values)?),
            }
        }
        found.retain(|lifetime| lifetime.bytes > 0);
        Ok(found)
    }

    /// Joins the values of an allocation that overlap in address and in time.
    fn buffers(&self, values: &[Value]) -> Result<Vec<Lifetime>, TraceError> {
        let mut by_start = Vec::new();
        for value in values {
            let &(start, last) = self.ranges.get(&value.name).ok_or_else(|| TraceError::Line {
                line: value.line,
                problem: format!("{} has no live range: both files must be of the same program", value.name),
            })?;
            by_start.push((start, last, value));
        }
        by_start.sort_by_key(|&(start, last, value)| (start, last, value.offset));
        let mut found = Vec::new();
        // The latest buffer at each address, by its offset: they do not overlap.
        let mut latest: BTreeMap<u64, Placed> = BTreeMap::new();
        for (start, last, value) in by_start {
            let mut joined = Placed { start, last, end_offset: value.offset.saturating_add(value.bytes) };
            let mut offset = value.offset;
            while let Some((&at, &other)) =
                latest.range(..joined.end_offset).next_back().filter(|(_, other)| other.end_offset > value.offset)
            {
                latest.remove(&at);
                if other.last < start {
                    found.push(other.lifetime(at));
                } else {
                    offset = offset.min(at);
                    joined = joined.with(other);
                }
            }
            latest.insert(offset, joined);
        }
        found.extend(latest.iter().map(|(&at, placed)| placed.lifetime(at)));
        Ok(found)
    }
}

/// A buffer in its allocation.
#[derive(Clone, Copy)]
struct Placed {
    start: u64,
    /// The last instruction at which it is live.
    last: u64,
    end_offset: u64,
}

impl Placed {
    fn with(self, other: Placed) -> Placed {
        Placed {
            start: self.start.min(other.start),
            last: self.last.max(other.last),
            end_offset: self.end_offset.max(other.end_offset),
        }
    }

    fn lifetime(self, offset: u64) -> Lifetime {
        Lifetime { start: self.start, end: self.last.saturating_add(1), bytes: self.end_offset - offset }
    }
}

fn number(text: Option<&str>, what: &str) -> Result<u64, String> {
    let text = text.unwrap_or("").trim();
    text.parse().map_err(|_| format!("{text:?} is not a {what}"))
}

/// Reads the rest of a line such as `allocation 4: size 4096, preallocated-temp:`.
fn allocation(rest: &str) -> Result<Allocation, String> {
    let (_, rest) = rest.split_once(": size ").ok_or("the allocation has no size")?;
    let mut parts = rest.trim_end_matches(':').split(", ");
    let bytes = number(parts.next(), "size")?;
    let mut kind = Kind::Values;
    for part in parts {
        match part {
            "thread-local" => kind = Kind::Thread,
            "constant" => kind = Kind::WholeProgram,
            _ if part.starts_with("parameter ") => kind = Kind::WholeProgram,
            _ => {}
        }
    }
    Ok(Allocation { bytes, kind, values: Vec::new() })
}

/// Reads the rest of a line such as ` value: <36 fusion.2{0} @0> (size=4096,offset=512): f32[1024]{0}`; `None` for a value in
/// the host's memory or without bytes.
fn value(rest: &str, line: usize) -> Result<Option<Value>, String> {
    let (inside, rest) = rest.split_once('>').ok_or("the value has no end")?;
    let name = inside.split_ascii_whitespace().nth(1).ok_or("the value has no name")?;
    let place = rest.trim_start().strip_prefix("(size=").and_then(|rest| rest.split(')').next());
    let (bytes, offset) = place.and_then(|place| place.split_once(",offset=")).ok_or("the value has no size and offset")?;
    let (bytes, offset) = (number(Some(bytes), "size")?, number(Some(offset), "offset")?);
    let is_left_out = bytes == 0 || inside.split_ascii_whitespace().any(|word| word == HOST);
    let name = if name.ends_with('}') { name.to_owned() } else { format!("{name}{{}}") };
    Ok((!is_left_out).then_some(Value { name, offset, bytes, line }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two matrices are multiplied; `sum` replaces `dot` in place, and `copy` takes its room afterwards.
    const SIZES: &str = "BufferAssignment:
allocation 0: size 4096, parameter 0, shape |f32[32,32]| at ShapeIndex {}:
 value: <0 p0 @0> (size=4096,offset=0): f32[32,32]{1,0}
allocation 1: size 64, constant:
 value: <9 c @0> (size=64,offset=0): f32[16]{0}
allocation 2: size 4, thread-local:
 value: <3 x @0> (size=4,offset=0): f32[]
allocation 3: size 512, output shape is |f32[128]|, maybe-live-out:
 value: <8 out{0} (phi) @0> (size=512,offset=0): f32[128]{0}
allocation 4: size 6144, preallocated-temp:
 value: <4 dot @0> (size=4096,offset=0): f32[32,32]{1,0}
 value: <5 sum @0> (size=4096,offset=0): f32[32,32]{1,0}
 value: <6 side @0> (size=2048,offset=4096): f32[512]{0}
 value: <7 copy @0> (size=6144,offset=0): f32[1536]{0}
 value: <11 far @5> (size=100,offset=0): f32[25]{0}

Total bytes used: 10820 (10.57KiB)

Used values:
<0 p0 @0>
 positions:
  p0
 value: none of this is read
";
    const RANGES: &str = "HloLiveRange (max 6):
  InstructionSequence:
    0:p0
    1:c
    2:dot
  BufferLiveRange:
    p0{}:0-6
    c{}:1-2
    dot{}:2-3
    sum{}:3-4
    side{}:2-4
    copy{}:5-5
    out{0}:6-6
    far{}:1-2
  Live ranges at 3 (peak):
    dot: 4096 bytes
";

    fn of(text: &str) -> Result<Vec<Lifetime>, String> {
        read(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn lifetime(start: u64, end: u64, bytes: u64) -> Lifetime {
        Lifetime { start, end, bytes }
    }

    #[test]
    fn a_buffer_has_its_values_place_and_time() {
        let (whole, constant, out) = (lifetime(0, 7, 4096), lifetime(0, 7, 64), lifetime(6, 7, 512));
        let (replaced, side, copy) = (lifetime(2, 5, 4096), lifetime(2, 5, 2048), lifetime(5, 6, 6144));
        let expected = Ok(vec![whole, constant, out, side, replaced, copy]);
        assert_eq!(of(&(SIZES.to_owned() + RANGES)), expected);
        assert_eq!(of(&(RANGES.to_owned() + SIZES)), expected, "in either order");
        assert_eq!(of(&(SIZES.to_owned() + RANGES).replace('\n', "\r\n")), expected);
        assert!(is_dump(SIZES.as_bytes()) && is_dump(RANGES.as_bytes()) && !is_dump(b"HloModule m"));
    }

    #[test]
    fn parts_of_a_buffer_that_are_live_at_once_are_joined() {
        let ba = "BufferAssignment:\nallocation 0: size 30, preallocated-temp:\n value: <1 a @0> (size=10,offset=0): x\n \
                  value: <2 b @0> (size=10,offset=20): x\n value: <3 c @0> (size=20,offset=5): x\n \
                  value: <4 d @0> (size=30,offset=0): x\n";
        let ranges = |c: &str| {
            format!("HloLiveRange (max 9):\n  BufferLiveRange:\n    a{{}}:0-2\n    b{{}}:1-2\n    c{{}}:{c}\n    d{{}}:8-9\n")
        };
        assert_eq!(of(&format!("{ba}{}", ranges("2-4"))), Ok(vec![lifetime(0, 5, 30), lifetime(8, 10, 30)]));
        let apart = vec![lifetime(1, 3, 10), lifetime(0, 3, 10), lifetime(3, 5, 20), lifetime(8, 10, 30)];
        assert_eq!(of(&format!("{ba}{}", ranges("3-4"))), Ok(apart));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let sizes =
            |value: &str| format!("BufferAssignment:\nallocation 0: size 8, preallocated-temp:\n value: <{value}\n{RANGES}");
        let ranges = |range: &str| format!("{SIZES}HloLiveRange (max 6):\n  BufferLiveRange:\n    {range}\n");
        let huge = format!("{}\n{RANGES}", "y".repeat(200_000));
        for (text, says) in [
            (RANGES.to_owned(), "line 1: has live ranges without sizes: the file *-buffer-assignment.txt"),
            (sizes("1 x> (size=8,offset=0)").replace(RANGES, ""), "line 1: has sizes without live ranges"),
            (sizes("1 x @0> (size=8,offset=0): f32[2]"), "line 3: x{} has no live range: both files"),
            (sizes("1 x @0"), "line 3: the value has no end"),
            (sizes("1> (size=8,offset=0)"), "line 3: the value has no name"),
            (sizes("1 x @0> (size=8)"), "line 3: the value has no size and offset"),
            (sizes("1 x @0> (size=8KiB,offset=0)"), "line 3: \"8KiB\" is not a size"),
            (sizes("").replace("size 8", "size -8"), "line 2: \"-8\" is not a size"),
            (sizes("").replace("allocation 0: size 8, preallocated-temp:\n", ""), "line 2: the value has no end"),
            (ranges("p0{}:5-3"), "line 3: p0{} is live from 5 to 3"),
            (ranges("p0{}:5"), "line 3: \"5\" is not a live range"),
            (ranges("p0"), "line 3: \"p0\" is not a live range"),
            (huge, "has live ranges without sizes"),
        ] {
            let found = of(&text).expect_err(says);
            assert!(found.contains(says), "{says}: {found}");
        }
    }
}
