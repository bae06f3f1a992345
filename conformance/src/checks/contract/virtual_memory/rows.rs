//! The table of result codes: 0 success, 1 invalid value, 801 not supported.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress};

use super::scene::{FIRST, SECOND, SPARE, Scene};
use crate::backend::Codes;

/// One call on the scene, and the code that it returns.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) says: &'static str,
    pub(super) code: u32,
    pub(super) call: Call,
}

type Call = fn(&mut Scene) -> Result<(), BackendError>;

/// The rows.
pub(super) fn rows(codes: Codes) -> Vec<Row> {
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
        row("access/mapping-and-gap", "cuMemSetAccess on a mapping and a gap is refused", refused, |scene| {
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
        row("unmap/mappings-and-gaps", "cuMemUnmap of mappings and gaps succeeds", 0, |scene| scene.unmap(0, scene.reserved)),
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
        row("address-free/whole", "cuMemAddressFree of a whole, empty reservation succeeds", 0, |scene| {
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
        row("map/into-a-mapping", "cuMemMap over the end of a mapping is refused", refused, |scene| {
            scene.map(1, scene.large, SPARE)
        }),
        row("map/over-itself", "cuMemMap of a handle where it is already mapped is refused", refused, |scene| {
            scene.map(10, scene.page, SECOND)
        }),
        row("map/across-the-end", "cuMemMap over the end of a reservation is refused", refused, |scene| {
            scene.map(30, scene.large, SPARE)
        }),
        row("map/outside-a-reservation", "cuMemMap where nothing is reserved is refused", refused, |scene| {
            scene.map_at(DeviceAddress(scene.page.get()), scene.large, SPARE)
        }),
        row("map/part-of-a-handle", "cuMemMap of part of a handle is not supported", unsupported, |scene| {
            scene.map(20, scene.page, SPARE)
        }),
        row("map/more-than-a-handle", "cuMemMap of more than the handle is not supported", unsupported, |scene| {
            scene.map(20, scene.large + scene.page, SPARE)
        }),
        row("map/512-bytes-off", "cuMemMap 512 bytes off a multiple of the page is refused", refused, |scene| {
            scene.map_at(scene.at(20).offset(Bytes(512)), scene.large, SPARE)
        }),
        row("map/1-mib-off", "cuMemMap half a page off a multiple of the page is refused", refused, |scene| {
            scene.map_at(scene.at(20).offset(Bytes(scene.page.get() / 2)), scene.large, SPARE)
        }),
    ]
}
