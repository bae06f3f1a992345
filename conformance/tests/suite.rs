//! The suite as tests: every entry on the simulated device, and on the CUDA device if there is one; if not, the CUDA
//! entries are listed as ignored, with the reason. The scenarios are included; on the simulated device,
//! tests/scenarios.rs checks them.
//!
//! `PARKADE_REQUIRE_CUDA=1` makes a missing GPU a failure, so that a machine set up for its GPU cannot pass without it.
//! `PARKADE_CASES` is the number of random sequences per law.

use std::process::ExitCode;

use parkade_conformance::backend::AnyBackend;
use parkade_conformance::harness::Harness;

fn main() -> ExitCode {
    let mut harness = match Harness::from_environment() {
        Ok(harness) => harness,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    harness.add(AnyBackend::simulated());
    #[cfg(all(feature = "cuda", feature = "scenarios"))]
    {
        use parkade_conformance::backend::Cuda;
        use parkade_conformance::checks::cuda_entries;
        use parkade_conformance::scenarios::everything;

        let cuda = Cuda::new(0);
        let backend = AnyBackend::new(cuda.clone());
        let list = everything(&backend, None).into_iter().chain(cuda_entries(&cuda)).collect();
        harness.add_entries(backend, list);
    }
    harness.run()
}
