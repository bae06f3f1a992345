//! Memory of one device that streams of another device use.

use parkade::Allocator;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB, StreamId};
use parkade_gpu::{CudaDevice, StreamsAreValid};

use super::{ORDINAL, Outcome, ensure};

const SIZE: Bytes = Bytes(20 * MIB);
/// The time for which the other device is busy: much longer than it takes to free a block and request it again.
const BUSY_NS: u64 = 200_000_000;

/// Frees a block while a stream of another device uses it, and requests it again, both before and after that work is
/// done.
pub(super) fn waits_for_the_other() -> Outcome {
    let other = ORDINAL + 1;
    if CudaDevice::count()? <= other {
        return Ok(String::from("not run: there is only one device"));
    }
    let (mut there, mut home) = (CudaDevice::open(other)?, CudaDevice::open(ORDINAL)?);
    let streams = [StreamId::DEFAULT, there.create_stream()?];
    ensure(home.stream_elsewhere(other, 0).is_err(), || String::from("streams of others are not trusted yet"))?;
    trust(&mut home);
    ensure(home.stream_elsewhere(other, u64::MAX).is_err(), || String::from("an impossible handle was accepted"))?;
    ensure(home.stream_elsewhere(CudaDevice::count()?, 0).is_err(), || {
        String::from("a device that does not exist was accepted")
    })?;
    let mut core = Allocator::new(home, PyTorch::new(Settings::default()), ());
    for stream in streams {
        // The first launch loads the kernel.
        there.spin(stream, 0)?;
        there.synchronize()?;
        let used = core.allocate(SIZE, StreamId::DEFAULT)?;
        let address = used.address();
        let id = core.device_mut().stream_elsewhere(other, stream.0)?;
        there.spin(stream, BUSY_NS)?;
        core.record_stream(&used, id);
        core.free(used)?;
        let beside = core.allocate(SIZE, StreamId::DEFAULT)?;
        ensure(beside.address() != address, || format!("{stream:?} was still using the block, but it was handed out"))?;
        there.synchronize()?;
        let after = core.allocate(SIZE, StreamId::DEFAULT)?;
        ensure(after.address() == address, || format!("{stream:?} was done, but the block was not free"))?;
        // The event belonged to the other device. It is now used again for a stream of this device.
        let own = core.device_mut().create_stream()?;
        core.record_stream(&after, own);
        core.free(beside)?;
        core.free(after)?;
        core.release_cached()?;
        ensure(core.segments().is_empty(), || format!("{stream:?} left something in use"))?;
    }
    drop(core);
    there.destroy_stream(streams[1])?;
    Ok(format!("two streams of device {other}"))
}

fn trust(device: &mut CudaDevice) {
    // SAFETY: the streams named here outlive the allocator of the device.
    device.trust_streams(unsafe { StreamsAreValid::promise() });
}
