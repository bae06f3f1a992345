//! The table of result codes: 0 done, 1 invalid value, 801 not supported.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB};

use super::{FIRST, LARGE, RESERVED, SECOND, SPARE, Scene};
use crate::backend::TestDevice;
use crate::checks::contract::probe::{INVALID_VALUE, NOT_SUPPORTED, PAGE};

/// One call on the scene, and the code that it answers with.
pub(super) struct Row<D: DeviceBackend> {
    pub(super) name: &'static str,
    pub(super) says: &'static str,
    pub(super) code: u32,
    pub(super) call: Call<D>,
}

type Call<D> = fn(&mut Scene<D>) -> Result<(), BackendError>;

/// The rows.
pub(super) fn rows<D: TestDevice>() -> Vec<Row<D>> {
    let row = |name, says, code, call| Row { name, says, code, call };
    let mut rows = maps::<D>();
    rows.extend([
        row("access/mapped", "cuMemSetAccess on a mapped range is done", 0, |scene: &mut Scene<D>| {
            scene.map(40, LARGE, SPARE)?;
            scene.set_access(40, LARGE)
        }),
        row("access/after-release", "cuMemSetAccess on a mapped range is done also after its handle was released", 0, |scene| {
            scene.map(40, LARGE, SPARE)?;
            scene.release(SPARE)?;
            scene.set_access(40, LARGE)
        }),
        row("access/not-mapped", "cuMemSetAccess on an unmapped range is refused", INVALID_VALUE, |scene| {
            scene.set_access(40, LARGE)
        }),
        row("access/mapping-and-gap", "cuMemSetAccess on a mapping and a gap is refused", INVALID_VALUE, |scene| {
            scene.set_access(0, Bytes(24 * MIB))
        }),
        row("release/while-mapped", "cuMemRelease of a handle that is still mapped is done", 0, |scene| scene.release(FIRST)),
        row("unmap/part-of-a-mapping", "cuMemUnmap of a part of a mapping is refused", INVALID_VALUE, |scene| {
            scene.unmap(0, PAGE)
        }),
        row("unmap/cut-at-the-end", "cuMemUnmap of a range that ends inside a mapping is refused", INVALID_VALUE, |scene| {
            scene.unmap(18, Bytes(4 * MIB))
        }),
        row("unmap/several-mappings", "cuMemUnmap of several whole mappings is done", 0, |scene| scene.unmap(0, LARGE + PAGE)),
        row("unmap/mappings-and-gaps", "cuMemUnmap of mappings and gaps is done", 0, |scene| scene.unmap(0, RESERVED)),
        row("unmap/nothing", "cuMemUnmap where nothing is mapped is done", 0, |scene| scene.unmap(40, LARGE)),
        row("create/1-mib", "cuMemCreate of 1 MiB is refused", INVALID_VALUE, |scene| {
            scene.device.create(Bytes(MIB)).map(|memory| scene.handles.push(Some(memory)))
        }),
        row("address-free/while-mapped", "cuMemAddressFree while something is mapped is refused", INVALID_VALUE, |scene| {
            scene.device.unreserve(scene.base, RESERVED)
        }),
        row("address-free/part", "cuMemAddressFree of a part is refused", INVALID_VALUE, |scene| {
            scene.device.unreserve(scene.at(32), Bytes(32 * MIB))
        }),
        row("address-free/whole", "cuMemAddressFree of a whole that is empty is done", 0, |scene| {
            let other = scene.device.reserve(LARGE)?;
            scene.map_at(other, LARGE, SPARE)?;
            scene.device.unmap(other, LARGE)?;
            scene.device.unreserve(other, LARGE)
        }),
    ]);
    rows
}

/// Those of cuMemMap. The driver knows no offset into a handle either (801); the device trait has no word for one.
fn maps<D: TestDevice>() -> Vec<Row<D>> {
    let row = |name, says, code, call| Row { name, says, code, call };
    vec![
        row("map/whole-handle", "cuMemMap of a whole handle at an aligned address is done", 0, |scene: &mut Scene<D>| {
            scene.map(40, LARGE, SPARE)
        }),
        row("map/alias", "cuMemMap of a handle that is mapped elsewhere is done", 0, |scene| scene.map(40, LARGE, FIRST)),
        row("map/over-a-mapping", "cuMemMap over a range already mapped is refused", INVALID_VALUE, |scene| {
            scene.map(0, LARGE, SPARE)
        }),
        row("map/into-a-mapping", "cuMemMap over the end of a mapping is refused", INVALID_VALUE, |scene| {
            scene.map(2, LARGE, SPARE)
        }),
        row("map/over-itself", "cuMemMap of a handle where it is mapped already is refused", INVALID_VALUE, |scene| {
            scene.map(20, PAGE, SECOND)
        }),
        row("map/across-the-end", "cuMemMap over the end of a reservation is refused", INVALID_VALUE, |scene| {
            scene.map(60, LARGE, SPARE)
        }),
        row("map/outside-a-reservation", "cuMemMap where nothing is reserved is refused", INVALID_VALUE, |scene| {
            scene.map_at(DeviceAddress(PAGE.get()), LARGE, SPARE)
        }),
        row("map/part-of-a-handle", "cuMemMap of a part of a handle is not supported", NOT_SUPPORTED, |scene| {
            scene.map(40, PAGE, SPARE)
        }),
        row("map/more-than-a-handle", "cuMemMap of more than the handle is not supported", NOT_SUPPORTED, |scene| {
            scene.map(40, LARGE + PAGE, SPARE)
        }),
        row("map/512-bytes-off", "cuMemMap 512 bytes beside a multiple of 2 MiB is refused", INVALID_VALUE, |scene| {
            scene.map_at(scene.at(40).offset(Bytes(512)), LARGE, SPARE)
        }),
        row("map/1-mib-off", "cuMemMap 1 MiB beside a multiple of 2 MiB is refused", INVALID_VALUE, |scene| {
            scene.map(41, LARGE, SPARE)
        }),
    ]
}
