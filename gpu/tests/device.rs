//! The CUDA device against a real GPU, where there is one; elsewhere each test is listed as ignored, with the reason.
//!
//! `PARKADE_REQUIRE_CUDA=1` makes the absence of a GPU a failure, so that a machine that is there for its GPU cannot pass
//! without it.

mod checks;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use parkade_gpu::CudaDevice;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They measure the device's free memory.
    arguments.test_threads = Some(1);
    let required = std::env::var_os("PARKADE_REQUIRE_CUDA").is_some_and(|value| value == "1");
    let absent = CudaDevice::open(checks::ORDINAL).err();
    let trials = checks::ALL.map(|(name, check)| match absent {
        None => Trial::test(name, move || check().map(drop).map_err(Failed::from)),
        Some(reason) => Trial::test(name, move || Err(Failed::from(format!("cannot run: {reason}"))))
            .with_kind(format!("skipped: {reason}"))
            .with_ignored_flag(!required),
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}
