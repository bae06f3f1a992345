//! Best, first, next and worst fit on one growing region per stream.
//!
//! These policies were invented for this crate. They differ from first fit and so on in any other allocator: with
//! virtual memory, free pages in the middle of a region can be used at its end. A region is an expandable segment. If
//! no free block is large enough, pages are mapped at the lowest addresses with enough room. Blocks are multiples of
//! 512 bytes, every remainder is split off, and all adjacent free blocks coalesce. Whole free pages are released when
//! the device is out of memory or the program empties the cache. The policies therefore differ only in the choice of
//! the block.
//!
//! Textbooks describe a single region for everything. Here, every stream and every private pool has a separate region,
//! because memory that changes streams must wait. The limit is checked for all pages of the request, although a free
//! block at the end of the region may make some of them unnecessary.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use parkade::policy::{Placement, Policy, Request};
use parkade::units::{Bytes, DeviceAddress, PoolClass, StreamId};
use parkade::{BlockId, Heap, PoolSlot};

use crate::entry::{Entry, Named};
use crate::parameter::Parameter;

/// Sizes are multiples of this, so that addresses are aligned like cudaMalloc's.
const UNIT: Bytes = Bytes(512);
/// The smallest page of virtual memory, which is also the default page.
const SMALLEST_PAGE: Bytes = Bytes::mib(2);

pub(crate) const ENTRY: Entry = Entry::new(
    "best-fit-remap",
    "the smallest free block that is large enough; a growing region of remappable pages per stream",
    "Knuth, The Art of Computer Programming, 2.5",
    |values| {
        let fit = match values.text("fit") {
            "first" => Fit::First,
            "next" => Fit::Next,
            "worst" => Fit::Worst,
            _ => Fit::Best,
        };
        Box::new(GrowingRegion::new(fit).with_page(values.bytes("handle")))
    },
)
.with_parameters(&[
    Parameter::choice("fit", "which free block is taken", "best", &["best", "first", "next", "worst"]),
    Parameter::choice("handle", "the size of the driver's handles", "2MiB", HANDLES),
]);

/// The possible sizes of driver handles. A handle is created, mapped and released as a whole, so small handles need
/// less memory and large ones need fewer driver calls. 2 MiB is the smallest size that the driver can map; PyTorch's
/// expandable segments use 20 MiB for large requests.
const HANDLES: &[&str] = &["2MiB", "4MiB", "8MiB", "16MiB", "20MiB", "32MiB", "64MiB", "128MiB", "256MiB", "512MiB", "1GiB"];

pub(crate) const FIRST_FIT: Named = Named::listed(
    &ENTRY,
    "best-fit-remap:fit=first",
    "the lowest free block that is large enough; a growing region of remappable pages per stream",
    "Knuth, The Art of Computer Programming, 2.5, algorithm A",
    &[("fit", Cow::Borrowed("first"))],
);
pub(crate) const NEXT_FIT: Named = Named::listed(
    &ENTRY,
    "best-fit-remap:fit=next",
    "first fit starting where the last search ended; a growing region of remappable pages per stream",
    "Knuth, The Art of Computer Programming, 2.5, exercise 6",
    &[("fit", Cow::Borrowed("next"))],
);
pub(crate) const WORST_FIT: Named = Named::listed(
    &ENTRY,
    "best-fit-remap:fit=worst",
    "the largest free block; a growing region of remappable pages per stream",
    "Wilson and others, Dynamic Storage Allocation, IWMM 1995",
    &[("fit", Cow::Borrowed("worst"))],
);

/// The rule that chooses among the free blocks that are large enough for a request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Fit {
    /// The smallest block; among equal ones, the one with the lowest address. Knuth, The Art of Computer Programming,
    /// volume 1, section 2.5. PyTorch's allocator and others use this rule within their segments, limits and size
    /// classes; here, it is the only rule.
    #[default]
    Best,
    /// The block with the lowest address. Knuth, 2.5, algorithm A, with the list of free blocks in address order, as
    /// his algorithm B requires; Wilson, Johnstone, Neely and Boles, Dynamic Storage Allocation: A Survey and Critical
    /// Review (IWMM 1995, LNCS 986), compare it with other rules. Algorithm A allocates the high end of the block that
    /// it finds; this policy allocates the low end, as the allocator always does.
    First,
    /// The block with the lowest address after the point where the last search ended; if there is none, the search
    /// continues from the start. Knuth, 2.5, exercise 6, changes algorithm A in this way, with a pointer that roves
    /// through the list, so that short blocks do not accumulate in one area. Where exactly the pointer stops is this
    /// policy's own choice: at the remainder of the block whose low end was taken. If that remainder has coalesced,
    /// the search begins with the coalesced block. The policy does not see where new memory is mapped, so the pointer
    /// does not move when a segment grows.
    Next,
    /// The largest block; among equal ones, the one with the lowest address. Wilson and others (IWMM 1995). The idea
    /// is that the remainder of the largest block is large enough to be useful. According to textbooks, it is worse
    /// than first fit and best fit; it is included for comparison, as the opposite of best fit. A segment grows only
    /// when its largest free block is too small.
    Worst,
}

/// A policy that chooses free blocks by a rule and takes new memory from a growing region.
#[derive(Clone, Debug)]
pub struct GrowingRegion {
    fit: Fit,
    page: Bytes,
    /// The point where the last search of next fit ended: the end of the last block taken.
    rovers: BTreeMap<(PoolSlot, StreamId), DeviceAddress>,
}

impl GrowingRegion {
    /// Creates a policy with 2 MiB pages, the smallest size.
    #[must_use]
    pub const fn new(fit: Fit) -> GrowingRegion {
        GrowingRegion { fit, page: SMALLEST_PAGE, rovers: BTreeMap::new() }
    }

    /// Creates a policy with pages of a different size. Each page is a driver handle, mapped and released as a whole.
    /// A page as large as the entire memory makes the region a fixed area, in which nothing can be remapped. `page` is
    /// rounded up to a multiple of 2 MiB; if the result exceeds 64 bits, the largest multiple that does not is used.
    #[must_use]
    pub fn with_page(self, page: Bytes) -> GrowingRegion {
        let most = Bytes(Bytes::MAX.0 / SMALLEST_PAGE.0 * SMALLEST_PAGE.0);
        GrowingRegion { page: page.max(Bytes(1)).checked_round_up(SMALLEST_PAGE).unwrap_or(most), ..self }
    }

    /// The free block that serves the request.
    #[inline]
    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        let Request { pool, stream, size, .. } = *request;
        let lowest = |from| heap.lowest_at_least(pool, stream, size, from);
        let block = match self.fit {
            Fit::Best => heap.first_at_least(pool, stream, size),
            Fit::First => lowest(DeviceAddress(0)),
            Fit::Next => {
                let rover = self.rovers.entry((pool, stream)).or_insert(DeviceAddress(0));
                let block = lowest(*rover).or_else(|| lowest(DeviceAddress(0)))?;
                *rover = block.address.offset(size);
                Some(block)
            }
            Fit::Worst => heap.largest(pool, stream).filter(|block| block.size >= size),
        };
        block.map(|block| block.id)
    }
}

impl Default for GrowingRegion {
    fn default() -> GrowingRegion {
        GrowingRegion::new(Fit::default())
    }
}

impl Policy for GrowingRegion {
    fn name(&self) -> &'static str {
        "best-fit-remap"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(UNIT)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        true
    }

    fn page(&self, _: PoolSlot) -> Bytes {
        self.page
    }

    fn searches_by_address(&self) -> bool {
        matches!(self.fit, Fit::First | Fit::Next)
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match self.find(heap, request) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(request.size.checked_round_up(self.page).unwrap_or(Bytes::MAX)),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }
}
