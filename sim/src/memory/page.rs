//! Physical pages by number, and the bytes in them.

use std::ops::Deref;
use std::slice;

/// Size of a physical page in bytes: the granularity of the virtual memory calls (facts: Sizes and addresses).
pub const PAGE_BYTES: u64 = 2 << 20;

/// A physical page by its number, which is unrelated to any address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u64);

/// Consecutive physical pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRun {
    /// The first page's number.
    pub first: PageId,
    /// How many pages there are.
    pub count: u64,
}

/// The pages of one piece of memory. Usually they are consecutive, which needs no list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PageRuns {
    /// Consecutive pages.
    One(PageRun),
    /// Several runs, in the order of the memory's bytes; or no pages.
    Many(Vec<PageRun>),
}

impl PageRuns {
    /// Keeps the first `pages` pages and returns the rest.
    pub(crate) fn split_off(&mut self, pages: u64) -> PageRuns {
        let (mut kept, mut rest) = (Vec::new(), Vec::new());
        let mut room = pages;
        for &PageRun { first, count } in &**self {
            let here = count.min(room);
            room -= here;
            if here > 0 {
                kept.push(PageRun { first, count: here });
            }
            if here < count {
                rest.push(PageRun { first: PageId(first.0 + here), count: count - here });
            }
        }
        *self = PageRuns::of(kept);
        PageRuns::of(rest)
    }

    fn of(runs: Vec<PageRun>) -> PageRuns {
        match *runs {
            [run] => PageRuns::One(run),
            _ => PageRuns::Many(runs),
        }
    }
}

impl Default for PageRuns {
    /// No pages.
    fn default() -> PageRuns {
        PageRuns::Many(Vec::new())
    }
}

impl Deref for PageRuns {
    type Target = [PageRun];

    fn deref(&self) -> &[PageRun] {
        match self {
            PageRuns::One(run) => slice::from_ref(run),
            PageRuns::Many(runs) => runs,
        }
    }
}

/// Consecutive physical bytes at consecutive addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ByteRange {
    /// The first physical byte: the page's number times the page size, plus the offset in the page.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The address of the first byte.
    pub(crate) address: u64,
}

impl ByteRange {
    /// One past the last physical byte.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// The physical bytes of consecutive pages: the first, and how many.
pub(crate) fn bytes_of(run: PageRun) -> (u64, u64) {
    // This does not overflow: pages in use fit into 64 bits of bytes, and the numbers of freed pages are used
    // first.
    (run.first.0.saturating_mul(PAGE_BYTES), run.count.saturating_mul(PAGE_BYTES))
}
