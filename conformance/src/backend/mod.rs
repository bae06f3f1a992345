//! What the suite needs from a backend: a way to open devices, and devices that a test can drive.
//!
//! Every check is written and compiled once, for [`AnyBackend`] and [`AnyDevice`], and runs on anything that implements [`Backend`]
//! and [`TestDevice`]. Differences between vendors are values in [`DeviceFacts`]. [`Simulated`] is parkade's simulated device; the
//! feature `cuda` adds [`Cuda`].
//! docs/writing-a-backend.md builds a backend from scratch.

mod any;
#[cfg(feature = "cuda")]
mod cuda;
mod facts;
mod insight;
mod made_call;
mod needs;
mod said;
mod simulated;
mod test_device;
mod witness;

pub use any::{AnyBackend, AnyDevice, AnyEvent, AnyPhysical};
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, Rig};
pub use facts::{Codes, DeviceFacts, Sharing, Waits};
pub use insight::{Insight, Race, RaceSide, Touch};
pub use made_call::MadeCall;
pub use needs::{EventTiming, Needs, Places, Simulation, Unable};
pub use said::{Witness, WitnessedEvent};
pub use simulated::Simulated;
pub use test_device::{Holdings, TestDevice};
pub use witness::{Core, WitnessedDevice};

/// Stream handles of simulated devices: not consecutive, not in order, and one near the top of the number range.
pub const STREAMS: [u64; 4] = [0, 0x3000, 0x1000, 0xffff_ffff_ffff_f000];

/// Opens devices of one kind.
pub trait Backend {
    /// The device type. A device is empty when opened, and gives everything back when dropped.
    type Device: TestDevice;

    /// Its name in lower case, such as `sim` or `cuda`: the prefix of its test names.
    fn name(&self) -> &'static str;

    /// Opens a device.
    ///
    /// # Errors
    /// Why there is none.
    fn open(&self, needs: &Needs) -> Result<Self::Device, Unable>;

    /// What is specific to these devices. The default is an H200's facts.
    fn facts(&self) -> DeviceFacts {
        DeviceFacts::H200
    }

    /// What a report should say about the device, as names and values, such as the model and the driver's version.
    fn describe(&self) -> Vec<(&'static str, String)> {
        vec![("device", self.name().to_owned())]
    }

    /// Whether devices are simulated. Thousands of them may then be opened, also at the same time; they follow
    /// [`Needs::simulation`], and every [`EventTiming`] is tried on them.
    fn is_simulated(&self) -> bool {
        false
    }
}
