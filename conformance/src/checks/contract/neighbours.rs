//! Two devices in one host: one can read the other's mappings only after it has been granted access.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_gpu::{CudaDevice, CudaPhysical};

use crate::backend::{Cuda, first_other_word};
use crate::checks::contract::probe::ensure;
use crate::suite::{Entry, Evidence, Group, Trouble, Verdict};

const SIZE: Bytes = Bytes(20 * MIB);
/// The words that fill the two mappings.
const WORDS: [u32; 2] = [0x1111_2222, 0x3333_4444];
/// The driver's code for devices that cannot access each other.
const PEER_ACCESS_UNSUPPORTED: u32 = 217;

/// The entries for hosts with several CUDA devices; `cuda` is such a device.
pub(in crate::checks) fn entries(cuda: &Cuda) -> Vec<Entry> {
    let ordinal = cuda.ordinal();
    let says = "a second device can read a mapping only after it has been granted access";
    vec![Entry::new(Group::Contract, "peers/access-of-a-mapping", says, move |_, _| reads_what_was_opened(ordinal))]
}

fn failed(error: impl std::fmt::Display) -> Trouble {
    Trouble::fail(error.to_string())
}

fn reads_what_was_opened(ordinal: u32) -> Verdict {
    let other = u32::from(ordinal == 0);
    if CudaDevice::count().map_err(failed)? <= other {
        return Err(Trouble::Skip("there is only one device".to_owned()));
    }
    let mut home = CudaDevice::open(ordinal).map_err(failed)?;
    let mut peer = CudaDevice::open(other).map_err(failed)?;
    if !peer.can_access_peer(ordinal).map_err(failed)? {
        let refused = home.let_peer_access(other).err().map(|error| error.code);
        ensure(refused == Some(PEER_ACCESS_UNSUPPORTED), || {
            format!("granting access to a device that cannot use it returned {refused:?}")
        })?;
        return Err(Trouble::Skip(format!(
            "devices {ordinal} and {other} cannot access each other, and granting access is refused"
        )));
    }
    let base = home.reserve(SIZE + SIZE)?;
    let copy = peer.malloc(SIZE + SIZE)?;
    let memory = open_before_and_after(&mut home, &mut peer, base, copy, other)?;
    peer.copy_from_peer(&home, base, copy, SIZE + SIZE, StreamId::DEFAULT).map_err(failed)?;
    let mut bytes = vec![0; (SIZE + SIZE).get() as usize];
    peer.read(copy, &mut bytes).map_err(failed)?;
    for (half, word) in bytes.chunks_exact(bytes.len() / 2).zip(WORDS) {
        ensure(first_other_word(half, word).is_none(), || {
            format!("some of the words read from the memory differ from {word:#x}")
        })?;
    }
    let outside = peer.copy_from_peer(&home, base.offset(SIZE), copy, SIZE + SIZE, StreamId::DEFAULT);
    ensure(outside.is_err(), || "the other device could read past the end of the mappings".to_owned())?;
    peer.free(copy)?;
    home.unmap(base, SIZE + SIZE)?;
    memory.into_iter().try_for_each(|piece| home.release(piece).map_err(|(_, error)| error))?;
    home.unreserve(base, SIZE + SIZE)?;
    let measured = format!("{} bytes on device {ordinal} were read from device {other}", (SIZE + SIZE).get());
    Ok(Evidence { measured, ..Evidence::default() })
}

/// The owner's access is set before the peer is granted access for one mapping, and after it for
/// the other.
fn open_before_and_after(
    home: &mut CudaDevice,
    peer: &mut CudaDevice,
    base: DeviceAddress,
    copy: DeviceAddress,
    other: u32,
) -> Result<[CudaPhysical; 2], Trouble> {
    let memory = [home.create(SIZE)?, home.create(SIZE)?];
    home.map(base, SIZE, &memory[0])?;
    home.set_access(base, SIZE)?;
    let early = peer.copy_from_peer(home, base, copy, SIZE, StreamId::DEFAULT);
    ensure(early.is_err(), || "the other device could read the memory before it was granted access".to_owned())?;
    home.let_peer_access(other).map_err(failed)?;
    home.let_peer_access(other).map_err(failed)?;
    home.map(base.offset(SIZE), SIZE, &memory[1])?;
    home.set_access(base.offset(SIZE), SIZE)?;
    for (place, word) in [base, base.offset(SIZE)].into_iter().zip(WORDS) {
        home.fill(place, SIZE, word, StreamId::DEFAULT).map_err(failed)?;
    }
    home.synchronize().map_err(failed)?;
    Ok(memory)
}
