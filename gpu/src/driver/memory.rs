//! Device memory, as ranges and as virtual memory.
//!
//! Ranges are allocated by cuMemAlloc, the driver's counterpart of cudaMalloc. Virtual memory consists of physical
//! memory without an address, which cuMemCreate creates and cuMemMap maps, and reserved addresses with their mappings.
//! Several processes can share created memory, which is exported as file descriptors and opened from them. The stage
//! holds contents while memory is replaced. Fills, copies and reads work on any accessible device memory, allocated or
//! mapped.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{
    CUdevice, CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use parkade::units::{Bytes, DeviceAddress};

use super::context::{Context, Peer};
use super::stream::{Stream, raw};
use super::table::{DriverError, INVALID_VALUE, OUT_OF_MEMORY, Unavailable, call, size_of};
use crate::mappings::Mappings;

/// A range of device memory, which is freed when dropped.
pub(crate) struct Memory {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
    /// Whether the range has not been freed yet.
    held: bool,
}

impl Memory {
    /// Allocates `bytes` of device memory. The contents are unspecified.
    pub(crate) fn take(context: &Arc<Context>, bytes: u64) -> Result<Memory, DriverError> {
        let size = size_of("cuMemAlloc_v2", bytes, OUT_OF_MEMORY)?;
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address through the pointer.
        unsafe { call!(context.cuMemAlloc_v2(&raw mut address, size)) }?;
        Ok(Memory { context: Arc::clone(context), address, bytes, held: true })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Frees the range once. After an error, it is still held.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        if !self.held {
            return Ok(());
        }
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: allocated once and, according to `held`, not freed yet. The driver waits for the device first.
        unsafe { call!(context.cuMemFree_v2(self.address)) }?;
        self.held = false;
        Ok(())
    }

    /// Returns a part of the range.
    pub(crate) fn span(&self, call: &'static str, address: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        let offset = address.checked_sub(self.address);
        let end = offset.and_then(|offset| offset.checked_add(bytes));
        let inside = self.held && end.is_some_and(|end| end <= self.bytes);
        if inside { Ok(Span::new(&self.context, address, bytes)) } else { Err(DriverError { call, code: INVALID_VALUE }) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // There is no caller to report an error to.
        let _: Result<(), DriverError> = self.give_back();
    }
}

/// The size of the words that [`Span::fill`] writes, in bytes.
const WORD_BYTES: u64 = 4;

/// A part of a range of device memory. Only the owner of the range creates a span, and the span borrows the range:
/// while the span lives, the memory exists and the device has access to it.
pub(crate) struct Span<'a> {
    context: &'a Context,
    address: u64,
    bytes: u64,
}

impl<'a> Span<'a> {
    fn new(context: &'a Context, address: u64, bytes: u64) -> Span<'a> {
        Span { context, address, bytes }
    }

    /// Queues a fill with `word`. Bytes after the last whole word do not change.
    pub(crate) fn fill(&self, word: u32, stream: Option<&Stream>) -> Result<(), DriverError> {
        let words = size_of("cuMemsetD32Async", self.bytes / WORD_BYTES, INVALID_VALUE)?;
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: all words are in device memory that we own, and the stream is live.
        unsafe { call!(context.cuMemsetD32Async(self.address, word, words, raw(stream))) }
    }

    /// Queues a copy of another span into this one, on this span's device. Refuses spans of different sizes.
    pub(crate) fn copy_from(&self, from: &Span<'_>, stream: Option<&Stream>) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        if from.bytes != self.bytes {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        let size = size_of(call, self.bytes, INVALID_VALUE)?;
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: both spans are in device memory that we own, and the stream is live. An overlap only makes contents
        // unspecified.
        unsafe { call!(context.cuMemcpyDtoDAsync_v2(self.address, from.address, size, raw(stream))) }
    }

    /// Reads the span into a slice of the same size, after the default stream's work. Does not wait for other
    /// streams.
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), DriverError> {
        if into.len() as u64 != self.bytes {
            return Err(DriverError { call: "cuMemcpyDtoH_v2", code: INVALID_VALUE });
        }
        let context = self.context;
        let _entered = context.enter()?;
        // SAFETY: writes exactly the slice's bytes, from device memory that we own, and returns when that is
        // done.
        unsafe { call!(context.cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), self.address, into.len())) }
    }
}

/// Memory created on a [`CudaDevice`](crate::CudaDevice), which can be mapped: the device's memory, or host memory
/// that replaces it. Dropping it releases it, like [`release`](parkade::device::DeviceBackend::release). It may
/// outlive its device.
pub struct CudaPhysical {
    context: Arc<Context>,
    /// The handles that have not been released yet, which are mapped at consecutive addresses: a single handle, or
    /// pages of host memory.
    handles: Vec<Handle>,
}

#[derive(Clone, Copy)]
struct Handle {
    handle: CUmemGenericAllocationHandle,
    bytes: u64,
}

impl CudaPhysical {
    /// Creates an empty object, to which [`CudaPhysical::append`] adds.
    fn none(context: &Arc<Context>) -> CudaPhysical {
        CudaPhysical { context: Arc::clone(context), handles: Vec::new() }
    }

    /// Creates `bytes` of memory, which the driver takes from the device immediately (facts: Sizes and addresses). The
    /// contents are unspecified.
    pub(crate) fn create(context: &Arc<Context>, bytes: u64) -> Result<CudaPhysical, DriverError> {
        CudaPhysical::create_as(context, bytes, &on_device(context))
    }

    /// Creates `bytes` of host memory on this NUMA node.
    fn create_on_host(context: &Arc<Context>, bytes: u64, node: i32) -> Result<CudaPhysical, DriverError> {
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: node };
        CudaPhysical::create_as(context, bytes, &plain(location))
    }

    fn create_as(context: &Arc<Context>, bytes: u64, properties: &CUmemAllocationProp) -> Result<CudaPhysical, DriverError> {
        let size = size_of("cuMemCreate", bytes, OUT_OF_MEMORY)?;
        let _entered = context.enter()?;
        let mut handle = 0;
        // SAFETY: writes one handle through the first pointer and reads the properties through the second;
        // the flags must be 0.
        unsafe { call!(context.cuMemCreate(&raw mut handle, size, properties, 0)) }?;
        Ok(CudaPhysical::of(context, handle, bytes))
    }

    /// Creates memory with a handle that the driver has just returned. Dropping the memory releases the handle.
    fn of(context: &Arc<Context>, handle: CUmemGenericAllocationHandle, bytes: u64) -> CudaPhysical {
        context.handles.fetch_add(1, Ordering::Relaxed);
        CudaPhysical { context: Arc::clone(context), handles: vec![Handle { handle, bytes }] }
    }

    /// Returns the size of the memory, excluding handles that have been released.
    pub(crate) fn bytes(&self) -> u64 {
        self.handles.iter().map(|handle| handle.bytes).sum()
    }

    /// Returns the number of its driver handles.
    fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Appends memory after this memory.
    fn append(&mut self, mut memory: CudaPhysical) {
        self.handles.append(&mut memory.handles);
    }

    /// Removes and returns up to this many handles, starting with the first.
    fn split_off_first(&mut self, handles: usize) -> CudaPhysical {
        let first = self.handles.drain(..handles.min(self.handles.len())).collect();
        CudaPhysical { context: Arc::clone(&self.context), handles: first }
    }

    /// Maps the memory at reserved addresses. The driver refuses if the addresses are not reserved, if something is
    /// mapped there, or if `bytes` is not the size of the entire memory (facts: Virtual memory calls).
    pub(crate) fn map(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let [handle] = self.handles[..] else { return self.map_each(address, bytes) };
        self.map_one(handle, address, bytes)
    }

    /// Maps several handles at consecutive addresses, all of them or none.
    fn map_each(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        if self.bytes() != bytes {
            return Err(DriverError { call: "cuMemMap", code: INVALID_VALUE });
        }
        let mut place = address;
        for &handle in &self.handles {
            if let Err(error) = self.map_one(handle, place, handle.bytes) {
                if place > address {
                    self.unmap_again(address, place - address)?;
                }
                return Err(error);
            }
            place += handle.bytes;
        }
        Ok(())
    }

    fn map_one(&self, handle: Handle, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemMap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the handle came from the driver and is not released while `self` lives. The driver checks the
        // addresses, and no work can use the mapping before access is granted. The offset and the flags must be 0.
        unsafe { call!(context.cuMemMap(address, size, 0, handle.handle, 0)) }
    }

    /// Undoes a mapping that [`CudaPhysical::map`] has just made.
    pub(crate) fn unmap_again(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemUnmap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the caller has just made this mapping, and no device has access to it, so no work uses it.
        unsafe { call!(context.cuMemUnmap(address, size)) }
    }

    /// Releases each handle once. After an error, the remaining handles are still held. The memory continues to exist
    /// wherever it is mapped.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        let context = &self.context;
        while let Some(last) = self.handles.last() {
            let _entered = context.enter()?;
            // SAFETY: created once and, because it is in the list, not released yet.
            unsafe { call!(context.cuMemRelease(last.handle)) }?;
            context.handles.fetch_sub(1, Ordering::Relaxed);
            self.handles.pop();
        }
        Ok(())
    }
}

impl Drop for CudaPhysical {
    fn drop(&mut self) {
        // There is no caller to report an error to.
        let _: Result<(), DriverError> = self.give_back();
    }
}

/// Returns the unit in bytes in which memory is created and mapped.
pub(crate) fn granularity_bytes(context: &Context) -> Result<u64, DriverError> {
    let (mut bytes, properties) = (0_usize, on_device(context));
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let _entered = context.enter()?;
    // SAFETY: writes one size through the first pointer and reads the properties through the second.
    unsafe { call!(context.cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, minimum)) }?;
    Ok(bytes as u64)
}

/// Returns the properties of device memory that other processes may open and that may be registered for RDMA, if the
/// device supports this. PyTorch creates its memory with the same properties (spec 4.5).
fn on_device(context: &Context) -> CUmemAllocationProp {
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device };
    let mut properties = plain(location);
    if context.exports_files {
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    properties.allocFlags.gpuDirectRDMACapable = u8::from(context.registers_rdma);
    properties
}

/// Returns the properties of memory that is not shared with other processes.
fn plain(location: CUmemLocation) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// A range of reserved addresses with its mappings. It is freed when dropped.
///
/// Its calls stay inside the range, so they never affect addresses of other owners. Inside the range, the driver
/// decides which calls to refuse.
pub(crate) struct Reservation {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
    /// Whether the range has not been freed yet.
    held: bool,
    mappings: Mappings,
    /// The exported file descriptors of mapped handles, by address. Each keeps the memory on the device, so it is closed
    /// when the handle is unmapped.
    exported: BTreeMap<u64, OwnedFd>,
}

impl Reservation {
    /// Reserves addresses. The driver chooses the location and the alignment.
    pub(crate) fn take(context: &Arc<Context>, bytes: u64) -> Result<Reservation, DriverError> {
        let size = size_of("cuMemAddressReserve", bytes, INVALID_VALUE)?;
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address through the pointer. Alignment 0 and address 0 let the driver choose both; the
        // flags must be 0.
        unsafe { call!(context.cuMemAddressReserve(&raw mut address, size, 0, 0, 0)) }?;
        Ok(Reservation {
            context: Arc::clone(context),
            address,
            bytes,
            held: true,
            mappings: Mappings::default(),
            exported: BTreeMap::new(),
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how many mappings the range has.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// Returns whether a range is inside this one.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|offset| offset < self.bytes && bytes <= self.bytes - offset)
    }

    /// Maps memory at addresses in the range.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, memory: &CudaPhysical) -> Result<(), DriverError> {
        self.contain("cuMemMap", address, bytes)?;
        memory.map(address, bytes)?;
        self.mappings.insert(address, bytes);
        Ok(())
    }

    /// Grants this device and the peers read and write access to the mappings in a part of the range.
    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, peers: &[Peer]) -> Result<(), DriverError> {
        let devices: Vec<CUdevice> = std::iter::once(self.context.device).chain(peers.iter().map(Peer::device)).collect();
        self.give_access(address, bytes, &devices, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        self.mappings.open(address, bytes);
        Ok(())
    }

    /// Grants a peer read and write access to all mappings that the device may access. If this fails, the peer has
    /// access to none of them.
    pub(crate) fn open_to(&self, peer: &Peer) -> Result<(), DriverError> {
        let read_write = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let opened = self
            .mappings
            .open_runs()
            .iter()
            .try_for_each(|&(address, bytes)| self.give_access(address, bytes, &[peer.device()], read_write));
        if opened.is_err() {
            self.close_to(peer);
        }
        opened
    }

    /// Revokes a peer's access. Errors are ignored, because this undoes a step that failed.
    pub(crate) fn close_to(&self, peer: &Peer) {
        for (address, bytes) in self.mappings.open_runs() {
            let none = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
            let _: Result<(), DriverError> = self.give_access(address, bytes, &[peer.device()], none);
        }
    }

    fn give_access(&self, address: u64, bytes: u64, devices: &[CUdevice], flags: CUmemAccess_flags) -> Result<(), DriverError> {
        let size = self.contain("cuMemSetAccess", address, bytes)?;
        let access = |&id| {
            let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id };
            CUmemAccessDesc { location, flags }
        };
        let accesses: Vec<CUmemAccessDesc> = devices.iter().map(access).collect();
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: reads `accesses.len()` descriptions through the pointer. We own the addresses, and the driver
        // checks what is mapped there.
        unsafe { call!(context.cuMemSetAccess(address, size, accesses.as_ptr(), accesses.len())) }
    }

    /// Unmaps a part of the range. Does not wait for work that uses it.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = self.contain("cuMemUnmap", address, bytes)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: we own the addresses. Work that still uses the memory fails on the device and does not access other
        // memory.
        unsafe { call!(context.cuMemUnmap(address, size)) }?;
        self.mappings.remove(address, bytes);
        self.exported.retain(|place, _| !(address..address.saturating_add(bytes)).contains(place));
        Ok(())
    }

    /// Returns the handles under a part of the range, lowest address first, in the form in which other processes open
    /// them: address, bytes, and a file descriptor that stays open for as long as the handle is mapped there.
    pub(crate) fn export(&mut self, address: u64, bytes: u64) -> Result<Vec<(u64, u64, BorrowedFd<'_>)>, DriverError> {
        let call = "cuMemExportToShareableHandle";
        self.contain(call, address, bytes)?;
        // After a reset, the descriptors refer to memory that no longer exists.
        let context = Arc::clone(&self.context);
        let _entered = context.enter()?;
        let handles = self.mappings.under(address, bytes).ok_or(DriverError { call, code: INVALID_VALUE })?;
        for &(place, _) in &handles {
            if !self.exported.contains_key(&place) {
                self.exported.insert(place, export(&self.context, place)?);
            }
        }
        let described = |(place, bytes)| Some((place, bytes, self.exported.get(&place)?.as_fd()));
        Ok(handles.into_iter().filter_map(described).collect())
    }

    /// Returns whether another process may have opened a handle that is mapped in part of the range.
    pub(crate) fn is_exported(&self, address: u64, bytes: u64) -> bool {
        self.exported.range(address..address.saturating_add(bytes)).next().is_some()
    }

    /// Frees the addresses. The driver refuses to free a part of the range or a range with mappings. After an error,
    /// the range is still held.
    pub(crate) fn give_back(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = self.contain("cuMemAddressFree", address, bytes)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: we own the addresses and, according to `held`, have not freed them yet.
        unsafe { call!(context.cuMemAddressFree(address, size)) }?;
        self.held = false;
        Ok(())
    }

    /// Returns a part of the range, if the device may access it.
    pub(crate) fn span(&self, call: &'static str, address: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        self.contain(call, address, bytes)?;
        if !self.mappings.are_open(address, bytes) {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        Ok(Span::new(&self.context, address, bytes))
    }

    /// Refuses addresses outside the range. Returns the size as the driver's type.
    fn contain(&self, call: &'static str, address: u64, bytes: u64) -> Result<usize, DriverError> {
        let inside = self.held && self.contains(address, bytes);
        if inside { size_of(call, bytes, INVALID_VALUE) } else { Err(DriverError { call, code: INVALID_VALUE }) }
    }
}

impl Drop for Reservation {
    /// Unmaps everything in one call, which may span gaps (facts: Virtual memory calls), then frees the addresses. The
    /// owner first waits for work that may use the addresses. There is no caller to report an error to.
    fn drop(&mut self) {
        if self.held {
            let (address, bytes) = (self.address, self.bytes);
            let _: Result<(), DriverError> = self.unmap(address, bytes);
            let _: Result<(), DriverError> = self.give_back(address, bytes);
        }
    }
}

const FILE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Returns the handle that is mapped at an address, as a file descriptor.
fn export(context: &Context, address: u64) -> Result<OwnedFd, DriverError> {
    let _entered = context.enter()?;
    let mut handle = 0;
    let mapped = ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    // SAFETY: writes one handle through the first pointer. The second is a device address, at which the caller has mapped memory.
    unsafe { call!(context.cuMemRetainAllocationHandle(&raw mut handle, mapped)) }?;
    let mut file = -1_i32;
    // SAFETY: for this type, the driver writes a file descriptor (an int) through the pointer. The handle was retained
    // above; the flags must be 0.
    let exported = unsafe { call!(context.cuMemExportToShareableHandle((&raw mut file).cast(), handle, FILE, 0)) };
    // SAFETY: retained above and released once. The memory continues to exist where it is mapped.
    let released = unsafe { call!(context.cuMemRelease(handle)) };
    exported?;
    // SAFETY: the driver has just opened it for the caller, and no other code knows it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    released?;
    // The clone is closed on exec. Otherwise, a program started by this process would keep the memory on the device.
    Ok(match file.try_clone() {
        Ok(copy) => copy,
        Err(_) => file,
    })
}

/// Memory of another process's expandable segments, mapped in this process until it is dropped. Dropping it first waits
/// for the device's work, if the driver can wait. Until then, the memory stays on the device, even if the other process
/// releases it.
pub struct SharedMemory {
    context: Arc<Context>,
    /// The addresses, which are unmapped before the handles are released.
    addresses: Reservation,
    _handles: Vec<CudaPhysical>,
}

impl SharedMemory {
    /// Opens handles, with the sizes that the other process reported, at consecutive addresses, for the device with
    /// this index and its peers. The file descriptors may be closed afterwards.
    ///
    /// # Errors
    /// The device or a peer does not exist, there are no handles, or the driver refuses one: the file descriptor does
    /// not belong to a handle, or the handle has a different size.
    pub fn open(ordinal: u32, handles: &[(BorrowedFd<'_>, Bytes)], peers: &[u32]) -> Result<SharedMemory, Unavailable> {
        let context = Context::open(ordinal)?;
        let peers = peers.iter().map(|&peer| Peer::of(&context, peer)).collect::<Result<Vec<_>, _>>()?;
        let total = handles.iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(bytes.get()));
        // No range has that many bytes, or 0 bytes.
        let total = total.filter(|&total| total > 0).ok_or(DriverError { call: "cuMemAddressReserve", code: INVALID_VALUE })?;
        let mut opened = Vec::with_capacity(handles.len());
        let mut addresses = Reservation::take(&context, total)?;
        let mut place = addresses.address();
        for &(file, bytes) in handles {
            let handle = import(&context, file, bytes.get())?;
            addresses.map(place, bytes.get(), &handle)?;
            opened.push(handle);
            place += bytes.get();
        }
        addresses.set_access(addresses.address(), total, &peers)?;
        Ok(SharedMemory { context, addresses, _handles: opened })
    }

    /// Returns the address of the memory in this process.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress(self.addresses.address())
    }

    /// Returns its size.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.addresses.bytes())
    }

    /// Grants the device with this index access.
    ///
    /// # Errors
    /// There is no device with this index, it cannot reach this device's memory, or a driver call fails. In that case,
    /// it has no access.
    pub fn let_peer_access(&self, ordinal: u32) -> Result<(), DriverError> {
        self.addresses.open_to(&Peer::of(&self.context, ordinal)?)
    }

    /// Reads from an offset onwards, after the default stream's work.
    ///
    /// # Errors
    /// Some of the bytes are outside the memory, or the driver call fails.
    pub fn read(&self, offset: Bytes, into: &mut [u8]) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoH_v2";
        let address = self.addresses.address().checked_add(offset.get()).ok_or(DriverError { call, code: INVALID_VALUE })?;
        self.addresses.span(call, address, into.len() as u64)?.read(into)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // There is no caller to report an error to.
        let _: Result<(), DriverError> = self.context.synchronize();
    }
}

fn import(context: &Arc<Context>, file: BorrowedFd<'_>, bytes: u64) -> Result<CudaPhysical, DriverError> {
    let _entered = context.enter()?;
    let mut handle = 0;
    let number = ptr::without_provenance_mut::<c_void>(file.as_raw_fd() as usize);
    // SAFETY: writes one handle through the first pointer. For this type, the second is the number of an open file
    // descriptor.
    unsafe { call!(context.cuMemImportFromShareableHandle(&raw mut handle, number, FILE)) }?;
    Ok(CudaPhysical::of(context, handle, bytes))
}

/// A stage: host memory at device addresses, which holds contents while the device's memory is replaced.
///
/// It needs no room on the device, which has none at that point. Allocating host memory is slow (0.5 ms per MiB on an
/// H100, driver 580.159.04), so the stage keeps its memory; later copies run at the speed of the bus (55 GB/s there).
/// The stage has one handle for every 2 MiB, so that just enough of it can be mapped at the original addresses of the
/// contents if the device does not provide memory for them again.
pub(crate) struct Stage {
    context: Arc<Context>,
    /// The host's NUMA node that is nearest to the device.
    node: i32,
    /// The addresses at which the stage is mapped, starting from the first. The range is as long as the device's
    /// memory, because no handle is larger.
    addresses: Reservation,
    pages: CudaPhysical,
    page_bytes: u64,
}

impl Stage {
    /// Returns whether the device can use host memory in place of its own.
    pub(crate) fn is_possible(context: &Context) -> bool {
        let supported = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        context.attribute(supported).is_ok_and(|answer| answer != 0)
    }

    /// Creates a stage without memory.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Stage, DriverError> {
        // This is -1 if the host has no NUMA nodes.
        let node = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)?.max(0);
        let page_bytes = granularity_bytes(context)?;
        let bytes = context.total_memory_bytes()?.next_multiple_of(page_bytes);
        let addresses = Reservation::take(context, bytes)?;
        Ok(Stage { context: Arc::clone(context), node, addresses, pages: CudaPhysical::none(context), page_bytes })
    }

    /// Returns the number of handles that the stage holds.
    pub(crate) fn handles(&self) -> usize {
        self.pages.handles()
    }

    /// Grows the stage's memory to this size. After an error, the stage can no longer be used and must be dropped.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), DriverError> {
        let start = self.bytes();
        if bytes <= start {
            return Ok(());
        }
        self.add_pages(bytes)?;
        self.addresses.set_access(self.addresses.address() + start, self.bytes() - start, &[])
    }

    fn add_pages(&mut self, bytes: u64) -> Result<(), DriverError> {
        while self.bytes() < bytes {
            let page = CudaPhysical::create_on_host(&self.context, self.page_bytes, self.node)?;
            self.addresses.map(self.addresses.address() + self.bytes(), self.page_bytes, &page)?;
            self.pages.append(page);
        }
        Ok(())
    }

    /// Returns a part of the stage that starts at an offset.
    pub(crate) fn span(&self, offset: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        self.addresses.span("cuMemcpyDtoDAsync_v2", self.addresses.address() + offset, bytes)
    }

    /// Removes the first bytes from the stage, with their contents, so that they can be mapped elsewhere. Releases the
    /// rest.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<CudaPhysical, DriverError> {
        if bytes > self.bytes() {
            return Err(DriverError { call: "cuMemMap", code: INVALID_VALUE });
        }
        self.addresses.unmap(self.addresses.address(), self.bytes())?;
        let mut pages = std::mem::replace(&mut self.pages, CudaPhysical::none(&self.context));
        Ok(pages.split_off_first(usize::try_from(bytes / self.page_bytes).unwrap_or(usize::MAX)))
    }

    fn bytes(&self) -> u64 {
        self.pages.handles() as u64 * self.page_bytes
    }
}
