//! Virtual memory: physical memory without an address, created by cuMemCreate and mapped by cuMemMap; reserved
//! addresses and the mappings in them; created memory in several processes, exported as file descriptors and opened
//! from them; and the stage, where contents wait while memory is replaced.

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

use super::context::Context;
use super::context::Peer;
use super::memory::Span;
use super::table::{INVALID_VALUE, OUT_OF_MEMORY, call, size_of};
use crate::error::{DriverError, Unavailable};
use crate::mappings::Mappings;

/// Memory created on a [`CudaDevice`](crate::CudaDevice), which may be mapped. It is the device's, or the host's
/// where that stands in for it. It is released when dropped,
/// as by [`release`](parkade::device::DeviceBackend::release), and may outlive its device.
pub struct CudaPhysical {
    context: Arc<Context>,
    /// Those that are not released yet, which are mapped one behind the other: one, or pages of the host's memory.
    handles: Vec<Handle>,
}

#[derive(Clone, Copy)]
struct Handle {
    handle: CUmemGenericAllocationHandle,
    bytes: u64,
}

impl CudaPhysical {
    /// No memory, to which [`CudaPhysical::append`] adds.
    fn none(context: &Arc<Context>) -> CudaPhysical {
        CudaPhysical { context: Arc::clone(context), handles: Vec::new() }
    }

    /// Creates `bytes` of memory, which is taken at once (facts: Sizes and addresses). The contents are
    /// unspecified.
    pub(crate) fn create(context: &Arc<Context>, bytes: u64) -> Result<CudaPhysical, DriverError> {
        CudaPhysical::create_as(context, bytes, &on_device(context))
    }

    /// Creates `bytes` of the host's memory, on this node of it.
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

    /// Memory whose handle the driver has just given, which is released with this.
    fn of(context: &Arc<Context>, handle: CUmemGenericAllocationHandle, bytes: u64) -> CudaPhysical {
        context.handles.fetch_add(1, Ordering::Relaxed);
        CudaPhysical { context: Arc::clone(context), handles: vec![Handle { handle, bytes }] }
    }

    /// Its size; what is released is not counted.
    pub(crate) fn bytes(&self) -> u64 {
        self.handles.iter().map(|handle| handle.bytes).sum()
    }

    /// How many handles of the driver it has.
    fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Adds memory behind this.
    fn append(&mut self, mut memory: CudaPhysical) {
        self.handles.append(&mut memory.handles);
    }

    /// Takes the first handles, as many as there are up to this number, away.
    fn split_off_first(&mut self, handles: usize) -> CudaPhysical {
        let first = self.handles.drain(..handles.min(self.handles.len())).collect();
        CudaPhysical { context: Arc::clone(&self.context), handles: first }
    }

    /// Maps the memory at reserved addresses. The driver refuses if they are not reserved, if something is
    /// mapped there, or if this is not all of the memory (facts: Virtual memory calls).
    pub(crate) fn map(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let [handle] = self.handles[..] else { return self.map_each(address, bytes) };
        self.map_one(handle, address, bytes)
    }

    /// Maps several handles one behind the other, all of them or none.
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
        // SAFETY: the handle is the driver's and not released while `self` lives. The driver checks the
        // addresses, and no work can touch the mapping before access is given. The offset and the flags must
        // be 0.
        unsafe { call!(context.cuMemMap(address, size, 0, handle.handle, 0)) }
    }

    /// Undoes a mapping that [`CudaPhysical::map`] has just made.
    pub(crate) fn unmap_again(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = size_of("cuMemUnmap", bytes, INVALID_VALUE)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the caller has just made this mapping, and nobody has access to it, so no work uses it.
        unsafe { call!(context.cuMemUnmap(address, size)) }
    }

    /// Releases the handles, each once. After an error the rest is still held. The memory lives on where it is mapped.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        let context = &self.context;
        while let Some(last) = self.handles.last() {
            let _entered = context.enter()?;
            // SAFETY: created once and, as it is in the list, not released yet.
            unsafe { call!(context.cuMemRelease(last.handle)) }?;
            context.handles.fetch_sub(1, Ordering::Relaxed);
            self.handles.pop();
        }
        Ok(())
    }
}

impl Drop for CudaPhysical {
    fn drop(&mut self) {
        // An error cannot be reported from here.
        let _: Result<(), DriverError> = self.give_back();
    }
}

/// The unit in bytes in which memory is created and mapped.
pub(crate) fn granularity_bytes(context: &Context) -> Result<u64, DriverError> {
    let (mut bytes, properties) = (0_usize, on_device(context));
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let _entered = context.enter()?;
    // SAFETY: writes one size through the first pointer and reads the properties through the second.
    unsafe { call!(context.cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, minimum)) }?;
    Ok(bytes as u64)
}

/// Memory of the device that other processes may open and that may be registered for RDMA, where the device can do it: as PyTorch
/// asks for it (spec 4.5).
fn on_device(context: &Context) -> CUmemAllocationProp {
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device };
    let mut properties = plain(location);
    if context.exports_files {
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    properties.allocFlags.gpuDirectRDMACapable = u8::from(context.registers_rdma);
    properties
}

/// Memory that is not shared with other processes.
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

/// A range of reserved addresses with its mappings, freed when dropped.
///
/// Its calls stay inside the range, so they touch nobody else's addresses. What to refuse inside the range is
/// left to the driver.
pub(crate) struct Reservation {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
    /// Whether the range is not freed yet.
    held: bool,
    mappings: Mappings,
    /// The file descriptors of mapped handles that were exported, by address. Each keeps the memory at the device, so it is
    /// closed when the handle is unmapped.
    exported: BTreeMap<u64, OwnedFd>,
}

impl Reservation {
    /// Reserves addresses. The driver chooses the place and the alignment.
    pub(crate) fn take(context: &Arc<Context>, bytes: u64) -> Result<Reservation, DriverError> {
        let size = size_of("cuMemAddressReserve", bytes, INVALID_VALUE)?;
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address through the pointer. Alignment 0 and address 0 leave both to the driver;
        // the flags must be 0.
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

    /// How many mappings it has.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// Whether a range lies in this one.
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

    /// Gives this device and the peers read and write access to the mappings in a part of the range.
    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, peers: &[Peer]) -> Result<(), DriverError> {
        let devices: Vec<CUdevice> = std::iter::once(self.context.device).chain(peers.iter().map(Peer::device)).collect();
        self.give_access(address, bytes, &devices, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?;
        self.mappings.open(address, bytes);
        Ok(())
    }

    /// Gives a peer read and write access to all mappings that the device may touch; to none if that fails.
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

    /// Takes a peer's access away. Errors are ignored, because this undoes a step that failed.
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
        // SAFETY: reads `accesses.len()` descriptions through the pointer. The addresses are ours, and the
        // driver checks what is mapped there.
        unsafe { call!(context.cuMemSetAccess(address, size, accesses.as_ptr(), accesses.len())) }
    }

    /// Unmaps a part of the range. Does not wait for work that uses it.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = self.contain("cuMemUnmap", address, bytes)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the addresses are ours. Work that still uses the memory fails on the device and reaches no
        // other memory.
        unsafe { call!(context.cuMemUnmap(address, size)) }?;
        self.mappings.remove(address, bytes);
        self.exported.retain(|place, _| !(address..address.saturating_add(bytes)).contains(place));
        Ok(())
    }

    /// The handles under a part of the range, lowest first, as other processes may open them: address, bytes, and a file descriptor
    /// that stays open for as long as the handle is mapped there.
    pub(crate) fn export(&mut self, address: u64, bytes: u64) -> Result<Vec<(u64, u64, BorrowedFd<'_>)>, DriverError> {
        let call = "cuMemExportToShareableHandle";
        self.contain(call, address, bytes)?;
        // After a reset the descriptors are of memory that is no more.
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

    /// Whether another process may have opened a handle that is mapped in a part of the range.
    pub(crate) fn is_exported(&self, address: u64, bytes: u64) -> bool {
        self.exported.range(address..address.saturating_add(bytes)).next().is_some()
    }

    /// Frees the addresses. The driver refuses a part of the range, and a range with mappings. After an error
    /// they are still held.
    pub(crate) fn give_back(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let size = self.contain("cuMemAddressFree", address, bytes)?;
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the addresses are ours and, as `held` says, not freed yet.
        unsafe { call!(context.cuMemAddressFree(address, size)) }?;
        self.held = false;
        Ok(())
    }

    /// A part of the range that the device may touch.
    pub(crate) fn span(&self, call: &'static str, address: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        self.contain(call, address, bytes)?;
        if !self.mappings.are_open(address, bytes) {
            return Err(DriverError { call, code: INVALID_VALUE });
        }
        Ok(Span::new(&self.context, address, bytes))
    }

    /// Refuses addresses outside the range. Returns the size as the driver takes it.
    fn contain(&self, call: &'static str, address: u64, bytes: u64) -> Result<usize, DriverError> {
        let inside = self.held && self.contains(address, bytes);
        if inside { size_of(call, bytes, INVALID_VALUE) } else { Err(DriverError { call, code: INVALID_VALUE }) }
    }
}

impl Drop for Reservation {
    /// Unmaps everything in one call, which may cross gaps (facts: Virtual memory calls), then frees the
    /// addresses. The owner waits first for work that may use them. An error cannot be reported from here.
    fn drop(&mut self) {
        if self.held {
            let (address, bytes) = (self.address, self.bytes);
            let _: Result<(), DriverError> = self.unmap(address, bytes);
            let _: Result<(), DriverError> = self.give_back(address, bytes);
        }
    }
}

const FILE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The handle that is mapped at an address, as a file descriptor.
fn export(context: &Context, address: u64) -> Result<OwnedFd, DriverError> {
    let _entered = context.enter()?;
    let mut handle = 0;
    let mapped = ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    // SAFETY: writes one handle through the first pointer. The second is a device address, at which the caller has mapped memory.
    unsafe { call!(context.cuMemRetainAllocationHandle(&raw mut handle, mapped)) }?;
    let mut file = -1_i32;
    // SAFETY: for this type the driver writes a file descriptor, an int, through the pointer. The handle was retained above; the flags
    // must be 0.
    let exported = unsafe { call!(context.cuMemExportToShareableHandle((&raw mut file).cast(), handle, FILE, 0)) };
    // SAFETY: retained above, released once. The memory lives on where it is mapped.
    let released = unsafe { call!(context.cuMemRelease(handle)) };
    exported?;
    // SAFETY: the driver has just opened it for the caller, and nobody else knows it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    released?;
    // A copy is closed by exec: a program that is started would keep the memory at the device.
    Ok(match file.try_clone() {
        Ok(copy) => copy,
        Err(_) => file,
    })
}

/// Memory of expandable segments of another process, mapped in this one until it is dropped, which waits for the device's work first,
/// where the driver can wait. Meanwhile the memory stays at the device, also if the other process gives it back.
pub struct SharedMemory {
    context: Arc<Context>,
    /// Unmapped before the handles are released.
    addresses: Reservation,
    _handles: Vec<CudaPhysical>,
}

impl SharedMemory {
    /// Opens handles of the sizes that the other process said, one behind the other, for the device with this index and its peers. The
    /// file descriptors may be closed afterwards.
    ///
    /// # Errors
    /// If there is no such device, a peer is none, there are no handles, or the driver refuses one: a file descriptor of something else, a
    /// handle of another size.
    pub fn open(ordinal: u32, handles: &[(BorrowedFd<'_>, Bytes)], peers: &[u32]) -> Result<SharedMemory, Unavailable> {
        let context = Context::open(ordinal)?;
        let peers = peers.iter().map(|&peer| Peer::of(&context, peer)).collect::<Result<Vec<_>, _>>()?;
        let total = handles.iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(bytes.get()));
        // No range has so many bytes, or none.
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

    /// Where it is in this process.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress(self.addresses.address())
    }

    /// Its size.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.addresses.bytes())
    }

    /// Gives the device with this index access.
    ///
    /// # Errors
    /// If there is no such device, it cannot reach this one's memory, or a driver call fails. Then it has no access.
    pub fn let_peer_access(&self, ordinal: u32) -> Result<(), DriverError> {
        self.addresses.open_to(&Peer::of(&self.context, ordinal)?)
    }

    /// Reads from an offset on, after the default stream's work.
    ///
    /// # Errors
    /// If a part of it lies outside of the memory, or the driver call fails.
    pub fn read(&self, offset: Bytes, into: &mut [u8]) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoH_v2";
        let address = self.addresses.address().checked_add(offset.get()).ok_or(DriverError { call, code: INVALID_VALUE })?;
        self.addresses.span(call, address, into.len() as u64)?.read(into)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // An error cannot be reported from here.
        let _: Result<(), DriverError> = self.context.synchronize();
    }
}

fn import(context: &Arc<Context>, file: BorrowedFd<'_>, bytes: u64) -> Result<CudaPhysical, DriverError> {
    let _entered = context.enter()?;
    let mut handle = 0;
    let number = ptr::without_provenance_mut::<c_void>(file.as_raw_fd() as usize);
    // SAFETY: writes one handle through the first pointer. For this type the second is the number of a file descriptor, which is open.
    unsafe { call!(context.cuMemImportFromShareableHandle(&raw mut handle, number, FILE)) }?;
    Ok(CudaPhysical::of(context, handle, bytes))
}

/// A stage: memory of the host at addresses of the device, where contents wait while the device's memory is replaced.
///
/// It needs no room on the device, which has none when this is done. Taking the host's memory is slow (0.5 ms for a MiB on an
/// H100, driver 580.159.04), so it is kept; copies then go at the speed of the bus (55 GB/s there). It has one handle for each 2 MiB, so
/// that as much of it as is needed can be mapped at the addresses where contents came from, if the device does not give memory for them again.
pub(crate) struct Stage {
    context: Arc<Context>,
    /// The host's node that is nearest to the device.
    node: i32,
    /// The addresses at which it is mapped, from the first on. As long as the device's memory, so that no handle is larger.
    addresses: Reservation,
    pages: CudaPhysical,
    page_bytes: u64,
}

impl Stage {
    /// Whether the device can use memory of the host in the place of its own.
    pub(crate) fn is_possible(context: &Context) -> bool {
        let supported = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        context.attribute(supported).is_ok_and(|answer| answer != 0)
    }

    /// A stage without memory.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Stage, DriverError> {
        // -1 where the host is not divided into nodes.
        let node = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)?.max(0);
        let page_bytes = granularity_bytes(context)?;
        let bytes = context.total_memory_bytes()?.next_multiple_of(page_bytes);
        let addresses = Reservation::take(context, bytes)?;
        Ok(Stage { context: Arc::clone(context), node, addresses, pages: CudaPhysical::none(context), page_bytes })
    }

    /// How many handles it holds.
    pub(crate) fn handles(&self) -> usize {
        self.pages.handles()
    }

    /// Takes memory up to this size. After an error it cannot be used any more, and is to be dropped.
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

    /// A part of it, from an offset on.
    pub(crate) fn span(&self, offset: u64, bytes: u64) -> Result<Span<'_>, DriverError> {
        self.addresses.span("cuMemcpyDtoDAsync_v2", self.addresses.address() + offset, bytes)
    }

    /// Takes the first bytes out of it, to be mapped somewhere else with what is in them. The others are given back.
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
