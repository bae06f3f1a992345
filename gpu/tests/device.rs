//! The CUDA device on a real GPU. Without one, each test is listed as ignored, with the reason.
//!
//! `PARKADE_REQUIRE_CUDA=1` makes a missing GPU a failure, so that a GPU machine cannot pass without its GPU.

mod checks;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use parkade_gpu::{CudaDevice, Unavailable};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The checks measure the device's free memory, so they run one at a time.
    arguments.test_threads = Some(1);
    let required = std::env::var_os("PARKADE_REQUIRE_CUDA").is_some_and(|value| value == "1");
    let trials = checks::ALL.map(|(name, check)| match missing() {
        None => Trial::test(name, move || check().map(drop).map_err(Failed::from)),
        Some(reason) => Trial::test(name, {
            let text = format!("cannot run: {reason}");
            move || Err(Failed::from(text))
        })
        .with_kind(format!("skipped: {reason}"))
        .with_ignored_flag(!required),
    });
    let anywhere = Trial::test("opening_and_counting_agree_on_whether_there_is_a_device", || Ok(agreement()?));
    libtest_mimic::run(&arguments, trials.into_iter().chain([anywhere]).collect()).exit_code()
}

/// Checks that, with or without a GPU, both calls return the same reason why a device cannot be opened, and neither
/// panics.
fn agreement() -> Result<(), String> {
    let (opened, counted) = (CudaDevice::open(u32::MAX).map(drop), CudaDevice::count());
    match (opened, counted) {
        (Err(Unavailable::NoDevice { ordinal: u32::MAX, count }), Ok(counted)) if count == counted => Ok(()),
        (Err(reason), Err(same)) if reason == same && !reason.to_string().is_empty() => Ok(()),
        other => Err(format!("opening a device that does not exist, and counting the devices, returned {other:?}")),
    }
}

/// Returns the reason why the checks cannot run here; `None` if they can.
fn missing() -> Option<String> {
    match CudaDevice::count() {
        Err(reason) => Some(reason.to_string()),
        Ok(0) => Some("the driver reports no CUDA device".to_owned()),
        Ok(_) => None,
    }
}
