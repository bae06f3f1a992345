//! The texts that PyTorch's allocator shows to users, byte for byte: sizes with a unit, doubles, and the messages for
//! out-of-memory errors (spec 2.13) and invalid memory fractions (spec 2.15).

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::device::ProcessMemory;
use crate::units::Bytes;

/// A size in bytes as shown in messages: `1024 bytes`, `1.50 KiB`, `1024.00 MiB`, `139.80 GiB` (spec 2.14). Each unit
/// is used for values up to and including 1024; GiB is the largest unit.
#[must_use]
pub fn format_bytes(size: u64) -> String {
    match size {
        0..=0x400 => format!("{size} bytes"),
        0x401..=0x10_0000 => with_two_decimals(size, 10, "KiB"),
        0x10_0001..=0x4000_0000 => with_two_decimals(size, 20, "MiB"),
        _ => with_two_decimals(size, 30, "GiB"),
    }
}

/// `size` in units of 2^`shift`, as C prints the quotient of doubles with two decimals: ties go to the even digit.
fn with_two_decimals(size: u64, shift: u32, unit: &str) -> String {
    // Only the conversion to a double can lose digits. Division by a power of two is exact, so integers are
    // sufficient.
    let hundred_sizes = (size as f64) as u128 * 100;
    let hundredths = hundred_sizes >> shift;
    let remainder = hundred_sizes & ((1 << shift) - 1);
    let half = 1_u128 << (shift - 1);
    let rounds_up = remainder > half || (remainder == half && hundredths & 1 == 1);
    let hundredths = hundredths + u128::from(rounds_up);
    format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
}

/// A double as a C++ stream prints it by default: at most six significant digits, no trailing zeros, and an exponent
/// for values below 1e-4 or of at least 1e6.
#[must_use]
pub fn format_double(value: f64) -> String {
    format_significant(value, 6)
}

/// A double with at most `digits` significant digits (at least 1), as C's `%.*g` prints it.
#[must_use]
pub fn format_significant(value: f64, digits: u8) -> String {
    let after_first = i32::from(digits.max(1)) - 1;
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let size = value.abs();
    if size.is_nan() {
        return format!("{sign}nan");
    }
    if size.is_infinite() {
        return format!("{sign}inf");
    }
    let scientific = format!("{size:.*e}", after_first.unsigned_abs() as usize);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..=after_first).contains(&exponent) {
        let sign_of_exponent = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{}e{sign_of_exponent}{:02}", without_trailing_zeros(mantissa), exponent.abs());
    }
    // The scientific form determines the number of digits; those after the point are decimals.
    let decimals = usize::try_from(after_first - exponent).unwrap_or(0);
    format!("{sign}{}", without_trailing_zeros(&format!("{size:.decimals$}")))
}

fn without_trailing_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// PyTorch's message for a request of 2^60 bytes or more, which is refused before the cache or the device is consulted
/// (spec 1.1).
pub const MORE_THAN_ONE_EXABYTE: &str = "CUDA out of memory. Tried to allocate more than 1EB memory.";

/// The parts of the message that differ between PyTorch releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OomWords {
    /// The words before the device's memory.
    capacity: &'static str,
    /// Whether the message writes the device's index as the character with that code. For device 0, this character
    /// ends the message.
    device_is_character: bool,
    /// Whether the message mentions the limit.
    tells_limit: bool,
    /// Whether the message counts the memory cached by private pools.
    tells_private_pools: bool,
    /// The hint about settings at the end, double spaces included ([`Hint::ExpandableSegments`]).
    hint: &'static str,
}

impl OomWords {
    /// PyTorch 2.1.
    pub const PYTORCH_2_1: OomWords = OomWords {
        capacity: " has a total capacty of ",
        device_is_character: false,
        tells_limit: false,
        tells_private_pools: false,
        hint: " If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation \
               for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
    };

    /// PyTorch 2.2.
    pub const PYTORCH_2_2: OomWords = OomWords { tells_private_pools: false, ..OomWords::PYTORCH_2_4 };

    /// PyTorch 2.3.
    pub const PYTORCH_2_3: OomWords = OomWords { device_is_character: true, ..OomWords::PYTORCH_2_2 };

    /// PyTorch 2.4.
    pub const PYTORCH_2_4: OomWords = OomWords { tells_limit: false, ..OomWords::PYTORCH_2_5 };

    /// PyTorch 2.5 to 2.9.
    pub const PYTORCH_2_5: OomWords = OomWords {
        hint: " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid \
               fragmentation.  See documentation for Memory Management  \
               (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
        ..OomWords::PYTORCH_2_11
    };

    /// PyTorch 2.10.
    pub const PYTORCH_2_10: OomWords = OomWords {
        hint: " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid \
               fragmentation.  See documentation for Memory Management  \
               (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
        ..OomWords::PYTORCH_2_11
    };

    /// PyTorch 2.11 and later.
    pub const PYTORCH_2_11: OomWords = OomWords {
        capacity: " has a total capacity of ",
        device_is_character: false,
        tells_limit: true,
        tells_private_pools: true,
        hint: " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid \
               fragmentation.  See documentation for Memory Management  \
               (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)",
    };
}

/// PyTorch 2.15's hint if segments are already expandable.
const HINT_ON_ADDRESSES: &str = " expandable_segments is enabled. If instead the process is running out of virtual address space \
    (VSZ), expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the number of streams); \
    reduce it via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / expandable_segments_reserve_by_class.";

/// The hint at the end of an out-of-memory message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// No hint (2.14, if segments are already expandable).
    None,
    /// Make segments expandable.
    ExpandableSegments,
    /// Reserve fewer addresses (2.15, if segments are already expandable).
    Addresses,
    /// Reserve more addresses than this many bytes, which the request exceeds (2.15).
    LargerReserve(Bytes),
}

/// The actions of a rescue for a request ([`Relief::Rescue`](crate::policy::Relief::Rescue)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RescueTried {
    /// The number of handles that were moved to where the request needed them, or replaced.
    pub moved_handles: u64,
    /// The number of handles that were broken while partly in use.
    pub broken_handles: u64,
    /// The bytes in use in the broken handles, which were copied.
    pub copied_bytes: u64,
}

impl fmt::Display for RescueTried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handles = |count: u64| format!("{count} {}", if count == 1 { "handle" } else { "handles" });
        let (moved, broken) = (handles(self.moved_handles), handles(self.broken_handles));
        write!(
            f,
            "parkade tried to rescue this request: it moved {moved} and broke {broken}, but there is still not enough free memory."
        )
    }
}

/// The content of an out-of-memory error. Displays PyTorch's message, followed by what a rescue tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// The size of the segment that the allocator requested from the device, not the size of the request.
    pub segment_bytes: Bytes,
    /// The device's index.
    pub device: u32,
    /// The device's total memory, as the driver reports it.
    pub device_total: Bytes,
    /// The memory that no process holds, as the driver reports it.
    pub device_free: Bytes,
    /// The processes that hold memory, in the driver's order; empty if unknown.
    pub processes: Vec<ProcessMemory>,
    /// The limit, if a memory fraction below 1 has set one.
    pub limit: Option<Bytes>,
    /// `allocated_bytes.all.current`.
    pub allocated_bytes: i64,
    /// `reserved_bytes.all.current`.
    pub reserved_bytes: i64,
    /// The free bytes cached by private pools. The message calls them allocated.
    pub private_cached_bytes: Bytes,
    /// The hint at the end.
    pub hint: Hint,
    /// The release's words.
    pub words: &'static OomWords,
    /// What a rescue tried, if the policy has one.
    pub rescue: Option<RescueTried>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: Bytes| format_bytes(bytes.get());
        write!(f, "CUDA out of memory. Tried to allocate {}. GPU ", size(self.segment_bytes))?;
        match (self.words.device_is_character, char::from_u32(self.device)) {
            (true, None | Some('\0')) => return Ok(()),
            (true, Some(character)) => write!(f, "{character}")?,
            (false, _) => write!(f, "{}", self.device)?,
        }
        write!(f, "{}{} of which {} is free. ", self.words.capacity, size(self.device_total), size(self.device_free))?;
        for process in &self.processes {
            match process.pid {
                None => f.write_str("Including non-PyTorch memory, this process")?,
                Some(pid) => write!(f, "Process {pid}")?,
            }
            write!(f, " has {} memory in use. ", size(process.used))?;
        }
        if let Some(limit) = self.limit.filter(|_| self.words.tells_limit) {
            write!(f, "{} allowed; ", size(limit))?;
        }
        // PyTorch computes with unsigned numbers. Inconsistent counters wrap around there, so they do so here.
        let private = if self.words.tells_private_pools { self.private_cached_bytes.get() } else { 0 };
        let allocated = self.allocated_bytes.cast_unsigned().wrapping_add(private);
        let unallocated = self.reserved_bytes.cast_unsigned().wrapping_sub(allocated);
        write!(f, "Of the allocated memory {} is allocated by PyTorch, ", format_bytes(allocated))?;
        if private > 0 {
            write!(f, "with {} allocated in private pools (e.g., CUDA Graphs), ", format_bytes(private))?;
        }
        write!(f, "and {} is reserved by PyTorch but unallocated.", format_bytes(unallocated))?;
        self.write_hint(f)?;
        self.rescue.map_or(Ok(()), |tried| write!(f, " {tried}"))
    }
}

impl OutOfMemory {
    fn write_hint(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hint {
            Hint::None => Ok(()),
            Hint::ExpandableSegments => f.write_str(self.words.hint),
            Hint::Addresses => f.write_str(HINT_ON_ADDRESSES),
            Hint::LargerReserve(reserve) => write!(
                f,
                " This allocation exceeds the expandable-segment reserve of {} for this stream, and a single allocation cannot span \
                 expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or \
                 expandable_segments_reserve_by_class (or unset it) so that a segment is at least {}.",
                format_bytes(reserve.get()),
                format_bytes(self.segment_bytes.get())
            ),
        }
    }
}

/// PyTorch's message for a request that it rejects before asking the device (`throw_on_cudamalloc_oom`).
#[must_use]
pub fn rejection_message(requested: Bytes) -> String {
    format!(
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. \
         Requested size: {}",
        format_bytes(requested.get())
    )
}

/// PyTorch's message for a memory fraction outside 0 to 1 (spec 2.15).
#[must_use]
pub fn invalid_fraction_message(fraction: f64) -> String {
    format!("invalid fraction:{}. Please set within [0, 1].", format_double(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_their_unit_after_1024_of_it() {
        // These are exactly 1/8, 3/8 and so on; the C library rounds ties to the even digit.
        for (size, text) in [
            (0, "0 bytes"),
            (1024, "1024 bytes"),
            (1025, "1.00 KiB"),
            (1152, "1.12 KiB"),
            (1408, "1.38 KiB"),
            (1664, "1.62 KiB"),
            (1 << 20, "1024.00 KiB"),
            ((1 << 20) + 1, "1.00 MiB"),
            (1 << 30, "1024.00 MiB"),
            ((1 << 30) + 1, "1.00 GiB"),
            (u64::MAX, "17179869184.00 GiB"),
        ] {
            assert_eq!(format_bytes(size), text);
        }
    }

    #[test]
    fn doubles_are_printed_as_by_streams() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1e10, "1e+10"),
            (-0.5, "-0.5"),
            (1.000001, "1"),
            (1.00001, "1.00001"),
            (999999.5, "1e+06"),
            (100000.5, "100000"),
            (100001.5, "100002"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.000099999999, "0.0001"),
            (1e300, "1e+300"),
            (-1e-300, "-1e-300"),
            (5e-324, "4.94066e-324"),
            (f64::MAX, "1.79769e+308"),
            (f64::NAN, "nan"),
            (-f64::NAN, "-nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(format_double(value), text);
        }
    }

    #[test]
    fn seventeen_digits_are_exact() {
        for (value, text) in [(0.5, "0.5"), (0.1, "0.10000000000000001"), (1.0, "1"), (0.9899999983608723, "0.98999999836087227")]
        {
            assert_eq!(format_significant(value, 17), text);
        }
    }
}
