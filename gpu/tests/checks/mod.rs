//! The checks that must pass on a real GPU: one list, used by the tests and by the example `on_gpu`.
//!
//! Each check opens its own devices, releases everything and returns a short description of the result. The checks
//! measure the device's free memory, so they run one at a time, on a device that nothing else uses.

mod breaking;
mod device;
mod elsewhere;
mod other_code;
mod shared;
mod virtual_memory;
mod work;

use std::error::Error;

use parkade::device::DeviceBackend;
use parkade_gpu::CudaDevice;

/// A description of the result, or the reason why the check failed.
pub(crate) type Outcome = Result<String, Box<dyn Error>>;

/// A check with its name.
pub(crate) type Check = (&'static str, fn() -> Outcome);

/// The index of the device under test.
pub(crate) const ORDINAL: u32 = 0;

/// All checks, simple ones first.
pub(crate) const ALL: [Check; 21] = [
    ("a_device_says_who_it_is", work::identity),
    ("malloc_takes_whole_pages_and_free_gives_them_back", device::malloc_takes_whole_pages),
    ("out_of_memory_is_told_and_leaves_the_device_usable", device::out_of_memory),
    ("a_range_is_given_back_once", device::given_back_once),
    ("events_follow_their_streams_work", device::events_follow_work),
    ("a_made_up_stream_is_refused", device::made_up_streams),
    ("a_declared_kernel_takes_its_time_and_streams_overlap", work::takes_its_time),
    ("a_stream_waits_for_an_event_of_another", work::waits_for_an_event),
    ("a_block_waits_for_streams_of_another_device", elsewhere::waits_for_the_other),
    ("a_dropped_device_gives_back_what_it_owned", device::dropped_device),
    ("a_device_works_from_another_thread", device::other_thread),
    ("an_event_outlives_its_device", device::outliving_event),
    ("mapped_memory_holds_what_is_written", virtual_memory::holds_what_is_written),
    ("memory_survives_remapping_bit_for_bit", virtual_memory::survives_remapping),
    ("an_alias_sees_the_same_memory", virtual_memory::aliases_share),
    ("shared_memory_is_the_same_at_both_addresses", shared::opened_again),
    ("the_drivers_refusals_reach_the_caller", virtual_memory::refusals_are_the_drivers),
    ("contents_outlive_breaking_on_a_full_device", breaking::contents_outlive_a_full_device),
    ("a_device_dropped_in_mid_use_gives_back_everything", virtual_memory::dropped_in_mid_use),
    ("a_child_of_fork_gets_errors", other_code::forked),
    ("a_reset_device_gives_errors_until_it_is_opened_again", other_code::reset),
];

/// Fails with this text unless the condition holds.
pub(crate) fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(says().into()) }
}

/// Returns the device's free bytes as the driver reports them.
fn free_bytes(device: &mut CudaDevice) -> Result<u64, Box<dyn Error>> {
    Ok(device.memory_info()?.free.get())
}
