//! The result code and the effect of each virtual memory call, one case at a time (facts: Virtual memory calls).
//!
//! Every row starts from the same [`Scene`]: two handles mapped side by side in a reservation, and a third, unmapped one. A
//! refusal must leave memory, holdings and contents unchanged.
//!
//! The rows are the table of result codes: 0 success, 1 invalid value, 801 not supported. The effects are everything
//! else: which bytes are visible where, and when memory is returned to the device. Breaking a handle preserves the
//! contents of the kept parts at their addresses and returns the rest to the device.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::probe::{ends_empty, ensure, free_bytes, open, pages};
use crate::backend::{AnyBackend, AnyDevice, AnyPhysical, Codes, TestDevice};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// The entries of these rows.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let rows = rows(backend.facts().codes).into_iter();
    let mut entries: Vec<Entry> =
        rows.map(|row| Entry::new(Group::Contract, row.name, row.says, move |backend, _| check(backend, &row))).collect();
    entries.extend(effect_entries());
    entries.extend(breaking_entries());
    entries.into_iter().map(|entry| entry.requires(Requirement::VirtualMemory)).collect()
}

/// Makes a row's call, and checks that a refusal changed nothing.
fn check(backend: &AnyBackend, row: &Row) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let before = (scene.device.holdings(), scene.taken()?);
    let found = backend.facts().codes.of(&(row.call)(&mut scene));
    ensure(found == row.code, || format!("code {found}, not {}", row.code))?;
    if found != 0 {
        let after = (scene.device.holdings(), scene.taken()?);
        ensure(before == after, || format!("refused with {found}, but the state changed from {before:?} to {after:?}"))?;
        ensure(scene.holds(0, scene.large + scene.page, WORD)?, || format!("refused with {found}, but contents changed"))?;
    }
    scene.finish()?;
    Ok(Evidence { text: format!("code {found}"), operations: 12, ..Evidence::default() })
}

/// Size of the scene's large handles, in pages.
const LARGE_PAGES: u64 = 10;
/// Size of the scene's reservation, in pages.
const RESERVED_PAGES: u64 = 32;
/// The word that fills all of the scene's mapped memory.
const WORD: u32 = 0x5eed_1e55;
/// Handles of the scene: a large one at the base, one of a page after it, and a large unmapped one. Nothing is mapped
/// from page 11 onwards.
const FIRST: usize = 0;
const SECOND: usize = 1;
const SPARE: usize = 2;

/// A reservation with two filled handles mapped side by side, and a spare handle.
struct Scene {
    device: AnyDevice,
    free_before: u64,
    base: DeviceAddress,
    handles: Vec<Option<AnyPhysical>>,
    /// The sizes of a page, of a large handle, and of the reservation.
    page: Bytes,
    large: Bytes,
    reserved: Bytes,
}

impl Scene {
    fn new(backend: &AnyBackend) -> Result<Scene, Trouble> {
        let facts = backend.facts();
        let [page, large, reserved] = [1, LARGE_PAGES, RESERVED_PAGES].map(|count| pages(&facts, count));
        let mut device = open(backend, None)?;
        let free_before = free_bytes(&mut device)?;
        let base = device.reserve(reserved)?;
        let mut scene = Scene { device, free_before, base, handles: Vec::new(), page, large, reserved };
        for size in [large, page, large] {
            let memory = scene.device.create(size)?;
            scene.handles.push(Some(memory));
        }
        scene.map(0, large, FIRST)?;
        scene.map(LARGE_PAGES, page, SECOND)?;
        scene.set_access(0, large + page)?;
        scene.device.fill(base, large + page, WORD, StreamId::DEFAULT)?;
        scene.device.settle();
        Ok(scene)
    }

    /// Returns the address of this page in the reservation.
    fn at(&self, place: u64) -> DeviceAddress {
        self.base.offset(Bytes(place * self.page.get()))
    }

    fn map_at(&mut self, address: DeviceAddress, size: Bytes, handle: usize) -> Result<(), BackendError> {
        let gone = BackendError::Driver { call: "the test itself released the handle", code: u32::MAX };
        let memory = self.handles[handle].as_ref().ok_or(gone)?;
        self.device.map(address, size, memory)
    }

    fn map(&mut self, place: u64, size: Bytes, handle: usize) -> Result<(), BackendError> {
        self.map_at(self.at(place), size, handle)
    }

    fn set_access(&mut self, place: u64, size: Bytes) -> Result<(), BackendError> {
        self.device.set_access(self.at(place), size)
    }

    fn unmap(&mut self, place: u64, size: Bytes) -> Result<(), BackendError> {
        self.device.unmap(self.at(place), size)
    }

    fn release(&mut self, handle: usize) -> Result<(), BackendError> {
        let Some(memory) = self.handles[handle].take() else { return Ok(()) };
        self.device.release(memory).map_err(|(memory, error)| {
            self.handles[handle] = Some(memory);
            error
        })
    }

    /// Returns whether all of these bytes hold the word.
    fn holds(&mut self, place: u64, size: Bytes, word: u32) -> Result<bool, Trouble> {
        let mut bytes = vec![0; usize::try_from(size.get()).unwrap_or(0)];
        self.device.read(self.at(place), &mut bytes)?;
        Ok(bytes == word.to_le_bytes().repeat(bytes.len() / 4))
    }

    /// Returns how many bytes have been taken from the device since the scene began.
    fn taken(&mut self) -> Result<u64, Trouble> {
        Ok(self.free_before.saturating_sub(free_bytes(&mut self.device)?))
    }

    /// Returns everything, with a single unmap of the entire reservation, and checks that nothing is left.
    fn finish(mut self) -> Result<(), Trouble> {
        self.device.settle();
        self.device.unmap(self.base, self.reserved)?;
        (0..self.handles.len()).try_for_each(|handle| self.release(handle))?;
        self.device.unreserve(self.base, self.reserved)?;
        ends_empty(&mut self.device, self.free_before)
    }
}

/// One call on the scene, and the code that it returns.
struct Row {
    name: &'static str,
    says: &'static str,
    code: u32,
    call: Call,
}

type Call = fn(&mut Scene) -> Result<(), BackendError>;

/// The rows.
fn rows(codes: Codes) -> Vec<Row> {
    let refused = codes.invalid_value;
    let row = |name, says, code, call| Row { name, says, code, call };
    let mut rows = maps(codes);
    rows.extend([
        row("access/mapped", "cuMemSetAccess on a mapped range succeeds", 0, |scene: &mut Scene| {
            scene.map(20, scene.large, SPARE)?;
            scene.set_access(20, scene.large)
        }),
        row("access/after-release", "cuMemSetAccess on a mapped range succeeds even after its handle was released", 0, |scene| {
            scene.map(20, scene.large, SPARE)?;
            scene.release(SPARE)?;
            scene.set_access(20, scene.large)
        }),
        row("access/not-mapped", "cuMemSetAccess on an unmapped range is refused", refused, |scene| {
            scene.set_access(20, scene.large)
        }),
        row("access/mapping-and-gap", "cuMemSetAccess on a range that includes a gap is refused", refused, |scene| {
            scene.set_access(0, Bytes(12 * scene.page.get()))
        }),
        row("release/while-mapped", "cuMemRelease of a handle that is still mapped succeeds", 0, |scene| scene.release(FIRST)),
        row("unmap/part-of-a-mapping", "cuMemUnmap of part of a mapping is refused", refused, |scene| scene.unmap(0, scene.page)),
        row("unmap/cut-at-the-end", "cuMemUnmap of a range that ends inside a mapping is refused", refused, |scene| {
            scene.unmap(9, Bytes(2 * scene.page.get()))
        }),
        row("unmap/several-mappings", "cuMemUnmap of several whole mappings succeeds", 0, |scene| {
            scene.unmap(0, scene.large + scene.page)
        }),
        row("unmap/mappings-and-gaps", "cuMemUnmap of a range with mappings and gaps succeeds", 0, |scene| {
            scene.unmap(0, scene.reserved)
        }),
        row("unmap/nothing", "cuMemUnmap where nothing is mapped succeeds", 0, |scene| scene.unmap(20, scene.large)),
        row("create/1-mib", "cuMemCreate of half a page is refused", refused, |scene| {
            scene.device.create(Bytes(scene.page.get() / 2)).map(|memory| scene.handles.push(Some(memory)))
        }),
        row("address-free/while-mapped", "cuMemAddressFree while something is mapped is refused", refused, |scene| {
            scene.device.unreserve(scene.base, scene.reserved)
        }),
        row("address-free/part", "cuMemAddressFree of part of a reservation is refused", refused, |scene| {
            scene.device.unreserve(scene.at(16), Bytes(16 * scene.page.get()))
        }),
        row("address-free/whole", "cuMemAddressFree of an entire, empty reservation succeeds", 0, |scene| {
            let other = scene.device.reserve(scene.large)?;
            scene.map_at(other, scene.large, SPARE)?;
            scene.device.unmap(other, scene.large)?;
            scene.device.unreserve(other, scene.large)
        }),
    ]);
    rows
}

/// The rows of cuMemMap. The driver also refuses an offset into a handle (801), which the device trait cannot express.
fn maps(codes: Codes) -> Vec<Row> {
    let (refused, unsupported) = (codes.invalid_value, codes.not_supported);
    let row = |name, says, code, call| Row { name, says, code, call };
    vec![
        row("map/whole-handle", "cuMemMap of a whole handle at an aligned address succeeds", 0, |scene: &mut Scene| {
            scene.map(20, scene.large, SPARE)
        }),
        row("map/alias", "cuMemMap of a handle that is also mapped elsewhere succeeds", 0, |scene| {
            scene.map(20, scene.large, FIRST)
        }),
        row("map/over-a-mapping", "cuMemMap over a range already mapped is refused", refused, |scene| {
            scene.map(0, scene.large, SPARE)
        }),
        row("map/into-a-mapping", "cuMemMap across the end of a mapping is refused", refused, |scene| {
            scene.map(1, scene.large, SPARE)
        }),
        row("map/over-itself", "cuMemMap of a handle at an address where it is already mapped is refused", refused, |scene| {
            scene.map(10, scene.page, SECOND)
        }),
        row("map/across-the-end", "cuMemMap past the end of a reservation is refused", refused, |scene| {
            scene.map(30, scene.large, SPARE)
        }),
        row("map/outside-a-reservation", "cuMemMap where nothing is reserved is refused", refused, |scene| {
            scene.map_at(DeviceAddress(scene.page.get()), scene.large, SPARE)
        }),
        row("map/part-of-a-handle", "cuMemMap of part of a handle is not supported", unsupported, |scene| {
            scene.map(20, scene.page, SPARE)
        }),
        row("map/more-than-a-handle", "cuMemMap of more than the entire handle is not supported", unsupported, |scene| {
            scene.map(20, scene.large + scene.page, SPARE)
        }),
        row("map/512-bytes-off", "cuMemMap 512 bytes past a page boundary is refused", refused, |scene| {
            scene.map_at(scene.at(20).offset(Bytes(512)), scene.large, SPARE)
        }),
        row("map/1-mib-off", "cuMemMap half a page past a page boundary is refused", refused, |scene| {
            scene.map_at(scene.at(20).offset(Bytes(scene.page.get() / 2)), scene.large, SPARE)
        }),
    ]
}

/// The entries of these rows.
fn effect_entries() -> Vec<Entry> {
    vec![
        Entry::new(
            Group::Contract,
            "map/alias-shows-the-same",
            "a handle mapped at two addresses shows the same bytes at both",
            alias,
        ),
        Entry::new(Group::Contract, "map/gives-no-access", "mapped memory cannot be accessed before access is set", access),
        Entry::new(
            Group::Contract,
            "release/keeps-what-is-mapped",
            "memory is kept until it is both unmapped and released",
            release,
        ),
        Entry::new(Group::Contract, "unmap/keeps-the-handle", "an unmapped handle keeps its memory and its contents", unmap),
        Entry::new(Group::Contract, "reserve/takes-no-memory", "reserved addresses take no memory", reserve),
    ]
}

fn alias(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let large = scene.large;
    let before = scene.taken()?;
    scene.map(20, large, FIRST)?;
    scene.set_access(20, large)?;
    ensure(scene.taken()? == before, || "an alias took memory".to_owned())?;
    ensure(scene.holds(20, large, WORD)?, || "the second address shows different bytes from the first".to_owned())?;
    // Write through one address and read through the other, both ways.
    for (written, read, word) in [(20, 0, 7), (0, 20, 8)] {
        scene.device.fill(scene.at(written), large, word, StreamId::DEFAULT)?;
        ensure(scene.holds(read, large, word)?, || format!("bytes written at page {written} are not visible at page {read}"))?;
    }
    scene.device.settle();
    scene.unmap(0, large)?;
    ensure(scene.holds(20, large, 8)?, || "the bytes were lost when the first address was unmapped".to_owned())?;
    ensure(scene.taken()? == before, || "unmapping one of two addresses returned memory to the device".to_owned())?;
    scene.finish()?;
    Ok(Evidence {
        text: "one handle that is mapped at two addresses shows the same bytes at both".to_owned(),
        operations: 10,
        ..Evidence::default()
    })
}

fn access(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let (page, large) = (scene.page, scene.large);
    scene.map(20, large, SPARE)?;
    let at = scene.at(20);
    let mut word = [0; 4];
    let (fill, read) = (scene.device.fill(at, page, 1, StreamId::DEFAULT), scene.device.read(at, &mut word));
    ensure(fill.is_err() && read.is_err(), || format!("before access was set, a fill returned {fill:?} and a read {read:?}"))?;
    scene.set_access(20, large)?;
    scene.device.fill(at, large, 1, StreamId::DEFAULT)?;
    ensure(scene.holds(20, large, 1)?, || "bytes filled after access was set do not read back".to_owned())?;
    scene.device.settle();
    // Access ends when the mapping ends.
    scene.unmap(20, large)?;
    ensure(scene.device.read(at, &mut word).is_err(), || "unmapped memory was read".to_owned())?;
    scene.map(20, large, SPARE)?;
    ensure(scene.device.read(at, &mut word).is_err(), || "remapped memory was read before access was set again".to_owned())?;
    scene.finish()?;
    Ok(Evidence {
        text: "the memory cannot be accessed before access is set, nor after unmapping".to_owned(),
        operations: 9,
        ..Evidence::default()
    })
}

fn release(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let (page, large) = (scene.page, scene.large);
    let all = (large + page + large).get();
    let taken = [
        scene.taken()?,
        {
            scene.release(FIRST)?;
            scene.taken()?
        },
        {
            ensure(scene.holds(0, large, WORD)?, || "the contents were lost when the handle was released".to_owned())?;
            scene.device.fill(scene.base, large, 9, StreamId::DEFAULT)?;
            ensure(scene.holds(0, large, 9)?, || "the memory could not be written after its handle was released".to_owned())?;
            scene.device.settle();
            scene.unmap(0, large)?;
            scene.taken()?
        },
    ];
    let expected = [all, all, all - large.get()];
    ensure(taken == expected, || {
        format!(
            "bytes taken before the release, after it and after unmapping: {taken:?}, not \
                                          {expected:?}"
        )
    })?;
    scene.finish()?;
    Ok(Evidence {
        text: format!("bytes taken at first, after the release and after unmapping: {taken:?}"),
        operations: 6,
        ..Evidence::default()
    })
}

fn unmap(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let (page, large) = (scene.page, scene.large);
    let before = scene.taken()?;
    scene.unmap(0, large + page)?;
    ensure(scene.taken()? == before, || "unmapping returned memory whose handle is still held".to_owned())?;
    // Map them in reverse order, at different addresses.
    scene.map(15, page, SECOND)?;
    scene.map(16, large, FIRST)?;
    scene.set_access(15, page + large)?;
    ensure(scene.holds(15, page + large, WORD)?, || "the contents changed when the address changed".to_owned())?;
    scene.unmap(15, page + large)?;
    scene.release(FIRST)?;
    let after = scene.taken()?;
    ensure(after + large.get() == before, || format!("{before} bytes were taken before a release, {after} after it"))?;
    scene.finish()?;
    let text = format!("bytes taken while unmapped: {before}, after a release: {after}");
    Ok(Evidence { text, operations: 9, ..Evidence::default() })
}

fn reserve(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let page = scene.page;
    let before = scene.taken()?;
    let size = Bytes(512 * page.get());
    let ranges = [scene.device.reserve(size)?, scene.device.reserve(size)?];
    ensure(scene.taken()? == before, || "reserving addresses took memory".to_owned())?;
    let (low, high) = (ranges[0].min(ranges[1]), ranges[0].max(ranges[1]));
    let apart = high.get() - low.get() >= size.get() && low.get().abs_diff(scene.base.get()) >= scene.reserved.get();
    ensure(apart, || format!("reservations overlap: {ranges:?} and {:?}", scene.base))?;
    ranges.into_iter().try_for_each(|base| scene.device.unreserve(base, size))?;
    scene.finish()?;
    Ok(Evidence { text: format!("two reservations of {size} bytes take no device memory"), operations: 4, ..Evidence::default() })
}

/// The parts of the large handle that are kept, each as its first page and number of pages.
const KEPT: [(u64, u64); 3] = [(0, 2), (4, 3), (9, 1)];

/// The entries of these rows.
fn breaking_entries() -> Vec<Entry> {
    vec![
        Entry::new(
            Group::Contract,
            "break/keeps-contents",
            "the kept parts of a broken handle keep their addresses and \
                                                             contents",
            keeps,
        ),
        Entry::new(Group::Contract, "break/waits", "a handle is broken only when the work that uses it is done", waits),
        Entry::new(Group::Contract, "break/refused", "a handle that cannot be broken as requested stays unchanged", refused),
    ]
}

/// A device that cannot break handles reports this, and refuses to break one.
fn declines(scene: &mut Scene) -> Result<bool, Trouble> {
    if scene.device.breaks_handles() {
        return Ok(false);
    }
    ensure(!breaks(scene, &[(0, 1)])?, || "the device says that it cannot break handles, but it broke one".to_owned())?;
    Ok(true)
}

/// Breaks the large handle into parts of this many pages. Returns false if the device refused; the scene's memory is
/// then restored.
fn breaks(scene: &mut Scene, parts: &[(u64, u64)]) -> Result<bool, Trouble> {
    let page = scene.page.get();
    let parts: Vec<(Bytes, Bytes)> = parts.iter().map(|&(place, count)| (Bytes(place * page), Bytes(count * page))).collect();
    breaks_at(scene, &parts)
}

fn breaks_at(scene: &mut Scene, parts: &[(Bytes, Bytes)]) -> Result<bool, Trouble> {
    let memory = scene.handles[FIRST].take().ok_or_else(|| Trouble::fail("the test setup has no large handle"))?;
    match scene.device.break_handle(scene.base, scene.large, memory, parts) {
        Ok(pieces) => {
            ensure(pieces.len() == parts.len(), || {
                format!("the device returned {} pieces of memory for {} parts", pieces.len(), parts.len())
            })?;
            scene.handles.extend(pieces.into_iter().map(Some));
            Ok(true)
        }
        Err((memory, _)) => {
            scene.handles[FIRST] = Some(memory);
            Ok(false)
        }
    }
}

/// Fills each page of the large handle with its own word.
fn fill_pages(scene: &mut Scene, stream: StreamId) -> Result<(), Trouble> {
    let page = scene.page;
    (0..LARGE_PAGES).try_for_each(|place| Ok(scene.device.fill(scene.at(place), page, 100 + place as u32, stream)?))
}

/// Returns the first kept page that does not hold its word.
fn wrong_page(scene: &mut Scene) -> Result<Option<u64>, Trouble> {
    let page = scene.page;
    for place in KEPT.iter().flat_map(|&(place, count)| place..place + count) {
        if !scene.holds(place, page, 100 + place as u32)? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

fn keeps(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    if declines(&mut scene)? {
        scene.finish()?;
        return Ok(Evidence { text: "this device cannot break handles".to_owned(), ..Evidence::default() });
    }
    let page = scene.page;
    fill_pages(&mut scene, StreamId::DEFAULT)?;
    let before = scene.taken()?;
    ensure(breaks(&mut scene, &KEPT)?, || "the handle was not broken, although the device has room".to_owned())?;
    let wrong = wrong_page(&mut scene)?;
    ensure(wrong.is_none(), || format!("page {wrong:?} lost its contents"))?;
    ensure(scene.holds(LARGE_PAGES, page, WORD)?, || "the neighbouring handle lost its contents".to_owned())?;
    let kept: u64 = KEPT.iter().map(|(_, count)| count).sum();
    let (after, given_back) = (scene.taken()?, (LARGE_PAGES - kept) * page.get());
    ensure(before == after + given_back, || {
        format!("{before} bytes were taken before and {after} after; the expected difference is {given_back}")
    })?;
    for place in [2, 3, 7, 8] {
        let read = scene.device.read(scene.at(place), &mut [0; 4]);
        ensure(read.is_err(), || format!("page {place} was not kept, but can still be read"))?;
    }
    // The kept pages behave like any other memory, and new memory can be mapped at the free
    // addresses.
    scene.device.fill(scene.base, Bytes(2 * page.get()), 7, StreamId::DEFAULT)?;
    ensure(scene.holds(0, Bytes(2 * page.get()), 7)?, || "a kept page cannot be written".to_owned())?;
    scene.device.settle();
    scene.unmap(LARGE_PAGES, page)?;
    scene.map(2, page, SECOND)?;
    scene.set_access(2, page)?;
    ensure(scene.holds(2, page, WORD)?, || "the memory mapped into the gap lost its contents".to_owned())?;
    scene.finish()?;
    Ok(Evidence { text: format!("{kept} of {LARGE_PAGES} pages were kept"), operations: 10, ..Evidence::default() })
}

fn waits(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    if !declines(&mut scene)? {
        let stream = scene.device.streams().into_iter().find(|&stream| stream != StreamId::DEFAULT).unwrap_or(StreamId::DEFAULT);
        scene.device.spin(stream, 5_000_000)?;
        fill_pages(&mut scene, stream)?;
        ensure(breaks(&mut scene, &KEPT)?, || "the handle was not broken, although the device has room".to_owned())?;
        let wrong = wrong_page(&mut scene)?;
        ensure(wrong.is_none(), || format!("page {wrong:?} did not receive the fill that was still queued"))?;
    }
    scene.finish()?;
    Ok(Evidence {
        text: "fills that were queued behind 5 ms of work reached the memory".to_owned(),
        operations: 10,
        ..Evidence::default()
    })
}

fn refused(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    fill_pages(&mut scene, StreamId::DEFAULT)?;
    let before = (scene.taken()?, scene.device.holdings());
    let page = scene.page.get();
    let pages = |parts: &[(u64, u64)]| parts.iter().map(|&(at, size)| (Bytes(at * page), Bytes(size * page))).collect::<Vec<_>>();
    let wrong: [(&str, Vec<(Bytes, Bytes)>); 5] = [
        ("parts that overlap", pages(&[(0, 2), (1, 2)])),
        ("parts of a handle in the wrong order", pages(&[(4, 2), (0, 2)])),
        ("a part that lies beyond the end of the handle", pages(&[(8, 4)])),
        ("half a page", vec![(Bytes(0), Bytes(page / 2))]),
        ("a part of a handle that begins in the middle of a page", vec![(Bytes(page / 2), Bytes(page))]),
    ];
    for (what, parts) in wrong {
        ensure(!breaks_at(&mut scene, &parts)?, || format!("{what}: the handle was broken"))?;
        let after = (scene.taken()?, scene.device.holdings());
        ensure(before == after, || format!("{what}: the state changed from {before:?} to {after:?}"))?;
        let wrong = wrong_page(&mut scene)?;
        ensure(wrong.is_none(), || format!("{what}: page {wrong:?} lost its contents"))?;
    }
    scene.finish()?;
    Ok(Evidence { text: "five invalid requests changed nothing".to_owned(), operations: 5, ..Evidence::default() })
}
