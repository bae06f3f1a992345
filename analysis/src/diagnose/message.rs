//! Diagnoses an out-of-memory error from its message alone.
//!
//! Every figure in a message is rounded to two decimals of its unit. If a comparison depends on the last digit, the answer
//! says so. PyTorch's allocator prints the size that it *tried*: that of a segment, which for small and medium requests is
//! larger than the request.
//!
//! The message counts the free bytes of private pools as allocated (spec 2.13). They are not live, so they are subtracted here,
//! but they can serve only these pools.
//!
//! If a part of the message is missing, the verdict is given only if no missing figure could change it; each missing
//! figure may have any value that the rest allows.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB};
use parkade_recording::message::{OutOfMemoryMessage, ProcessUse, Size, Source};

/// The result of comparing rounded figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Certainty {
    /// The comparison holds.
    Yes,
    /// The comparison does not hold.
    No,
    /// The figures are equal to within their rounding.
    LastDigit,
}

impl Certainty {
    /// Returns whether `left` is at least `right`.
    #[must_use]
    pub fn at_least(left: Size, right: Size) -> Certainty {
        if left.least() >= right.most() {
            Certainty::Yes
        } else if left.most() < right.least() {
            Certainty::No
        } else {
            Certainty::LastDigit
        }
    }
}

parkade_recording::names! {
    Certainty {
        Certainty::Yes => "yes",
        Certainty::No => "no",
        Certainty::LastDigit => "last_digit",
    }
}

/// The reason why the request failed, as far as the message shows. If several verdicts apply, the first in this order
/// counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageVerdict {
    /// The message contains a figure that no device has, so its figures cannot be trusted.
    ImpossibleFigures,
    /// More memory is in use than the device has: the driver moved memory to the host, as the Windows driver does.
    SpilledToHost,
    /// The program's own limit refused the request; the device had room.
    Limit,
    /// Other processes, or the rest of this one, hold the memory that would have served the request.
    HeldByOthers,
    /// The live bytes and the size tried exceed the memory, or nearly all the reserved memory is live.
    Capacity,
    /// The live bytes and the size tried would have fitted, but the free bytes were fragmented, waiting for events, or kept by
    /// private pools.
    Fragmentation,
    /// The device had that much memory free, and the limit in the message allowed it, so the refusal came from elsewhere.
    DeviceHadRoom,
    /// The request bypassed PyTorch's allocator and went directly to the driver.
    OutsideAllocator,
    /// The allocator itself failed, which is a known defect in some releases.
    KnownDefect,
    /// Host memory was short, not device memory.
    HostMemory,
    /// Nothing has failed yet: the allocator frees what it can and tries again.
    Warning,
    /// The message comes from another framework.
    OtherFramework,
    /// The figures are missing or not precise enough for a verdict.
    Undecided,
}

impl MessageVerdict {
    /// Returns the verdict that the message's source implies, or `None` if the figures decide.
    const fn of(source: Source) -> Option<MessageVerdict> {
        Some(match source {
            Source::PyTorch | Source::CudaMallocAsync | Source::Mps | Source::Summary => return None,
            Source::Fraction => MessageVerdict::Limit,
            Source::Assertion => MessageVerdict::KnownDefect,
            Source::Retry => MessageVerdict::Warning,
            Source::MainMemory | Source::System => MessageVerdict::HostMemory,
            Source::TensorFlow | Source::Jax | Source::Bfc | Source::Paddle | Source::CuPy | Source::Rmm | Source::Ggml => {
                MessageVerdict::OtherFramework
            }
            Source::Server | Source::Nccl | Source::Library | Source::Cuda | Source::Hip | Source::LevelZero | Source::Driver => {
                MessageVerdict::OutsideAllocator
            }
            Source::Kernel | Source::Plain => MessageVerdict::Undecided,
        })
    }
}

parkade_recording::names! {
    MessageVerdict {
        MessageVerdict::ImpossibleFigures => "impossible_figures",
        MessageVerdict::SpilledToHost => "spilled_to_host",
        MessageVerdict::Limit => "limit",
        MessageVerdict::HeldByOthers => "held_by_others",
        MessageVerdict::Capacity => "capacity",
        MessageVerdict::Fragmentation => "fragmentation",
        MessageVerdict::DeviceHadRoom => "device_had_room",
        MessageVerdict::OutsideAllocator => "outside_allocator",
        MessageVerdict::KnownDefect => "known_defect",
        MessageVerdict::HostMemory => "host_memory",
        MessageVerdict::Warning => "warning",
        MessageVerdict::OtherFramework => "other_framework",
        MessageVerdict::Undecided => "undecided",
    }
}

/// The figures that an out-of-memory message states. A field that the figures do not determine is `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageDiagnosis {
    /// The message.
    pub message: OutOfMemoryMessage,
    /// The smallest and the largest block that the request may have needed under the default segment sizes, in bytes.
    pub block_bytes: Option<(u64, u64)>,
    /// Live bytes: the bytes that the message calls allocated, less the free bytes of private pools.
    pub live: Option<Size>,
    /// Reserved bytes that are not live, including bytes in private pools.
    pub empty: Option<Size>,
    /// Whether the reserved but unallocated bytes outside private pools are at least the size tried.
    pub unallocated_suffices: Option<Certainty>,
    /// The sum of the live bytes and the size tried, in bytes.
    pub needed: Option<Size>,
    /// The most that the process could reserve: what it had reserved plus what the device had free, at most its limit.
    pub available: Option<Size>,
    /// Whether `available` is at least `needed`.
    pub available_suffices: Option<Certainty>,
    /// Whether the device had enough free memory for the size tried and the limit in the message allowed it.
    pub device_had_room: Option<Certainty>,
    /// Memory that was neither reserved by this allocator nor free: memory of other processes and of the rest of this one,
    /// including about 500 MiB used by the driver itself.
    pub held_by_others: Option<Size>,
    /// The process id that the message lists for this process, as seen from a container's host.
    pub own_pid: Option<u32>,
    /// Why the request failed.
    pub verdict: MessageVerdict,
}

/// Roughly how much device memory the driver itself takes for a process (docs/driver-facts.md).
const DRIVER_BYTES: u64 = 500 * MIB;
const GIB: u64 = 1 << 30;
/// No device has this much memory: a figure this large is an error in the program or in the driver.
pub const NO_DEVICE_BYTES: u64 = 1 << 50;

/// Diagnoses an out-of-memory error from its message alone.
#[must_use]
pub fn diagnose_message(message: OutOfMemoryMessage) -> MessageDiagnosis {
    let OutOfMemoryMessage { tried, free, limit, allocated, reserved, unallocated, private_pools, .. } = message;
    let private = private_pools.unwrap_or(NOTHING);
    let live = allocated.filter(|_| message.is_private_known()).map(|allocated| allocated.minus(private));
    let empty = unallocated.map(|unallocated| unallocated.plus(private));
    let needed = sum(live, tried);
    let reachable = sum(reserved, free).filter(|_| message.is_limit_known());
    let available = reachable.map(|reachable| limit.filter(|limit| limit.bytes < reachable.bytes).unwrap_or(reachable));
    let room = || {
        let free = free.filter(|_| message.is_limit_known())?;
        let Some(limit) = limit else { return Some(free) };
        Some(limit.minus(reserved?)).map(|left| if left.bytes < free.bytes { left } else { free })
    };
    let own_pid = own_pid(&message);
    let block_bytes = tried.filter(|_| message.source == Source::PyTorch).map(|tried| (smallest_block(tried), tried.most()));
    let mut diagnosis = MessageDiagnosis {
        block_bytes,
        live,
        empty,
        unallocated_suffices: compare(unallocated, tried),
        needed,
        available,
        available_suffices: compare(available, needed),
        device_had_room: compare(room(), tried),
        held_by_others: held_by_others(&message),
        own_pid,
        verdict: MessageVerdict::Undecided,
        message,
    };
    diagnosis.verdict = MessageVerdict::of(diagnosis.message.source).unwrap_or_else(|| diagnosis.by_figures());
    diagnosis
}

const NOTHING: Size = Size { bytes: 0, within: 0 };

fn compare(left: Option<Size>, right: Option<Size>) -> Option<Certainty> {
    Some(Certainty::at_least(left?, right?))
}

fn sum(left: Option<Size>, right: Option<Size>) -> Option<Size> {
    Some(left?.plus(right?))
}

/// Returns whether `left` is certainly at least `right`.
fn suffices(left: Option<Size>, right: Option<Size>) -> bool {
    compare(left, right) == Some(Certainty::Yes)
}

/// Returns whether `left` is certainly less than `right`.
fn is_less(left: Option<Size>, right: Option<Size>) -> bool {
    compare(left, right) == Some(Certainty::No)
}

/// Returns the memory that is neither reserved by this allocator nor free.
fn held_by_others(message: &OutOfMemoryMessage) -> Option<Size> {
    // The size of the driver's pool is not known under this backend, so its cache counts as held by others.
    let own = if message.source == Source::CudaMallocAsync { message.allocated } else { message.reserved };
    Some(message.total?.minus(own?.plus(message.free?)))
}

/// Returns the process id that a container's host gives this process: if the message does not name this process, the id of
/// the only listed process that uses at least as much as is reserved here, and little more.
fn own_pid(message: &OutOfMemoryMessage) -> Option<u32> {
    let reserved = message.reserved?;
    let is_own = |used: Size| used.most() >= reserved.least() && used.bytes <= reserved.bytes.saturating_add(3 * DRIVER_BYTES);
    let mut own = message.processes.iter().filter(|process| is_own(process.used));
    let first = own.next().filter(|_| reserved.bytes > 0 && message.processes.iter().all(|process| process.pid.is_some()))?;
    if own.next().is_some() { None } else { first.pid }
}

impl MessageDiagnosis {
    fn by_figures(&self) -> MessageVerdict {
        let message = &self.message;
        // The missing part of a truncated message may contain a figure that leads to a different verdict.
        let has_all = [message.total, message.free, message.reserved].iter().all(Option::is_some);
        let is_known = message.is_complete || (has_all && message.is_limit_known());
        if self.has_absurd_size() {
            return MessageVerdict::ImpossibleFigures;
        } else if !is_known {
            let is_beyond =
                message.tried.is_some_and(|tried| exceeds([message.total, None, None], self.live.unwrap_or(NOTHING), tried));
            return if is_beyond { MessageVerdict::Capacity } else { MessageVerdict::Undecided };
        }
        if self.is_impossible() {
            MessageVerdict::ImpossibleFigures
        } else if is_less(message.total, message.allocated) || is_less(message.total, message.reserved) {
            MessageVerdict::SpilledToHost
        } else if self.is_limited() {
            MessageVerdict::Limit
        } else if self.is_held() {
            MessageVerdict::HeldByOthers
        } else if self.is_full() {
            MessageVerdict::Capacity
        } else if self.is_in_pieces() {
            MessageVerdict::Fragmentation
        } else if self.had_room() {
            MessageVerdict::DeviceHadRoom
        } else {
            MessageVerdict::Undecided
        }
    }

    /// Returns whether any size is one that no device has.
    fn has_absurd_size(&self) -> bool {
        let OutOfMemoryMessage { tried, total, free, allocated, reserved, .. } = self.message;
        let used = self.message.processes.iter().map(|process| process.used);
        let figures = [tried, total, free, allocated, reserved].into_iter().flatten();
        figures.chain(used).any(|size| size.bytes >= NO_DEVICE_BYTES)
    }

    /// Returns whether the figures contradict each other.
    fn is_impossible(&self) -> bool {
        let OutOfMemoryMessage { total, free, allocated, reserved, .. } = self.message;
        is_less(total, free) || is_less(reserved, allocated)
    }

    /// Returns whether the program's own limit refused memory that the device had.
    fn is_limited(&self) -> bool {
        let OutOfMemoryMessage { source, tried, total, free, limit, allocated, reserved, .. } = self.message;
        match source {
            // This backend compares requested bytes and has no cache.
            Source::CudaMallocAsync => is_less(limit, sum(allocated, tried)) && !is_less(total, sum(allocated, tried)),
            Source::Mps => false,
            _ => is_less(limit, total) && suffices(free, tried) && !suffices(limit, sum(reserved, tried)),
        }
    }

    /// Returns whether the memory that others hold would have served the request and the unallocated memory here would not,
    /// or whether others hold most of the device.
    fn is_held(&self) -> bool {
        let (Some(held), Some(total)) = (self.others_bytes(), self.message.total) else { return false };
        let OutOfMemoryMessage { tried, free, unallocated, .. } = self.message;
        let is_much = held > GIB.min(total.bytes / 10);
        let would_fit =
            sum(free, Some(Size { bytes: held, within: 0 })).zip(tried).is_some_and(|(room, tried)| room.bytes >= tried.bytes);
        let is_short = !suffices(free, tried) && (!suffices(unallocated, tried) || held > total.bytes / 2);
        is_much && would_fit && is_short
    }

    /// Returns the memory that others hold, without the driver's memory for this process.
    #[must_use]
    pub fn others_bytes(&self) -> Option<u64> {
        let own = self.own_pid.and_then(|own| self.message.processes.iter().find(|process| process.pid == Some(own)));
        // The figure for this process includes the driver's own memory.
        let beyond = own.zip(self.message.reserved).map(|(own, reserved)| own.used.minus(reserved).bytes);
        Some(self.held_by_others?.bytes.saturating_sub(beyond.unwrap_or(DRIVER_BYTES)))
    }

    /// Returns the message's figure for this process, if it names this process or lists it under its id on the host.
    #[must_use]
    pub fn own_process(&self) -> Option<&ProcessUse> {
        self.message.processes.iter().find(|process| process.pid.is_none() || process.pid == self.own_pid)
    }

    /// Returns the memory that this process holds outside of this allocator, if the message says how much the process uses.
    #[must_use]
    pub fn own_outside(&self) -> Option<Size> {
        Some(self.own_process()?.used.minus(self.message.reserved?))
    }

    /// Returns whether more memory is needed than is available, or nearly all the reserved memory is live.
    fn is_full(&self) -> bool {
        let OutOfMemoryMessage { source, tried, total, free, limit, reserved, others, .. } = self.message;
        let live = self.live.unwrap_or(NOTHING).plus(others.unwrap_or(NOTHING));
        let is_beyond = |request| exceeds([total, limit, self.available], live, request);
        let least = |tried| self.block_bytes.map_or(tried, |(bytes, _)| Size { bytes, within: 0 });
        if source == Source::Mps {
            // This allocator compares exactly these figures.
            return tried.zip(limit).is_some_and(|(tried, limit)| Certainty::at_least(limit, live.plus(tried)) != Certainty::Yes);
        }
        let is_nearly_full = self.empty.zip(reserved).is_some_and(|(left, all)| is_scarce(left, all)) && is_less(free, tried);
        tried.is_some_and(|tried| is_beyond(tried) && is_beyond(least(tried))) || is_nearly_full
    }

    /// Returns whether the free bytes would have held the request if they had been contiguous and available.
    fn is_in_pieces(&self) -> bool {
        let OutOfMemoryMessage { source, tried, free, allocated, unallocated, reserved, active, .. } = self.message;
        if source == Source::Summary {
            // With only a table: whether most of the reserved memory is unallocated or waiting.
            let waiting = active.zip(allocated).map(|(active, allocated)| active.minus(allocated));
            return waiting.or(unallocated).zip(reserved).is_some_and(|(left, all)| left.bytes > all.bytes / 4);
        }
        if suffices(free, tried) {
            // Unallocated memory counts only if there is more of it than every program has.
            let is_much = unallocated.zip(reserved).is_some_and(|(left, all)| !is_scarce(left, all));
            return is_much && suffices(unallocated, tried);
        }
        suffices(unallocated, tried) || suffices(self.available, sum(allocated, tried)) || suffices(self.available, self.needed)
    }

    fn had_room(&self) -> bool {
        let OutOfMemoryMessage { is_complete, tried, total, free, reserved, source, .. } = self.message;
        match (source, free) {
            (Source::Mps, _) => true,
            // The message is from a port of PyTorch that never states the free memory.
            (Source::PyTorch, None) if is_complete => suffices(total, sum(reserved, tried)),
            _ => self.device_had_room == Some(Certainty::Yes),
        }
    }
}

/// Less than 3 % of the reserved memory.
fn is_scarce(unallocated: Size, reserved: Size) -> bool {
    u128::from(unallocated.bytes) * 100 < u128::from(reserved.bytes) * 3
}

/// Returns whether a request, alone or together with the live bytes, certainly exceeds one of the known bounds on what the
/// process could have. The live bytes are a difference of rounded figures, and its rounding error may hide that the request
/// alone is too large; live bytes are never negative.
fn exceeds(bounds: [Option<Size>; 3], live: Size, request: Size) -> bool {
    let is_short = |bound, needed| Certainty::at_least(bound, needed) == Certainty::No;
    bounds.into_iter().flatten().any(|bound| is_short(bound, live.plus(request)) || is_short(bound, request))
}

/// Returns the smallest block for which the allocator tries a segment of this size; the segment's own size if no rule leads
/// to a segment of that size.
fn smallest_block(tried: Size) -> u64 {
    let policy = PyTorch::new(Settings::default());
    let (least, most) = (tried.least(), tried.most());
    let is_tried = |block: u64| policy.segment_for(Bytes(block)).is_some_and(|segment| (least..=most).contains(&segment.get()));
    // The block sizes at which the segment size changes (spec 1.6): the start of each class and, above the classes, every 2
    // MiB.
    let granule = least.checked_next_multiple_of(2 * MIB).map_or(0, |segment| segment.saturating_sub(2 * MIB));
    [1, MIB + 1, 10 * MIB, granule.saturating_add(1)].into_iter().filter(|&block| is_tried(block)).min().unwrap_or(tried.bytes)
}

#[cfg(test)]
mod tests {
    use parkade_recording::message::MessageLog;
    use proptest::prelude::*;

    use super::*;

    fn bytes(size: Option<Size>) -> u64 {
        size.expect("a figure").bytes
    }

    fn diagnosed(text: &str) -> MessageDiagnosis {
        diagnose_message(OutOfMemoryMessage::parse(text).expect("a message"))
    }

    fn old(tried: &str, allocated: &str, free: &str, reserved: &str) -> MessageDiagnosis {
        diagnosed(&format!(
            "CUDA out of memory. Tried to allocate {tried} (GPU 2; 39.59 GiB total capacity; {allocated} already allocated; \
             {free} free; {reserved} reserved in total by PyTorch)"
        ))
    }

    /// This is scenario C4 of the documents.
    #[test]
    fn unallocated_bytes_that_would_have_been_enough_are_fragmentation() {
        let c4 = old("4.88 GiB", "28.60 GiB", "3.92 GiB", "33.95 GiB");
        assert_eq!(c4.message.unallocated.expect("a figure").to_string(), "5.35 GiB");
        assert_eq!((c4.verdict, c4.unallocated_suffices), (MessageVerdict::Fragmentation, Some(Certainty::Yes)));
        assert_eq!(c4.device_had_room, Some(Certainty::No));
        assert_eq!(c4.held_by_others.expect("figures").to_string(), "1.72 GiB");
        // The smallest request for which the allocator tries 4.88 GiB is smaller by at most a granule.
        let (least, most) = c4.block_bytes.expect("a size");
        assert!(least < bytes(c4.message.tried) && bytes(c4.message.tried) < most && most - least < 16 << 20, "{least} {most}");
    }

    #[test]
    fn a_full_device_is_capacity() {
        let full = old("4.88 GiB", "38.60 GiB", "0.02 GiB", "38.95 GiB");
        assert_eq!((full.verdict, full.available_suffices), (MessageVerdict::Capacity, Some(Certainty::No)));
        let (needed, available) = (full.needed.expect("figures"), full.available.expect("figures"));
        let short_bytes = needed.bytes - available.bytes;
        assert!(short_bytes.abs_diff(451 * GIB / 100) <= needed.within + available.within, "{short_bytes}");
    }

    /// Neither the cache nor the device has enough room for the request on its own, but both together do.
    #[test]
    fn memory_in_two_places_is_fragmentation() {
        let split = old("4.88 GiB", "32.60 GiB", "3.92 GiB", "34.90 GiB");
        assert_eq!((split.unallocated_suffices, split.available_suffices), (Some(Certainty::No), Some(Certainty::Yes)));
        assert_eq!(split.verdict, MessageVerdict::Fragmentation);
    }

    #[test]
    fn a_comparison_may_depend_on_the_last_digit() {
        let edge = old("4.88 GiB", "34.30 GiB", "0.00 GiB", "39.18 GiB");
        assert_eq!((edge.unallocated_suffices, edge.verdict), (Some(Certainty::LastDigit), MessageVerdict::Undecided));
        assert_eq!(old("4.88 GiB", "34.30 GiB", "0.00 GiB", "39.22 GiB").verdict, MessageVerdict::Fragmentation);
        assert_eq!(old("4.88 GiB", "34.30 GiB", "0.00 GiB", "39.13 GiB").verdict, MessageVerdict::Capacity);
    }

    /// The allocator tries a 20 MiB segment for any request from 1 to 10 MiB.
    #[test]
    fn the_request_may_be_smaller_than_the_segment_that_is_tried() {
        let least = |tried: &str| old(tried, "28.60 GiB", "0 bytes", "28.70 GiB").block_bytes.map(|(least, _)| least);
        assert_eq!((least("20.00 MiB"), least("2.00 MiB")), (Some(MIB + 1), Some(1)));
    }

    /// No program uses a device down to the last byte.
    #[test]
    fn a_device_of_which_hardly_anything_is_unallocated_is_full() {
        assert_eq!(old("2.00 MiB", "38.60 GiB", "0 bytes", "39.00 GiB").verdict, MessageVerdict::Capacity);
        assert_eq!(old("2.00 MiB", "37.60 GiB", "0 bytes", "39.00 GiB").verdict, MessageVerdict::Fragmentation);
    }

    #[test]
    fn others_hold_what_would_have_served() {
        let held = old("4.88 GiB", "8.60 GiB", "0.02 GiB", "8.95 GiB");
        assert_eq!((held.verdict, held.others_bytes().map(|bytes| bytes >> 30)), (MessageVerdict::HeldByOthers, Some(30)));
        // The unallocated memory here would serve the request unless others hold most of the device.
        assert_eq!(old("1.00 GiB", "20.00 GiB", "0 bytes", "22.00 GiB").verdict, MessageVerdict::Fragmentation);
        assert_eq!(old("1.00 GiB", "5.00 GiB", "0 bytes", "7.00 GiB").verdict, MessageVerdict::HeldByOthers);
        // Even without the others, the request would not fit.
        assert_eq!(old("30.00 GiB", "20.00 GiB", "0 bytes", "22.00 GiB").verdict, MessageVerdict::Capacity);
    }

    /// The host of a container numbers processes differently from the container.
    #[test]
    fn this_process_is_none_of_the_others() {
        let of = |used: &str| {
            diagnosed(&format!(
                "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 0.10 GiB is free. Process \
                 712 has {used} GiB memory in use. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 0.40 GiB is reserved by \
                 PyTorch but unallocated."
            ))
        };
        assert_eq!((of("15.20").own_pid, of("15.20").verdict), (Some(712), MessageVerdict::Capacity));
        assert_eq!((of("1.50").own_pid, of("1.50").verdict), (None, MessageVerdict::HeldByOthers));
    }

    #[test]
    fn figures_that_cannot_be_are_said() {
        let verdict = |tried: &str, allocated: &str, free: &str, reserved: &str| old(tried, allocated, free, reserved).verdict;
        assert_eq!(verdict("17179869183.95 GiB", "1.00 GiB", "2.00 GiB", "3.00 GiB"), MessageVerdict::ImpossibleFigures);
        assert_eq!(verdict("1.00 GiB", "3.00 GiB", "2.00 GiB", "2.00 GiB"), MessageVerdict::ImpossibleFigures);
        assert_eq!(verdict("1.00 GiB", "3.00 GiB", "40.00 GiB", "4.00 GiB"), MessageVerdict::ImpossibleFigures);
        assert_eq!(verdict("1.00 GiB", "50.00 GiB", "0 bytes", "51.00 GiB"), MessageVerdict::SpilledToHost);
    }

    fn with_private(total: &str, tried: &str, allocated: &str, private: &str, unallocated: &str) -> MessageDiagnosis {
        diagnosed(&format!(
            "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of which 0 bytes is free. \
             Including non-PyTorch memory, this process has {total} memory in use. Of the allocated memory {allocated} is \
             allocated by PyTorch, with {private} allocated in private pools (e.g., CUDA Graphs), and {unallocated} is reserved by \
             PyTorch but unallocated."
        ))
    }

    /// The message counts the free bytes of private pools as allocated (spec 2.13).
    #[test]
    fn free_bytes_of_private_pools_are_not_live() {
        let pools = with_private("20.90 GiB", "2.00 GiB", "20.00 GiB", "15.00 GiB", "500.00 MiB");
        assert_eq!((bytes(pools.live), bytes(pools.needed)), (5 * GIB, 7 * GIB));
        assert_eq!((bytes(pools.empty), bytes(pools.available)), (15 * GIB + 500 * MIB, 20 * GIB + 500 * MIB));
        assert_eq!((pools.verdict, pools.unallocated_suffices), (MessageVerdict::Fragmentation, Some(Certainty::No)));
        // Even without the pools' memory, the request would fit.
        let pieces = with_private("22.90 GiB", "2.00 GiB", "20.00 GiB", "15.00 GiB", "2.50 GiB");
        assert_eq!((pieces.verdict, pieces.unallocated_suffices), (MessageVerdict::Fragmentation, Some(Certainty::Yes)));
        // Even with the pools' memory, the request would not fit.
        let full = with_private("23.90 GiB", "2.00 GiB", "23.00 GiB", "1.00 GiB", "750.00 MiB");
        assert_eq!((full.verdict, bytes(full.live)), (MessageVerdict::Capacity, 22 * GIB));
        let edge = with_private("22.90 GiB", "2.00 GiB", "21.50 GiB", "1.00 GiB", "1.00 GiB");
        assert_eq!((edge.verdict, edge.available_suffices), (MessageVerdict::Undecided, Some(Certainty::LastDigit)));
    }

    /// The refusal may come from a limit that old messages do not print, or from a container's limit.
    #[test]
    fn if_the_device_had_room_something_else_refused() {
        let room = old("20.00 MiB", "19.90 GiB", "15.92 GiB", "20.00 GiB");
        assert_eq!((room.verdict, room.device_had_room), (MessageVerdict::DeviceHadRoom, Some(Certainty::Yes)));
        let limited = |limit: &str| {
            diagnosed(&format!(
                "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 130.00 GiB is \
                 free. {limit} GiB allowed; Of the allocated memory 5.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by \
                 PyTorch but unallocated."
            ))
        };
        assert_eq!(limited("6.80").verdict, MessageVerdict::DeviceHadRoom);
        assert_eq!((limited("6.70").verdict, limited("6.70").device_had_room), (MessageVerdict::Limit, Some(Certainty::No)));
        assert_eq!(limited("6.75").device_had_room, Some(Certainty::LastDigit));
    }

    #[test]
    fn a_limit_counts_if_it_is_smaller_than_the_device() {
        let text = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 130.00 GiB \
            is free. 6.00 GiB allowed; Of the allocated memory 5.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by \
            PyTorch but unallocated.";
        let limited = diagnosed(text);
        assert_eq!((bytes(limited.available), limited.verdict), (6 * GIB, MessageVerdict::Limit));
    }

    fn verdict(text: &str) -> Option<MessageVerdict> {
        Some(diagnose_message(MessageLog::read(text).messages.first()?.message.clone()).verdict)
    }

    #[test]
    fn a_verdict_is_reached_as_soon_as_nothing_can_change_it() {
        let new =
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. ";
        assert_eq!(verdict(new), Some(MessageVerdict::Undecided));
        assert_eq!(verdict(&new.replace("2.00 GiB", "25.00 GiB")), Some(MessageVerdict::Capacity), "no device has that");
        let old =
            "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 20.00 GiB already allocated; ";
        assert_eq!(verdict(old), Some(MessageVerdict::Undecided));
        assert_eq!(verdict(&old.replace("20.00", "22.50")), Some(MessageVerdict::Capacity));
        // The missing part of the message may name a limit.
        let room = diagnose_message(MessageLog::read(&new.replace("1.00 GiB", "9.00 GiB")).messages[0].message.clone());
        assert_eq!((room.verdict, room.device_had_room), (MessageVerdict::Undecided, None));
    }

    /// Generates sizes in hundredths of a GiB: tried, total, allocated, private, unallocated, free and limit.
    fn figures() -> impl Strategy<Value = ([u64; 6], Option<u64>)> {
        let most = || 1..3000_u64;
        ((most(), most(), most(), most(), most(), most()), proptest::option::of(most())).prop_map(
            |((tried, allocated, private, unallocated, free, others), limit)| {
                let private = private.min(allocated) * (tried % 2);
                let limit = limit.map(|more| allocated + unallocated + more);
                ([tried, allocated + unallocated + free + others, allocated, private, unallocated, free], limit)
            },
        )
    }

    fn texts([tried, total, allocated, private, unallocated, free]: [u64; 6], limit: Option<u64>) -> [String; 2] {
        let gib = |hundredths: u64| format!("{}.{:02} GiB", hundredths / 100, hundredths % 100);
        let allowed = limit.map_or(String::new(), |limit| format!("{} allowed; ", gib(limit)));
        let pools = if private == 0 {
            String::new()
        } else {
            format!("with {} allocated in private pools (e.g., CUDA Graphs), ", gib(private))
        };
        let (reserved, [tried, total, allocated, unallocated, free]) =
            (gib(allocated + unallocated), [tried, total, allocated, unallocated, free].map(gib));
        [
            format!(
                "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of which {free} is free. Process 7 \
                 has 1.00 GiB memory in use. {allowed}Of the allocated memory {allocated} is allocated by PyTorch, {pools}and \
                 {unallocated} is reserved by PyTorch but unallocated."
            ),
            format!(
                "CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; {allocated} already allocated; {free} free; \
                 {allowed}{reserved} reserved in total by PyTorch)"
            ),
        ]
    }

    #[test]
    fn more_than_the_device_has_is_more_whatever_the_rounded_rest_says() {
        // The live bytes are 2.73 GiB less 2.73 GiB, each rounded, so the comparison with free and reserved memory is decided
        // only by the last digit.
        let [whole, _] = texts([1273, 1271, 273, 273, 880, 117], None);
        let part = &whole[..whole.find(" of which").expect("the free bytes")];
        assert_eq!([verdict(&whole), verdict(part)], [Some(MessageVerdict::Capacity); 2]);
    }

    proptest! {
        /// Wherever a message is cut, the remaining part leads to the complete message's verdict or to none.
        #[test]
        fn a_cut_message_never_contradicts_the_whole((sizes, limit) in figures(), places in proptest::collection::vec(0..400_usize, 8)) {
            for text in texts(sizes, limit) {
                let whole = verdict(&text).expect("a message");
                for cut in places.iter().map(|place| place % text.len()) {
                    for part in [&text[..cut], &text[cut..]] {
                        let found = verdict(part);
                        let is_right = found.is_none_or(|found| found == whole || found == MessageVerdict::Undecided);
                        prop_assert!(is_right, "{:?} is not {:?}: {:?}", found, whole, part);
                    }
                }
            }
        }
    }
}
