//! TLSF, two-level segregated fit: a good fit in constant time, in a fixed area.
//!
//! Masmano, Ripoll, Crespo and Real, TLSF: a New Dynamic Memory Allocator for Real-Time Systems (ECRTS 2004),
//! as mattconte/tlsf has it (tlsf.c at commit deff9ab, with an FL_INDEX_MAX that is large enough for the area):
//! - the area is taken once, before the first request, and neither grows nor shrinks;
//! - each block has a header of 8 bytes, and a list by the size of the rest: 32 lists between two powers of
//!   two, below 256 bytes one per 8 bytes;
//! - a request is rounded up to the start of a list, so that every block of that list or a larger one serves
//!   it. The first list that is not empty yields the block that entered it last. A block of the list below is
//!   not looked at, even if it is large enough and the last one;
//! - a remainder of at least 32 bytes is split off; free neighbours coalesce at once. Both enter their lists.
//!
//! [`Tlsf::new`] rounds requests so that blocks with their headers are multiples of 512 bytes, because the
//! device's memory is used in aligned pieces; a request of 512 bytes then has 504 for the list. The headers lie
//! beside the memory: the device's is not written to. [`Tlsf::with_headers`] gives every request its header in
//! the area and aligns to 8 bytes, as the C library does.
//!
//! On one stream each decision is the original's: `tests/real_ones.rs` repeats recorded answers. The area is
//! all that the limit, or the device, allows; if the device refuses, nine tenths are tried, repeatedly, which
//! is not the original's: it is given its area. So are streams: a block of another stream is used after that
//! stream's work if the own stream has none, and neighbours of different streams stay apart until everything
//! was waited for. A private pool has areas of its own, as large as the requests they are made for, from what
//! the default pool's area leaves, and gives them back when it is gone.

use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, MIB, PoolClass};
use parkade::{BlockId, Heap, PoolSlot};

use crate::plain_ladder;
use crate::stamps::Stamps;

/// log2 of the number of lists between two powers of two.
const LISTS_LOG2: u32 = 5;
/// The width in bytes of the lists of the smallest blocks.
const NARROWEST: u64 = 8;
/// A block's header.
const HEADER: u64 = 8;
/// The fewest bytes of a block beside its header: room for two links and a copy of the size.
const SMALLEST: u64 = 24;
/// The unit of areas, and of blocks where headers lie beside the memory.
const UNIT: u64 = 512;
/// The unit of areas that are not limited, and of a private pool's.
const PAGE: u64 = 2 * MIB;

/// The rules of TLSF.
#[derive(Clone, Debug)]
pub struct Tlsf {
    /// Whether requests have headers in the area.
    has_headers: bool,
    /// Of blocks that become free.
    stamps: Stamps,
    step: Step,
}

/// The next step of the ladder for the current request.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Take a block of another stream.
    Others,
    /// Take the area, if there is none yet.
    Area,
    /// The device refused an area of so many bytes.
    Refused(u64),
    Borrow,
    Wait,
    Look,
    LookElsewhere,
    GiveUp,
}

/// The width in bytes of the list of a size: a power of two.
fn width(size: u64) -> u64 {
    (1 << size.max(1).ilog2().saturating_sub(LISTS_LOG2)).max(NARROWEST)
}

/// The least bytes, with the header, of the blocks that serve a request: the start of a list. `size` is the
/// request's block with its header.
fn start(size: u64) -> Option<u64> {
    let own = size - HEADER;
    own.checked_next_multiple_of(width(own))?.checked_add(HEADER)
}

/// The list of a block: the sizes, with the header, from the first to before the second.
fn list(size: u64) -> (u64, u64) {
    let own = size - HEADER;
    let (start, width) = (own & !(width(own) - 1), width(own));
    (start + HEADER, start + width + HEADER)
}

impl Tlsf {
    /// Blocks are multiples of 512 bytes; headers lie beside the memory.
    #[must_use]
    pub const fn new() -> Tlsf {
        Tlsf { has_headers: false, stamps: Stamps::new(), step: Step::GiveUp }
    }

    /// Blocks are multiples of 8 bytes, with headers in the area.
    #[must_use]
    pub const fn with_headers() -> Tlsf {
        Tlsf { has_headers: true, ..Tlsf::new() }
    }

    fn find(heap: &Heap, request: &Request) -> Option<BlockId> {
        let first = heap.first_at_least(request.pool, request.stream, Bytes(start(request.size.0)?))?;
        let (start, end) = list(first.size.0);
        heap.latest(request.pool, request.stream, Bytes(start)..Bytes(end)).map(|block| block.id)
    }

    /// The tightest block of another stream among those that serve the request.
    fn elsewhere(heap: &Heap, request: &Request) -> Option<BlockId> {
        let request = Request { size: Bytes(start(request.size.0)?), ..*request };
        plain_ladder::elsewhere(heap, &request).first().map(|block| block.id)
    }

    /// The area for the pool; `None` if it has one, or if the request would not fit.
    fn area(heap: &Heap, request: &Request) -> Option<u64> {
        let total = heap.device_total();
        let limit = heap.limit().filter(|limit| *limit < total);
        let left = limit.unwrap_or(total).saturating_sub(heap.reserved()).0;
        let needed = start(request.size.0)?;
        let bytes = if request.pool != PoolSlot::default_pool(PoolClass::Large) {
            needed.checked_next_multiple_of(PAGE)?
        } else if heap.reserved_in(request.pool) > Bytes::ZERO {
            return None;
        } else {
            let unit = if limit.is_some() { UNIT } else { PAGE };
            left / unit * unit
        };
        (needed <= bytes && bytes <= left).then_some(bytes)
    }

    /// Nine tenths; `None` below what the request needs.
    fn backed_off(bytes: u64, request: &Request) -> Option<u64> {
        let less = bytes / 10 * 9 / PAGE * PAGE;
        (less >= start(request.size.0)?).then_some(less)
    }

    /// This step's rung, if it has one, and the next step.
    fn climb(&self, heap: &Heap, request: &Request) -> (Option<Relief>, Step) {
        let ask = |bytes: u64| Relief::Release { blocks: Vec::new(), attempt: Attempt::AskFor(Bytes(bytes)) };
        let take = || Tlsf::elsewhere(heap, request).map(|block| Relief::Transfer { block, waits: true });
        match self.step {
            Step::Others => (take(), Step::Area),
            Step::Area => match Tlsf::area(heap, request) {
                Some(bytes) => (Some(ask(bytes)), Step::Refused(bytes)),
                None => (None, Step::Borrow),
            },
            Step::Refused(bytes) => match Tlsf::backed_off(bytes, request) {
                Some(bytes) => (Some(ask(bytes)), Step::Refused(bytes)),
                None => (None, Step::Borrow),
            },
            Step::Borrow => (Some(Relief::Borrow), Step::Wait),
            // While a graph is captured nothing waits.
            Step::Wait if heap.is_deferring() => (None, Step::GiveUp),
            Step::Wait => (Some(Relief::Wait), Step::Look),
            Step::Look => (Tlsf::find(heap, request).map(Relief::Reuse), Step::LookElsewhere),
            Step::LookElsewhere => (take(), Step::GiveUp),
            Step::GiveUp => (Some(Relief::GiveUp), Step::GiveUp),
        }
    }
}

impl Default for Tlsf {
    fn default() -> Tlsf {
        Tlsf::new()
    }
}

impl Policy for Tlsf {
    fn name(&self) -> &'static str {
        "tlsf"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        if self.has_headers {
            requested.checked_round_up(Bytes(NARROWEST))?.max(Bytes(SMALLEST)).checked_add(Bytes(HEADER))
        } else {
            requested.checked_round_up(Bytes(UNIT))
        }
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match Tlsf::find(heap, request) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(request.size),
        }
    }

    #[inline]
    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        whole.0 - request.size.0 >= SMALLEST + HEADER
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        let left_behind = plain_ladder::left_behind(heap, request);
        if rung == 0 || left_behind.is_some() {
            self.step = Step::Others;
        }
        if let Some(relief) = left_behind {
            return relief;
        }
        plain_ladder::first_relief(|| {
            let (relief, next) = self.climb(heap, request);
            self.step = next;
            relief
        })
    }

    #[inline]
    fn stamp(&self, _: PoolSlot) -> u64 {
        self.stamps.next_stamp()
    }
}

#[cfg(test)]
mod tests {
    use super::{list, start, width};

    /// 32 lists per power of two, none narrower than 8 bytes: from 256 bytes on, a list is 1/32 of the power
    /// of two below.
    #[test]
    fn lists() {
        let widths = [8, 255, 256, 511, 512, 1 << 20, (1 << 21) - 1, 1 << 30].map(width);
        assert_eq!(widths, [8, 8, 8, 8, 16, 32_768, 32_768, 1 << 25]);
        assert_eq!(list(1024 * 1024), (1_032_200, 1_048_584), "1,048,568 bytes beside the header");
    }

    /// A block of 1 MiB with its header is in the list that begins at 1,032,192 bytes, so a request for one
    /// needs a block of the next list.
    #[test]
    fn requests_begin_at_a_list() {
        assert_eq!(start(512), Some(512));
        assert_eq!(start(1 << 20), Some((1 << 20) + 8));
        assert_eq!(start(u64::MAX), None);
    }
}
