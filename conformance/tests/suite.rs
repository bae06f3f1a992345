//! The suite as tests: every entry on the simulated device, and on the CUDA device where there is one; elsewhere those are listed as
//! ignored, with the reason.
//!
//! `PARKADE_REQUIRE_CUDA=1` makes the absence of a GPU a failure, so that a machine that is there for its GPU cannot pass
//! without it. `PARKADE_CASES` is the number of random sequences a law.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use parkade_conformance::backend::{Backend, Cuda, Needs, Simulated};
use parkade_conformance::checks::{cuda_entries, entries};
use parkade_conformance::suite::{Effort, Entry, Trouble, check};

/// Random sequences a law, so that all of them take seconds without optimisation; the binary draws more.
const CASES: u32 = 60;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let cases = std::env::var("PARKADE_CASES").map_or(CASES, |text| match text.parse() {
        Ok(cases) if cases > 0 => cases,
        _ => panic!("PARKADE_CASES is {text:?}, and should be a number of sequences above 0"),
    });
    let effort = Effort { cases, seed: 0 };
    let cuda = Cuda::new(0);
    let absent = cuda.open(&Needs::default()).err().map(|unable| unable.to_string());
    if absent.is_none() {
        // They measure the device's free memory.
        arguments.test_threads = Some(1);
    }
    let required = std::env::var_os("PARKADE_REQUIRE_CUDA").is_some_and(|value| value == "1");
    let mut trials = trials(Simulated, entries(&Simulated), effort);
    match absent {
        None => trials.extend(self::trials(cuda.clone(), cuda_list(&cuda), effort)),
        Some(reason) => trials.extend(cuda_list(&cuda).into_iter().map(|entry| {
            let says = format!("cannot run: {reason}");
            Trial::test(format!("cuda::{}", entry.title()), move || Err(Failed::from(says)))
                .with_kind(format!("skipped: {reason}"))
                .with_ignored_flag(!required)
        })),
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn cuda_list(cuda: &Cuda) -> Vec<Entry<Cuda>> {
    entries(cuda).into_iter().chain(cuda_entries()).collect()
}

fn trials<B: Backend + Send + Sync + 'static>(backend: B, list: Vec<Entry<B>>, effort: Effort) -> Vec<Trial> {
    let backend = Arc::new(backend);
    // What other devices must show; a simulated one is not compared with itself.
    let reference = Arc::new(if backend.is_simulated() { Vec::new() } else { entries(&Simulated) });
    list.into_iter()
        .map(|entry| {
            let (backend, reference) = (Arc::clone(&backend), Arc::clone(&reference));
            Trial::test(format!("{}::{}", backend.name(), entry.title()), move || {
                match check(&*backend, &entry, &reference, &effort) {
                    Ok(_) => Ok(()),
                    Err(Trouble::Skip(reason)) if backend.is_simulated() => {
                        Err(Failed::from(format!("skipped, which a simulated device never is: {reason}")))
                    }
                    // One GPU is enough; what needs two is skipped, as the binary's table says.
                    Err(Trouble::Skip(_)) => Ok(()),
                    Err(Trouble::Fail { reason, script }) => {
                        Err(Failed::from(format!("{reason}\n{}", script.unwrap_or_default())))
                    }
                }
            })
        })
        .collect()
}
