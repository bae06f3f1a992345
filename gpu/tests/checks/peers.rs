//! Checks of two devices: what is mapped on one can be read by the other once it was let in, and not before.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, MIB, StreamId};
use parkade_gpu::CudaDevice;

use super::{ORDINAL, Outcome, ensure};

const PEER: u32 = ORDINAL + 1;
const SIZE: Bytes = Bytes(20 * MIB);
/// Driver code: the devices cannot reach each other.
const PEER_ACCESS_UNSUPPORTED: u32 = 217;

pub(super) fn reads_what_was_opened() -> Outcome {
    let (mut home, mut peer) = (CudaDevice::open(ORDINAL)?, CudaDevice::open(PEER)?);
    if !peer.can_access_peer(ORDINAL)? {
        let refused = home.let_peer_access(PEER).err().map(|error| error.code);
        ensure(refused == Some(PEER_ACCESS_UNSUPPORTED), || format!("letting in a device that cannot reach: {refused:?}"))?;
        return Ok(String::from("the devices cannot reach each other, and letting in is refused"));
    }
    // One handle is opened before the peer is let in, the other after.
    let base = home.reserve(SIZE + SIZE)?;
    let memory = [home.create(SIZE)?, home.create(SIZE)?];
    let places = [base, base.offset(SIZE)];
    home.map(places[0], SIZE, &memory[0])?;
    home.set_access(places[0], SIZE)?;
    let copy = peer.malloc(SIZE + SIZE)?;
    let early = peer.copy_from_peer(&home, base, copy, SIZE, StreamId::DEFAULT);
    ensure(early.is_err(), || String::from("the peer read before it was let in"))?;
    home.let_peer_access(PEER)?;
    home.let_peer_access(PEER)?;
    home.map(places[1], SIZE, &memory[1])?;
    home.set_access(places[1], SIZE)?;
    for (&place, word) in places.iter().zip([0x1111_2222, 0x3333_4444]) {
        home.fill(place, SIZE, word, StreamId::DEFAULT)?;
    }
    home.synchronize()?;

    peer.copy_from_peer(&home, base, copy, SIZE + SIZE, StreamId::DEFAULT)?;
    let mut bytes = vec![0; usize::try_from((SIZE + SIZE).get())?];
    peer.read(copy, &mut bytes)?;
    for (half, word) in bytes.chunks_exact(bytes.len() / 2).zip([0x1111_2222_u32, 0x3333_4444]) {
        ensure(half.chunks_exact(4).all(|found| found == word.to_le_bytes()), || format!("not every word is {word:#x}"))?;
    }
    let outside = peer.copy_from_peer(&home, places[1], copy, SIZE + SIZE, StreamId::DEFAULT);
    ensure(outside.is_err(), || String::from("the peer read past the mappings"))?;
    peer.free(copy)?;
    home.unmap(base, SIZE + SIZE)?;
    memory.into_iter().try_for_each(|piece| home.release(piece).map_err(|(_, error)| error))?;
    home.unreserve(base, SIZE + SIZE)?;
    Ok(format!("{} bytes of device {ORDINAL} read on device {PEER}", (SIZE + SIZE).get()))
}
