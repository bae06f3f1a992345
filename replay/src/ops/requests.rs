//! Operations on allocations: request, free, use on another stream, release what is cached.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, Allocation};

use super::failure::Failure;
use super::line::Line;
use super::render;
use super::session::{Answer, Core, Session, handle, pool_of, release};
use super::state::Held;

impl Session {
    pub(super) fn alloc(&mut self, line: &Line<'_>) -> Answer {
        let stream = handle(line.stream_or_default(3)?);
        let name = self.new_name(line, stream)?;
        let bytes = Bytes(line.number(2)?);
        let held = self.take(bytes, |core| core.allocate(bytes, stream))?;
        if !self.caching && bytes == Bytes::ZERO {
            self.calls_with_null.push("[\"cudaMalloc\",0,0,\"null\"]");
        }
        let answer = self.pointer(&held);
        self.addresses.insert(name.to_owned(), held.address().map_or(0, DeviceAddress::get));
        self.names.lock().live.insert(name.to_owned(), held);
        Ok(answer)
    }

    /// A request at an address: so many bytes behind where a name was allocated last.
    pub(super) fn alloc_at(&mut self, line: &Line<'_>) -> Answer {
        let stream = handle(line.stream(3)?);
        let name = self.new_name(line, stream)?;
        let base = *self.addresses.get(line.word(4)?).ok_or_else(|| Failure::std("no such id"))?;
        let bytes = Bytes(line.number(2)?);
        let address = DeviceAddress(base.wrapping_add(line.number(5)?));
        let shown = if address.0 == 0 { "0".to_owned() } else { format!("{:#x}", address.0) };
        if !self.caching {
            return Err(Failure::c10("Exact-address allocation is only supported by the native CUDA caching allocator"));
        }
        let held = if bytes == Bytes::ZERO {
            Held::Null
        } else if !address.0.is_multiple_of(512) {
            let text = "mallocWithAddress: addr must be aligned to kMinBlockSize (512 bytes), got";
            return Err(Failure::c10(format!("{text} {shown}")));
        } else {
            let allocated = self.allocator.allocate_at(bytes, stream, address).map_err(Failure::alloc(self.profile))?;
            let text = "Could not allocate CUDA storage at exact address";
            Held::Block(allocated.ok_or_else(|| Failure::c10(format!("{text} {shown}")))?)
        };
        let answer = self.pointer(&held);
        self.names.lock().live.insert(name.to_owned(), held);
        Ok(answer)
    }

    /// The name of a request for a stream, which is the current one from now on.
    fn new_name<'a>(&mut self, line: &Line<'a>, stream: StreamId) -> Result<&'a str, Failure> {
        self.current_stream = stream;
        self.look_at_capture();
        let name = line.word(1)?;
        if self.names.lock().live.contains_key(name) { Err(Failure::std("id already live")) } else { Ok(name) }
    }

    /// Tells the allocator whether the current stream is captured.
    pub(super) fn look_at_capture(&mut self) {
        let is_captured = self.allocator.device().is_captured(self.current_stream);
        self.allocator.set_capturing(is_captured);
    }

    pub(super) fn raw_alloc(&mut self, line: &Line<'_>) -> Answer {
        let bytes = Bytes(line.number(2)?);
        let stream = handle(line.stream_or_default(3)?);
        let held = self.take(bytes, |core| core.raw_allocate(bytes, stream))?;
        let answer = self.pointer(&held);
        self.names.lock().raw.insert(line.word(1)?.to_owned(), held);
        Ok(answer)
    }

    fn take(&mut self, bytes: Bytes, allocate: impl Fn(&mut Core) -> Result<Allocation, AllocError>) -> Result<Held, Failure> {
        if bytes == Bytes::ZERO {
            return Ok(Held::Null);
        }
        if self.caching {
            return Ok(Held::Block(allocate(&mut self.allocator).map_err(Failure::alloc(self.profile))?));
        }
        match self.allocator.device_mut().malloc(bytes) {
            Ok(address) => Ok(Held::Direct(address)),
            Err(error) => Err(Failure::c10(error)),
        }
    }

    fn pointer(&self, held: &Held) -> String {
        let text = held.address().map_or("null".to_owned(), |address| render::pointer(self.allocator.device(), address.0));
        format!(",\"ptr\":{text}")
    }

    pub(super) fn free(&mut self, line: &Line<'_>) -> Answer {
        let held = self.names.lock().live.remove(line.word(1)?);
        self.give_back(held)
    }

    /// As PyTorch's `raw_delete`: how a pointer is freed depends on whether caching is on now, not on where the pointer came
    /// from. One defect is not copied: PyTorch hands a block that is freed while caching is off to `cudaFree`.
    pub(super) fn raw_free(&mut self, line: &Line<'_>) -> Answer {
        let name = line.word(1)?;
        let mut names = self.names.lock();
        let unknown = match names.raw.get(name) {
            Some(Held::Block(allocation)) if self.allocator.segment_of(allocation).is_none() => Some(allocation.address()),
            Some(Held::Direct(address)) if self.caching => Some(*address),
            _ => None,
        };
        if let Some(address) = unknown {
            return Err(Failure::c10(format!("invalid device pointer: {:#x}", address.0)));
        }
        let held = names.raw.remove(name);
        drop(names);
        if !self.caching && matches!(held, Some(Held::Null)) {
            self.calls_with_null.push("[\"cudaFree\",0,\"null\"]");
        }
        self.give_back(held)
    }

    fn give_back(&mut self, held: Option<Held>) -> Answer {
        match held {
            None => return Ok(",\"noop\":1".to_owned()),
            Some(held) => release(&mut self.allocator, held)?,
        }
        Ok(String::new())
    }

    pub(super) fn record_stream(&mut self, line: &Line<'_>) -> Answer {
        let names = self.names.clone();
        let names = names.lock();
        let Some(held) = names.live.get(line.word(1)?) else { return Ok(",\"noop\":1".to_owned()) };
        let stream = handle(line.stream(2)?);
        if let Held::Block(allocation) = held {
            self.allocator.record_stream(allocation, stream);
        }
        Ok(String::new())
    }

    pub(super) fn empty_cache(&mut self, line: &Line<'_>) -> Answer {
        let released = match pool_of(line)? {
            PoolId::DEFAULT => self.allocator.release_cached(),
            pool => self.allocator.release_cached_pool(pool),
        };
        released.map(|()| String::new()).map_err(Failure::alloc(self.profile))
    }

    pub(super) fn free_all(&mut self) -> Answer {
        // In the order of the names as strings, which is the map's order.
        let live = std::mem::take(&mut self.names.lock().live);
        // An error does not stop the loop; the first one is reported.
        let released = live.into_values().map(|held| release(&mut self.allocator, held)).collect::<Vec<_>>();
        released.into_iter().collect::<Result<(), Failure>>().map(|()| String::new())
    }

    pub(super) fn base(&mut self, line: &Line<'_>) -> Answer {
        let names = self.names.lock();
        match names.live.get(line.word(1)?) {
            None => Ok(",\"noop\":1".to_owned()),
            Some(Held::Block(allocation)) => {
                let (address, size) =
                    self.allocator.segment_of(allocation).ok_or_else(|| Failure::c10("invalid device pointer"))?;
                Ok(format!(",\"ptr\":{},\"size\":{size}", render::pointer(self.allocator.device(), address.0)))
            }
            Some(held) => {
                Err(Failure::c10(format!("invalid device pointer: {}", held.address().map_or("0".to_owned(), |a| a.to_string()))))
            }
        }
    }
}
