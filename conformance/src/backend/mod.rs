//! What the suite needs of a backend: something that opens devices, and devices that a test can drive from outside.
//!
//! Every check is written once, against [`Backend`] and [`TestDevice`], and runs on whatever implements them. What differs between makers is
//! a value, [`DeviceFacts`]. [`Simulated`] is parkade's own simulated device, and with the feature `cuda` there is [`Cuda`].
//! docs/writing-a-backend.md writes a backend from nothing.

#[cfg(feature = "cuda")]
mod cuda;
mod facts;
mod insight;
mod needs;
mod simulated;
mod test_device;
mod witness;

#[cfg(feature = "cuda")]
pub use cuda::{Cuda, Rig};
pub use facts::{Codes, DeviceFacts, Sharing, Waits};
pub use insight::{Insight, Race, RaceSide, Touch};
pub use needs::{EventTiming, Needs, Places, Simulation, Unable};
pub use simulated::Simulated;
pub use test_device::{Holdings, TestDevice};
pub use witness::{Core, MadeCall, Witness, WitnessedDevice, WitnessedEvent};

/// Stream handles of simulated devices: not consecutive, not in order, and one at the end of the number range.
pub const STREAMS: [u64; 4] = [0, 0x3000, 0x1000, 0xffff_ffff_ffff_f000];

/// Opens devices of one kind.
pub trait Backend {
    /// What it opens. A device is empty when it is opened, and gives everything back when it is dropped.
    type Device: TestDevice;

    /// Its name, in lower case: `sim`, `cuda`. It begins the names of the suite's entries.
    fn name(&self) -> &'static str;

    /// Opens a device.
    ///
    /// # Errors
    /// Why there is none.
    fn open(&self, needs: &Needs) -> Result<Self::Device, Unable>;

    /// What is true of these devices and not of every device. Like an H200's, unless the backend says otherwise.
    fn facts(&self) -> DeviceFacts {
        DeviceFacts::H200
    }

    /// What a report should say about the device: pairs of a name and a value, such as the model and the driver's version.
    fn describe(&self) -> Vec<(&'static str, String)> {
        vec![("device", self.name().to_owned())]
    }

    /// Whether devices are simulated: they may then be opened by the thousand and at the same time, they do what [`Needs::simulation`] says,
    /// and every [`EventTiming`] is tried on them.
    fn is_simulated(&self) -> bool {
        false
    }
}
