//! An allocator of the C interface: its functions as methods that cannot be called wrongly. All of this crate's unsafe code
//! is here.
//!
//! Every `unsafe` block relies on the same argument. The allocator was made by `parkade_create`; only `Heap::drop` destroys
//! it, and nothing can call it after that. Every other pointer is null, or refers to a value that lives until the function
//! returns. No pointer to the program's data is passed: the functions that parkade calls keep their data in thread-local
//! variables, and the program has one thread.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::{ptr, slice};

use parkade_capi::parkade_status::PARKADE_OK;
use parkade_capi::*;

/// The address of a block.
pub(super) type Address = u64;

thread_local! {
    /// The blocks that the callback frees, the last one first.
    static GIVEN_UP: RefCell<Vec<Address>> = const { RefCell::new(Vec::new()) };
    /// The blocks that the callback has freed.
    static FREED: RefCell<Vec<Address>> = const { RefCell::new(Vec::new()) };
    /// The ranges that were lent to a pool, with their sizes, and the number of those that were given back wrongly.
    static LENT: RefCell<(BTreeMap<Address, u64>, usize)> = const { RefCell::new((BTreeMap::new(), 0)) };
}

fn pointer(address: Address) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}

/// Frees one of the blocks that were given up.
extern "C" fn free_one(allocator: *mut c_void) -> bool {
    let Some(address) = GIVEN_UP.with_borrow_mut(Vec::pop) else { return false };
    // SAFETY: see the module's documentation; the pointer is the allocator that was registered with this function.
    if unsafe { parkade_free(allocator.cast(), pointer(address)) } == PARKADE_OK {
        FREED.with_borrow_mut(|freed| freed.push(address));
    }
    true
}

/// Lends a range at an address at which the simulated device has nothing, up to a total of 256 MiB.
extern "C" fn lend(_: *mut c_void, bytes: u64) -> *mut c_void {
    const FIRST: Address = 0x5000_0000_0000;
    LENT.with_borrow_mut(|(lent, _)| {
        if lent.values().sum::<u64>().saturating_add(bytes) > 256 << 20 {
            return ptr::null_mut();
        }
        let address = lent.last_key_value().map_or(FIRST, |(address, bytes)| (address + bytes).next_multiple_of(2 << 20));
        lent.insert(address, bytes);
        pointer(address)
    })
}

extern "C" fn take_back(_: *mut c_void, address: *mut c_void) {
    LENT.with_borrow_mut(|(lent, wrong)| *wrong += usize::from(lent.remove(&(address.addr() as u64)).is_none()));
}

extern "C" fn observe(_: *mut c_void, _: *const parkade_entry) {}

extern "C" fn observe_rescue(_: *mut c_void, _: *const parkade_rescue) {}

extern "C" fn see_pool(_: *mut c_void, _: parkade_pool, _: *const parkade_stat_set) {}

extern "C" fn see_expandable(_: *mut c_void, _: *const parkade_expandable) {}

extern "C" fn see_handle(_: *mut c_void, _: *const parkade_shared_handle) {}

/// The options of an allocator on a simulated device.
pub(super) struct Options<'o> {
    pub(super) bytes: u64,
    pub(super) flags: u32,
    /// The index of the policy; `None` is the default.
    pub(super) policy: Option<usize>,
    pub(super) settings: &'o str,
    pub(super) release: &'o str,
    pub(super) most_rescues: u64,
}

/// An allocator, or null: every function must refuse a null pointer.
pub(super) struct Heap(*mut parkade_allocator);

/// Calls a function on the allocator; `into` is the variable for the answer.
macro_rules! call {
    ($self:ident, $function:ident($($argument:expr),*)) => {
        // SAFETY: see the module's documentation.
        match unsafe { $function($self.0, $($argument),*) } {
            PARKADE_OK => Ok(()),
            status => Err(status),
        }
    };
    ($self:ident, $function:ident($($argument:expr),*), into $answer:expr) => {{
        let mut answer = $answer;
        call!($self, $function($($argument,)* &raw mut answer)).map(|()| answer)
    }};
}

type Answer<T> = Result<T, parkade_status>;

impl Heap {
    pub(super) const NULL: Heap = Heap(ptr::null_mut());

    /// Creates an allocator.
    pub(super) fn create(options: &Options<'_>) -> Answer<Heap> {
        GIVEN_UP.take();
        FREED.take();
        LENT.take();
        let text = |text: &str| CString::new(text.replace('\0', " ")).expect("the text has no NUL");
        let (settings, release) = (text(options.settings), text(options.release));
        let given = parkade_options {
            size: size_of::<parkade_options>(),
            device: 0,
            flags: options.flags,
            // 0 bytes would be a real device.
            simulated_bytes: options.bytes.max(1),
            policy: options.policy.map_or(ptr::null(), |at| parkade_policy_name(at)),
            settings: settings.as_ptr(),
            release: release.as_ptr(),
            most_rescues: options.most_rescues,
        };
        let mut allocator = ptr::null_mut();
        // SAFETY: see the module's documentation; the streams of a simulated device are numbers.
        match unsafe { parkade_create(&raw const given, &raw mut allocator) } {
            PARKADE_OK => Ok(Heap(allocator)),
            status => Err(status),
        }
    }

    pub(super) fn allocate(&self, bytes: u64, stream: u64) -> Answer<Address> {
        call!(self, parkade_allocate(bytes, stream), into ptr::null_mut()).map(|address| address.addr() as u64)
    }

    pub(super) fn serve(&self, request: &parkade_request, at: Option<Address>) -> Answer<Address> {
        let served = match at {
            None => call!(self, parkade_serve(request), into ptr::null_mut()),
            Some(at) => call!(self, parkade_serve_at(request, pointer(at)), into ptr::null_mut()),
        };
        served.map(|address| address.addr() as u64)
    }

    pub(super) fn free(&self, address: Address) -> Answer<()> {
        call!(self, parkade_free(pointer(address)))
    }

    pub(super) fn free_so(&self, address: Address, flags: u32) -> Answer<()> {
        call!(self, parkade_free_so(pointer(address), flags))
    }

    pub(super) fn record_stream(&self, address: Address, stream: u64, flags: u32) -> Answer<()> {
        call!(self, parkade_record_stream(pointer(address), stream, flags))
    }

    pub(super) fn record_stream_of(&self, address: Address, device: u32, stream: u64, flags: u32) -> Answer<()> {
        call!(self, parkade_record_stream_of(pointer(address), device, stream, flags))
    }

    pub(super) fn block(&self, address: Address) -> Answer<parkade_block_info> {
        call!(self, parkade_block(pointer(address)), into parkade_block_info::default())
    }

    pub(super) fn empty_cache(&self, pool: Option<&parkade_pool>, flags: u32) -> Answer<()> {
        call!(self, parkade_empty_cache(pool.map_or(ptr::null(), ptr::from_ref), flags))
    }

    pub(super) fn set_fraction(&self, fraction: f64) -> Answer<f64> {
        call!(self, parkade_set_memory_fraction(fraction))?;
        call!(self, parkade_memory_fraction(), into 0.0)
    }

    pub(super) fn set_limit(&self, bytes: u64) -> Answer<()> {
        call!(self, parkade_set_limit(bytes))
    }

    pub(super) fn apply(&self, settings: &str) -> Answer<()> {
        let text = CString::new(settings.replace('\0', " ")).expect("the text has no NUL");
        call!(self, parkade_apply_settings(text.as_ptr()))
    }

    /// Reads the settings, and sets them after a change.
    pub(super) fn set_settings(&self, change: impl FnOnce(&mut parkade_settings)) -> Answer<()> {
        let mut settings = call!(self, parkade_read_settings(), into parkade_settings::default())?;
        change(&mut settings);
        call!(self, parkade_set_settings(&raw const settings))
    }

    pub(super) fn create_pool(&self, pool: parkade_pool) -> Answer<()> {
        call!(self, parkade_pool_create(pool))
    }

    pub(super) fn begin_pool(&self, pool: parkade_pool, route: i32, stream: u64) -> Answer<()> {
        call!(self, parkade_pool_begin(pool, route, stream))
    }

    pub(super) fn end_pool(&self, pool: parkade_pool) -> Answer<()> {
        call!(self, parkade_pool_end(pool))
    }

    pub(super) fn release_pool(&self, pool: parkade_pool) -> Answer<()> {
        call!(self, parkade_pool_release(pool))
    }

    pub(super) fn uses(&self, pool: parkade_pool) -> Answer<i64> {
        call!(self, parkade_pool_use_count(pool), into 0)
    }

    pub(super) fn set_use_on_oom(&self, pool: parkade_pool, serves: bool) -> Answer<()> {
        call!(self, parkade_pool_set_use_on_oom(pool, serves))
    }

    pub(super) fn set_no_split(&self, pool: parkade_pool) -> Answer<()> {
        call!(self, parkade_pool_set_no_split(pool))
    }

    /// Lends memory to a pool from now on, or no longer.
    pub(super) fn set_memory(&self, pool: parkade_pool, lends: bool) -> Answer<()> {
        let (lend, take_back) = if lends { (Some(lend as _), Some(take_back as _)) } else { (None, None) };
        call!(self, parkade_pool_set_memory(pool, lend, take_back, ptr::null_mut()))
    }

    pub(super) fn live_are(&self, pool: parkade_pool, addresses: &[Address]) -> Answer<bool> {
        call!(self, parkade_pool_live_allocations_are(pool, addresses.as_ptr(), addresses.len()), into false)
    }

    pub(super) fn save(&self, pool: parkade_pool) -> Answer<Checkpoint> {
        call!(self, parkade_checkpoint_save(pool), into ptr::null_mut()).map(Checkpoint)
    }

    /// Restores a pool. Returns the blocks that were taken back, and those that are handed out.
    pub(super) fn restore(&self, checkpoint: &Checkpoint) -> Answer<(Vec<Address>, Vec<Address>)> {
        let none = parkade_restored { freed: ptr::null(), freed_count: 0, allocated: ptr::null(), allocated_count: 0 };
        let mut lists = call!(self, parkade_checkpoint_restore(checkpoint.0.cast_const()), into none)?;
        // SAFETY: the call wrote the lists, which exist until they are freed, which happens only here.
        let copies = unsafe {
            let copies = (copied(lists.freed, lists.freed_count), copied(lists.allocated, lists.allocated_count));
            parkade_restored_free(&raw mut lists);
            copies
        };
        Ok(copies)
    }

    pub(super) fn stats(&self) -> Answer<parkade_stats> {
        call!(self, parkade_read_stats(), into parkade_stats::default())
    }

    pub(super) fn reset_stats(&self, peaks: bool) -> Answer<()> {
        if peaks { call!(self, parkade_reset_peak_stats()) } else { call!(self, parkade_reset_accumulated_stats()) }
    }

    /// Returns the segments and the blocks of all pools or of one.
    pub(super) fn snapshot(&self, pool: Option<&parkade_pool>) -> Answer<(Vec<parkade_segment>, Vec<parkade_snapshot_block>)> {
        let pool = pool.map_or(ptr::null(), ptr::from_ref);
        let snapshot = call!(self, parkade_snapshot_take(pool), into ptr::null_mut())?;
        let (mut segments, mut blocks) = (0, 0);
        // SAFETY: the call made the snapshot, which exists until it is freed, which happens only here.
        let copies = unsafe {
            let first = parkade_snapshot_segments(snapshot, &raw mut segments);
            let segments = copied(first, segments);
            let first = parkade_snapshot_blocks(snapshot, &raw mut blocks);
            let blocks = copied(first, blocks);
            parkade_snapshot_free(snapshot);
            (segments, blocks)
        };
        Ok(copies)
    }

    /// Returns the device's free and total memory.
    pub(super) fn memory_info(&self) -> Answer<(u64, u64)> {
        let mut free = 0;
        call!(self, parkade_memory_info(&raw mut free), into 0).map(|total| (free, total))
    }

    pub(super) fn largest_free_block(&self) -> Answer<u64> {
        call!(self, parkade_largest_free_block(), into 0)
    }

    /// Calls the functions that call a function for each of many things.
    pub(super) fn read_all(&self) -> Answer<()> {
        call!(self, parkade_read_pool_stats(Some(see_pool), ptr::null_mut()))?;
        call!(self, parkade_read_expandable(Some(see_expandable), ptr::null_mut()))?;
        call!(self, parkade_read_history(Some(observe), ptr::null_mut()))
    }

    pub(super) fn record_history(&self, most_entries: usize) -> Answer<()> {
        call!(self, parkade_record_history(most_entries))
    }

    pub(super) fn observe(&self, observes: bool) -> Answer<()> {
        call!(self, parkade_set_observer(observes.then_some(observe as _), ptr::null_mut()))?;
        call!(self, parkade_set_rescue_observer(observes.then_some(observe_rescue as _), ptr::null_mut()))
    }

    /// Adds a callback that frees the blocks that are given up, one in each call.
    pub(super) fn add_callback(&self) -> Answer<()> {
        call!(self, parkade_add_free_memory_callback(Some(free_one), self.0.cast()))
    }

    /// Shares a block, which the simulated device cannot do.
    pub(super) fn share(&self, address: Address) -> Answer<()> {
        let mut first = 0;
        call!(self, parkade_share(pointer(address).cast_const(), &raw mut first, Some(see_handle), ptr::null_mut()))?;
        call!(self, parkade_let_peer_access(1))
    }
}

/// Lets a callback free this block.
pub(super) fn give_up(address: Address) {
    GIVEN_UP.with_borrow_mut(|given_up| given_up.push(address));
}

/// Returns the blocks that callbacks have freed since the last call.
pub(super) fn freed_by_callbacks() -> Vec<Address> {
    FREED.take()
}

/// Returns the number of ranges that are lent, and how many were given back although they were not.
pub(super) fn lent() -> (usize, usize) {
    LENT.with_borrow(|(lent, wrong)| (lent.len(), *wrong))
}

/// Returns the text of the last failure.
pub(super) fn error_text() -> String {
    // SAFETY: the text ends with a NUL, and exists until the next failure.
    unsafe { CStr::from_ptr(parkade_error_text()) }.to_string_lossy().into_owned()
}

/// Returns a copy of a list.
///
/// # Safety
/// `first` points to `count` values, or `count` is 0.
unsafe fn copied<T: Copy>(first: *const T, count: usize) -> Vec<T> {
    // SAFETY: as the caller guarantees.
    if count == 0 { Vec::new() } else { unsafe { slice::from_raw_parts(first, count) }.to_vec() }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: see the module's documentation; the functions do nothing for null.
        unsafe { parkade_destroy(self.0) };
    }
}

/// The state of a pool.
pub(super) struct Checkpoint(*mut parkade_checkpoint);

impl Drop for Checkpoint {
    fn drop(&mut self) {
        // SAFETY: made by `parkade_checkpoint_save`, and freed only here.
        unsafe { parkade_checkpoint_free(self.0) };
    }
}
