//! A short run of every target and of all inputs that once failed.
//!
//! `PARKADE_FUZZ_EXECUTIONS` sets the number of inputs for each reader; commands get a tenth of it.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use parkade_fuzz::driver::{execute, input, kept, prepare_thread, run_kept};
use parkade_fuzz::targets::{Kind, Reached, TARGETS, Target, prepare};

/// The minimum percentage of a target's inputs that the reader must accept. A low value means that the target is meant
/// to produce invalid inputs.
fn least_read(target: &str) -> u64 {
    match target {
        // Random opcodes and damaged bytes.
        "opcodes" => 0,
        "bytes" => 1,
        "compressed" | "size" | "merge" | "largest-batch" => 15,
        // Commands refuse what they cannot answer, such as a question about steps in a recording without any.
        _ if target.starts_with("printed-") => 15,
        "message" | "settings" | "buffers" => 30,
        _ => 65,
    }
}

/// This test runs with the other tests, so its inputs must be the same every time.
const SEED: u64 = 20_261_122;

#[test]
fn every_target_survives_some_inputs() {
    prepare();
    let count = std::env::var("PARKADE_FUZZ_EXECUTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(600_u64);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                prepare_thread();
                while let Some(target) = TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    survives(target, if target.kind == Kind::Reader { count } else { count / 10 });
                }
            });
        }
    });
}

fn survives(target: &Target, executions: u64) {
    let mut read = 0;
    for number in 0..executions {
        let input = input(target, SEED, number);
        match execute(target, &input.bytes, input.case).reached {
            Ok(Reached::Read) => read += 1,
            Ok(Reached::Refused) => {}
            Err(failure) => panic!("parkade-fuzz --target {} --seed {SEED} --number {number}: {failure:?}", target.name),
        }
    }
    let (name, least) = (target.name, least_read(target.name));
    assert!(read * 100 >= least * executions, "{name}: {read} of {executions} inputs are accepted, less than {least} %");
}

#[test]
fn inputs_that_once_failed_are_survived() {
    prepare_thread();
    prepare();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut runs = 0;
    for (file, targets) in kept(&corpus).expect("a corpus") {
        for target in targets {
            for (case, execution) in run_kept(target, &file).expect("readable") {
                let failed = execution.reached.err();
                assert_eq!(failed, None, "{} on {} in case {case}", target.name, file.display());
                runs += 1;
            }
        }
    }
    assert!(runs > 0, "{runs}");
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let of_seed = |seed| TARGETS.iter().map(|target| input(target, seed, 7)).collect::<Vec<_>>();
    assert_eq!(of_seed(1), of_seed(1));
    assert_ne!(of_seed(1), of_seed(2));
}
