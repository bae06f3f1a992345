//! What must hold on a real GPU: one list for the test target and for the example that carries it to a machine without Rust.
//!
//! Each check opens its own devices, gives back everything, and answers with a few words about what it saw. They measure the
//! device's free memory, so they run one after the other and on a device that nobody else uses.

mod device;
mod peers;
mod virtual_memory;
mod work;

use std::error::Error;

use parkade::device::DeviceBackend;
use parkade_gpu::CudaDevice;

/// What a check saw, or why it failed.
pub(crate) type Outcome = Result<String, Box<dyn Error>>;

/// A check, with the name under which it is listed and how many devices it needs.
pub(crate) type Check = (&'static str, u32, fn() -> Outcome);

/// The device that is checked.
pub(crate) const ORDINAL: u32 = 0;

/// All checks, the simple ones first.
pub(crate) const ALL: [Check; 17] = [
    ("a_device_says_who_it_is", 1, work::identity),
    ("malloc_takes_whole_pages_and_free_gives_them_back", 1, device::malloc_takes_whole_pages),
    ("out_of_memory_is_told_and_leaves_the_device_usable", 1, device::out_of_memory),
    ("a_range_is_given_back_once", 1, device::given_back_once),
    ("events_follow_their_streams_work", 1, device::events_follow_work),
    ("a_made_up_stream_is_refused", 1, device::made_up_streams),
    ("a_declared_kernel_takes_its_time_and_streams_overlap", 1, work::takes_its_time),
    ("a_stream_waits_for_an_event_of_another", 1, work::waits_for_an_event),
    ("a_dropped_device_gives_back_what_it_owned", 1, device::dropped_device),
    ("a_device_works_from_another_thread", 1, device::other_thread),
    ("an_event_outlives_its_device", 1, device::outliving_event),
    ("mapped_memory_holds_what_is_written", 1, virtual_memory::holds_what_is_written),
    ("memory_survives_remapping_bit_for_bit", 1, virtual_memory::survives_remapping),
    ("an_alias_sees_the_same_memory", 1, virtual_memory::aliases_share),
    ("the_drivers_refusals_reach_the_caller", 1, virtual_memory::refusals_are_the_drivers),
    ("a_device_dropped_in_mid_use_gives_back_everything", 1, virtual_memory::dropped_in_mid_use),
    ("a_peer_reads_what_was_opened_to_it", 2, peers::reads_what_was_opened),
];

/// Why a check that needs so many devices cannot run here; `None` if it can.
pub(crate) fn missing(devices: u32) -> Option<String> {
    match CudaDevice::count() {
        Err(reason) => Some(reason.to_string()),
        Ok(count) if count < devices => Some(format!("{devices} CUDA devices needed, the driver counts {count}")),
        Ok(_) => None,
    }
}

/// An error with a text of its own.
pub(crate) fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(says().into()) }
}

/// Free bytes of the device as the driver sees them.
fn free_bytes(device: &mut CudaDevice) -> Result<u64, Box<dyn Error>> {
    Ok(device.memory_info()?.free.get())
}
