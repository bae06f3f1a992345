//! What a device says of its memory (cudaMemGetInfo): never more than there is, and what others hold is missing.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, MIB};

use crate::backend::{Backend, TestDevice};
use crate::checks::contract::probe::{ends_empty, ensure, free_bytes, open};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// The entries of these rows.
pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    vec![
        Entry::new(
            Group::Contract,
            "info/never-more-than-there-is",
            "free and held memory together never exceed the total",
            within,
        ),
        Entry::new(Group::Contract, "info/others-show", "memory that others hold is missing from what is free", others),
    ]
}

fn within<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let total = device.memory_info()?.total;
    let (mut ranges, mut memory, mut held) = (Vec::new(), Vec::new(), 0);
    let look = |device: &mut B::Device, held: u64, what: &str| {
        let info = device.memory_info()?;
        ensure(info.total == total, || format!("{what}: the total became {}", info.total))?;
        let sum = info.free.get() + held;
        ensure(sum <= total.get() && info.free.get() <= before, || format!("{what}: {info:?} with {held} bytes held"))?;
        ensure(before - info.free.get() == held, || format!("{what}: {before} bytes free became {info:?}, {held} are held"))
    };
    look(&mut device, held, "nothing")?;
    for mib in [2, 20, 256, 1024] {
        ranges.push((device.malloc(Bytes(mib * MIB))?, mib));
        held += mib * MIB;
        look(&mut device, held, &format!("malloc of {mib} MiB"))?;
        memory.push((device.create(Bytes(mib * MIB))?, mib));
        held += mib * MIB;
        look(&mut device, held, &format!("create of {mib} MiB"))?;
    }
    let text = format!("{held} bytes held, so much less free\n");
    for ((address, mib), (piece, _)) in ranges.into_iter().zip(memory) {
        device.free(address)?;
        device.release(piece).map_err(|(_, error)| Trouble::from(error))?;
        held -= 2 * mib * MIB;
        look(&mut device, held, &format!("free and release of {mib} MiB"))?;
    }
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, measured: format!("{total} bytes in total, {before} free"), operations: 16 })
}

fn others<B: Backend>(backend: &B, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let before = device.memory_info()?;
    let mut text = String::new();
    for mib in [2, 300, 0, 1024, 0] {
        device.others_hold(Bytes(mib * MIB))?;
        let now = device.memory_info()?;
        let missing = before.free.get().saturating_sub(now.free.get());
        ensure(missing == mib * MIB && now.total == before.total, || {
            format!("others hold {mib} MiB: {before:?} became {now:?}")
        })?;
        text += &format!("others hold {}: {missing} less free\n", mib * MIB);
    }
    // They hold nothing any more.
    ends_empty(&mut device, before.free.get())?;
    Ok(Evidence { text, operations: 5, ..Evidence::default() })
}
