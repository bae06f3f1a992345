//! The scenarios on the CUDA device where there is one; elsewhere they are listed as ignored, with the reason.
//!
//! `PARKADE_REQUIRE_CUDA=1` makes the absence of a GPU a failure, so that a machine that is there for its GPU cannot pass
//! without it.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use parkade_conformance::backend::{Backend, Cuda, Needs, Simulated};
use parkade_conformance::suite::{Effort, Entry, Reference, Trouble, check};
use parkade_scenarios::entries;

/// Random sequences of a scenario that draws some.
const EFFORT: Effort = Effort::new(60, 0);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let cuda = Cuda::new(0);
    let absent = cuda.open(&Needs::default()).err().map(|unable| unable.to_string());
    if absent.is_none() {
        // They measure the device's free memory.
        arguments.test_threads = Some(1);
    }
    let required = std::env::var_os("PARKADE_REQUIRE_CUDA").is_some_and(|value| value == "1");
    // What the device must show.
    let reference = Arc::new(Reference::new(Simulated, entries(&Simulated, None)));
    let list = entries(&cuda, None);
    let trials = list.into_iter().map(|entry| match &absent {
        None => trial(&cuda, entry, Arc::clone(&reference)),
        Some(reason) => {
            let says = format!("cannot run: {reason}");
            Trial::test(format!("cuda::{}", entry.title()), move || Err(Failed::from(says)))
                .with_kind(format!("skipped: {reason}"))
                .with_ignored_flag(!required)
        }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn trial(cuda: &Cuda, entry: Entry<Cuda>, reference: Arc<Reference>) -> Trial {
    let cuda = cuda.clone();
    Trial::test(format!("cuda::{}", entry.title()), move || match check(&cuda, &entry, Some(&*reference), &EFFORT) {
        Ok(_) => Ok(()),
        Err(Trouble::Skip(reason)) => Err(Failed::from(format!("skipped on a machine with a GPU: {reason}"))),
        Err(Trouble::Fail { reason, script }) => Err(Failed::from(format!("{reason}\n{}", script.unwrap_or_default()))),
    })
}
