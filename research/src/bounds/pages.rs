//! What an allocator needs that takes memory from the device in pages and may map them anywhere, at any time, at
//! no cost.
//!
//! There are two answers, on different assumptions (docs/bounds.md):
//!
//! - Memory is taken and released in whole pages, and no byte serves two live buffers. Then the load, rounded up
//!   to pages, is needed.
//! - In addition, each buffer of at least a page has pages of its own that it shares with no other buffer, and
//!   contents are never copied. Then each such buffer needs its size rounded up to pages, and the smaller ones
//!   together need their bytes rounded up to pages. Without smaller buffers this is exactly enough, since any free
//!   page can be mapped wherever one is needed. With them it is only a lower bound, since a small buffer stays on
//!   its page; a packing of the small buffers gives a number that is enough.

use super::packed::{BoundsError, pack_checked};
use crate::packing::{Buffer, Effort, Instance};

/// The size of a device page, the granularity of cuMemCreate and cuMemMap (facts: Sizes and addresses).
pub const PAGE_BYTES: u64 = 2 << 20;

/// What is needed if pages can be remapped, in bytes, all multiples of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageIdeal {
    /// The load, rounded up to pages: nothing that takes memory in pages needs less.
    pub load_bytes: u64,
    /// Nothing needs less that gives each buffer of at least a page its own pages and copies nothing.
    pub own_pages_bytes: u64,
    /// Enough for such an allocator: with the small buffers packed into pages, each page taken only while a buffer
    /// on it is live.
    pub reached_bytes: u64,
}

impl PageIdeal {
    /// The ideal for these buffers on pages of `page_bytes`. `effort` is for packing the small buffers.
    ///
    /// # Errors
    /// [`BoundsError`] for a buffer of 0 bytes, or sizes that add up to more than 2^62 bytes.
    ///
    /// # Panics
    /// If `page_bytes` is 0.
    pub fn of(buffers: &[Buffer], page_bytes: u64, effort: &Effort) -> Result<PageIdeal, BoundsError> {
        // Checks sizes and lifetimes before anything is added up.
        let load = Instance::new(buffers.to_vec()).map_err(BoundsError::Instance)?.load();
        let (large, small): (Vec<Buffer>, Vec<Buffer>) = buffers.iter().partition(|buffer| buffer.size >= page_bytes);
        let mut changes: Vec<Change> = Vec::new();
        for buffer in &large {
            changes.extend(Change::of_life(buffer, Kind::Pages(buffer.size.div_ceil(page_bytes))));
        }
        let mut bound_changes = changes.clone();
        bound_changes.extend(small.iter().flat_map(|buffer| Change::of_life(buffer, Kind::SmallBytes(buffer.size))));
        changes.extend(pages_of_small(small, page_bytes, effort)?);
        let in_bytes = |pages: u64| pages.saturating_mul(page_bytes);
        Ok(PageIdeal {
            load_bytes: in_bytes(load.div_ceil(page_bytes)),
            own_pages_bytes: in_bytes(most_pages(bound_changes, page_bytes)),
            reached_bytes: in_bytes(most_pages(changes, page_bytes)),
        })
    }
}

/// The beginning or the end of a lifetime.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Change {
    time: u64,
    /// At the same time, ends come before beginnings: lifetimes are half open.
    begins: bool,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Pages(u64),
    SmallBytes(u64),
}

impl Change {
    fn of_life(buffer: &Buffer, kind: Kind) -> [Change; 2] {
        [Change { time: buffer.start, begins: true, kind }, Change { time: buffer.end, begins: false, kind }]
    }
}

/// The most pages in use at once.
fn most_pages(mut changes: Vec<Change>, page_bytes: u64) -> u64 {
    changes.sort_unstable();
    let (mut pages, mut small_bytes, mut most) = (0_u64, 0_u64, 0);
    for change in changes {
        let (count, amount) = match change.kind {
            Kind::Pages(amount) => (&mut pages, amount),
            Kind::SmallBytes(amount) => (&mut small_bytes, amount),
        };
        if change.begins {
            *count += amount;
        } else {
            *count -= amount;
        }
        most = most.max(pages + small_bytes.div_ceil(page_bytes));
    }
    most
}

/// The pages of the small buffers in a packing of them: each is in use as long as one of its buffers is live.
fn pages_of_small(small: Vec<Buffer>, page_bytes: u64, effort: &Effort) -> Result<Vec<Change>, BoundsError> {
    let instance = Instance::new(small).map_err(BoundsError::Instance)?;
    let found = pack_checked(&instance, effort)?;
    let mut stays: Vec<(u64, Buffer)> = Vec::new();
    for (buffer, &offset) in instance.buffers().iter().zip(&found.packing.offsets) {
        let last = (offset + buffer.size - 1) / page_bytes;
        stays.extend((offset / page_bytes..=last).map(|page| (page, *buffer)));
    }
    stays.sort_unstable_by_key(|(page, buffer)| (*page, buffer.start, buffer.end));
    let mut changes = Vec::new();
    let mut stays = stays.into_iter().peekable();
    while let Some((page, mut whole)) = stays.next() {
        // Lifetimes on the same page without a break between them count as one.
        while let Some((_, next)) = stays.next_if(|(next_page, next)| *next_page == page && next.start <= whole.end) {
            whole.end = whole.end.max(next.end);
        }
        changes.extend(Change::of_life(&whole, Kind::Pages(1)));
    }
    Ok(changes)
}
