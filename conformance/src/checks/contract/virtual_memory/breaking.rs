//! Breaking a handle: what is kept has its contents at its addresses, the rest goes back to the device, and a refusal changes nothing.

use parkade::device::DeviceBackend as _;
use parkade::units::{Bytes, StreamId};

use super::scene::{FIRST, LARGE_PAGES, SECOND, Scene, WORD};
use crate::backend::{AnyBackend, TestDevice};
use crate::checks::contract::probe::ensure;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// What is kept of the large handle: first page and number of pages.
const KEPT: [(u64, u64); 3] = [(0, 2), (4, 3), (9, 1)];

/// The entries of these rows.
pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::new(Group::Contract, "break/keeps-contents", "parts of a broken handle keep addresses and contents", keeps),
        Entry::new(Group::Contract, "break/waits", "a handle is broken when the work that uses it is done", waits),
        Entry::new(Group::Contract, "break/refused", "a handle that cannot be broken as asked stays as it was", refused),
    ]
}

/// A device that does not break handles says so, and refuses.
fn declines(scene: &mut Scene) -> Result<bool, Trouble> {
    if scene.device.breaks_handles() {
        return Ok(false);
    }
    ensure(!breaks(scene, &[(0, 1)])?, || "the device says that it breaks no handles, and broke one".to_owned())?;
    Ok(true)
}

/// Breaks the large handle into parts of so many pages. False if the device refused; then the scene has its memory again.
fn breaks(scene: &mut Scene, parts: &[(u64, u64)]) -> Result<bool, Trouble> {
    let page = scene.page.get();
    let parts: Vec<(Bytes, Bytes)> = parts.iter().map(|&(place, count)| (Bytes(place * page), Bytes(count * page))).collect();
    breaks_at(scene, &parts)
}

fn breaks_at(scene: &mut Scene, parts: &[(Bytes, Bytes)]) -> Result<bool, Trouble> {
    let memory = scene.handles[FIRST].take().ok_or_else(|| Trouble::fail("the scene has no large handle"))?;
    match scene.device.break_handle(scene.base, scene.large, memory, parts) {
        Ok(pieces) => {
            ensure(pieces.len() == parts.len(), || format!("{} pieces for {} parts", pieces.len(), parts.len()))?;
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

/// The first kept page that does not have its word.
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
        return Ok(Evidence { text: "this device breaks no handles".to_owned(), ..Evidence::default() });
    }
    let page = scene.page;
    fill_pages(&mut scene, StreamId::DEFAULT)?;
    let before = scene.taken()?;
    ensure(breaks(&mut scene, &KEPT)?, || "a handle was not broken although the device has room".to_owned())?;
    let wrong = wrong_page(&mut scene)?;
    ensure(wrong.is_none(), || format!("page {wrong:?} lost its contents"))?;
    ensure(scene.holds(LARGE_PAGES, page, WORD)?, || "the handle beside it lost its contents".to_owned())?;
    let kept: u64 = KEPT.iter().map(|(_, count)| count).sum();
    let (after, given_back) = (scene.taken()?, (LARGE_PAGES - kept) * page.get());
    ensure(before == after + given_back, || {
        format!("{before} bytes were taken before and {after} after, which is not {given_back} less")
    })?;
    for place in [2, 3, 7, 8] {
        let read = scene.device.read(scene.at(place), &mut [0; 4]);
        ensure(read.is_err(), || format!("page {place} was kept by nobody and can be read"))?;
    }
    // The kept pages are memory like any other, and the free addresses take new memory.
    scene.device.fill(scene.base, Bytes(2 * page.get()), 7, StreamId::DEFAULT)?;
    ensure(scene.holds(0, Bytes(2 * page.get()), 7)?, || "a kept page cannot be written".to_owned())?;
    scene.device.settle();
    scene.unmap(LARGE_PAGES, page)?;
    scene.map(2, page, SECOND)?;
    scene.set_access(2, page)?;
    ensure(scene.holds(2, page, WORD)?, || "what moved into the gap lost its contents".to_owned())?;
    scene.finish()?;
    Ok(Evidence { text: format!("{kept} of {LARGE_PAGES} pages kept"), operations: 10, ..Evidence::default() })
}

fn waits(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    if !declines(&mut scene)? {
        let stream = scene.device.streams().into_iter().find(|&stream| stream != StreamId::DEFAULT).unwrap_or(StreamId::DEFAULT);
        scene.device.spin(stream, 5_000_000)?;
        fill_pages(&mut scene, stream)?;
        ensure(breaks(&mut scene, &KEPT)?, || "a handle was not broken although the device has room".to_owned())?;
        let wrong = wrong_page(&mut scene)?;
        ensure(wrong.is_none(), || format!("page {wrong:?} has not what was under way to it"))?;
    }
    scene.finish()?;
    Ok(Evidence { text: "fills behind 5 ms of work arrived".to_owned(), operations: 10, ..Evidence::default() })
}

fn refused(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    fill_pages(&mut scene, StreamId::DEFAULT)?;
    let before = (scene.taken()?, scene.device.holdings());
    let page = scene.page.get();
    let pages = |parts: &[(u64, u64)]| parts.iter().map(|&(at, size)| (Bytes(at * page), Bytes(size * page))).collect::<Vec<_>>();
    let wrong: [(&str, Vec<(Bytes, Bytes)>); 5] = [
        ("parts that overlap", pages(&[(0, 2), (1, 2)])),
        ("parts out of order", pages(&[(4, 2), (0, 2)])),
        ("a part beyond the handle", pages(&[(8, 4)])),
        ("half a page", vec![(Bytes(0), Bytes(page / 2))]),
        ("a part that begins inside a page", vec![(Bytes(page / 2), Bytes(page))]),
    ];
    for (what, parts) in wrong {
        ensure(!breaks_at(&mut scene, &parts)?, || format!("{what}: the handle was broken"))?;
        let after = (scene.taken()?, scene.device.holdings());
        ensure(before == after, || format!("{what}: {before:?} became {after:?}"))?;
        let wrong = wrong_page(&mut scene)?;
        ensure(wrong.is_none(), || format!("{what}: page {wrong:?} lost its contents"))?;
    }
    scene.finish()?;
    Ok(Evidence { text: "five wrong questions changed nothing".to_owned(), operations: 5, ..Evidence::default() })
}
