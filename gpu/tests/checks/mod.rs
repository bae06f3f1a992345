//! What must hold on a real GPU: one list for the test target and for the example that carries it to a machine without Rust.
//!
//! Each check opens its own devices, gives back everything, and answers with a few words about what it saw. They measure the
//! device's free memory, so they run one after the other and on a device that nobody else uses.

mod decisions;
mod device;
mod sequence;
mod subject;

use std::error::Error;

use parkade::device::DeviceBackend;
use parkade_gpu::CudaDevice;

/// What a check saw, or why it failed.
pub(crate) type Outcome = Result<String, Box<dyn Error>>;

/// A check, with the name under which it is listed.
pub(crate) type Check = (&'static str, fn() -> Outcome);

/// The device that is checked.
pub(crate) const ORDINAL: u32 = 0;

/// All checks, the simple ones first.
pub(crate) const ALL: [Check; 10] = [
    ("malloc_takes_whole_pages_and_free_gives_them_back", device::malloc_takes_whole_pages),
    ("out_of_memory_is_told_and_leaves_the_device_usable", device::out_of_memory),
    ("a_range_is_given_back_once", device::given_back_once),
    ("events_follow_their_streams_work", device::events_follow_work),
    ("a_made_up_stream_is_refused", device::made_up_streams),
    ("a_dropped_device_gives_back_what_it_owned", device::dropped_device),
    ("a_device_works_from_another_thread", device::other_thread),
    ("an_event_outlives_its_device", device::outliving_event),
    ("no_two_allocations_overlap", decisions::no_overlap),
    ("decisions_are_those_on_the_simulated_device", decisions::as_simulated),
];

/// An error with a text of its own.
pub(crate) fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(says().into()) }
}

/// Free bytes of the device as the driver sees them.
fn free_bytes(device: &mut CudaDevice) -> Result<u64, Box<dyn Error>> {
    Ok(device.memory_info()?.free.get())
}
