//! What the calls do apart from their result code: which bytes are visible where, and when memory goes back to the device.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, StreamId};

use super::scene::{FIRST, SECOND, SPARE, Scene, WORD};
use crate::backend::{AnyBackend, TestDevice};
use crate::checks::contract::probe::ensure;
use crate::suite::{Effort, Entry, Evidence, Group, Verdict};

/// The entries of these rows.
pub(super) fn entries() -> Vec<Entry> {
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
            "memory stays until it is both unmapped and released",
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
    ensure(scene.holds(20, large, 8)?, || "the bytes disappeared with the first address".to_owned())?;
    ensure(scene.taken()? == before, || "unmapping one of two addresses gave memory back".to_owned())?;
    scene.finish()?;
    Ok(Evidence { text: "one handle at two addresses: the same bytes".to_owned(), operations: 10, ..Evidence::default() })
}

fn access(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let (page, large) = (scene.page, scene.large);
    scene.map(20, large, SPARE)?;
    let at = scene.at(20);
    let mut word = [0; 4];
    let (fill, read) = (scene.device.fill(at, page, 1, StreamId::DEFAULT), scene.device.read(at, &mut word));
    ensure(fill.is_err() && read.is_err(), || format!("without access: fill {fill:?}, read {read:?}"))?;
    scene.set_access(20, large)?;
    scene.device.fill(at, large, 1, StreamId::DEFAULT)?;
    ensure(scene.holds(20, large, 1)?, || "a fill with access set does not read back".to_owned())?;
    scene.device.settle();
    // Access ends with the mapping.
    scene.unmap(20, large)?;
    ensure(scene.device.read(at, &mut word).is_err(), || "unmapped memory was read".to_owned())?;
    scene.map(20, large, SPARE)?;
    ensure(scene.device.read(at, &mut word).is_err(), || "remapped memory was read before access was set again".to_owned())?;
    scene.finish()?;
    Ok(Evidence { text: "no access before it is set, none after unmapping".to_owned(), operations: 9, ..Evidence::default() })
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
            ensure(scene.holds(0, large, WORD)?, || "the contents disappeared with the handle".to_owned())?;
            scene.device.fill(scene.base, large, 9, StreamId::DEFAULT)?;
            ensure(scene.holds(0, large, 9)?, || "memory without a handle cannot be written".to_owned())?;
            scene.device.settle();
            scene.unmap(0, large)?;
            scene.taken()?
        },
    ];
    let expected = [all, all, all - large.get()];
    ensure(taken == expected, || format!("taken before, after the release and after unmapping: {taken:?}, not {expected:?}"))?;
    scene.finish()?;
    Ok(Evidence { text: format!("taken at first, released, unmapped: {taken:?}"), operations: 6, ..Evidence::default() })
}

fn unmap(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let (page, large) = (scene.page, scene.large);
    let before = scene.taken()?;
    scene.unmap(0, large + page)?;
    ensure(scene.taken()? == before, || "unmapping gave back memory whose handle is still held".to_owned())?;
    // In the opposite order, at other addresses.
    scene.map(15, page, SECOND)?;
    scene.map(16, large, FIRST)?;
    scene.set_access(15, page + large)?;
    ensure(scene.holds(15, page + large, WORD)?, || "the contents changed with the address".to_owned())?;
    scene.unmap(15, page + large)?;
    scene.release(FIRST)?;
    let after = scene.taken()?;
    ensure(after + large.get() == before, || format!("{before} bytes were taken, {after} after a release"))?;
    scene.finish()?;
    let text = format!("taken while unmapped: {before}, after a release: {after}");
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
    Ok(Evidence { text: format!("twice {size} bytes of addresses: no memory"), operations: 4, ..Evidence::default() })
}
