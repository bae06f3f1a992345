//! Runs every target, without libFuzzer, on its corpus and on some generated inputs.

use std::fs;
use std::path::{Path, PathBuf};

use parkade_fuzz::{TARGETS, commands, printed, snapshot};

/// The number of generated inputs for each target.
const INPUTS: usize = 400;

fn corpus(folder: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(folder);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no inputs", folder.display());
    files.into_iter().map(|file| (file.clone(), fs::read(file).expect("an input"))).collect()
}

/// Runs what a test does on its input; if it panics, the output says which input it was.
fn on_input<T>(name: &str, run: impl FnOnce() -> T) -> T {
    struct Named<'n>(&'n str);
    impl Drop for Named<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input is {}", self.0);
            }
        }
    }
    let _named = Named(name);
    run()
}

#[test]
fn targets_survive_their_corpus() {
    for target in TARGETS {
        for (file, input) in corpus(target.name) {
            on_input(&file.display().to_string(), || (target.run)(&input));
        }
    }
}

/// Random inputs are survived as well, and are not so wrong that nothing accepts them.
#[test]
fn targets_survive_random_inputs() {
    for target in TARGETS {
        let mut random = fastrand::Rng::with_seed(20_261_122);
        let accepts = |number: &usize| {
            let mut input = vec![0; random.usize(..400)];
            random.fill(&mut input);
            on_input(&format!("number {number} of {}", target.name), || (target.run)(&input))
        };
        let accepted = 100 * (0..INPUTS).filter(accepts).count() / INPUTS;
        let least = target.least_accepted;
        assert!(accepted >= least, "{} accepts {accepted} % of its inputs, less than {least} %", target.name);
    }
}

/// These files once failed. A file whose name contains `.case7.` is run with the options of case 7, any other one with those
/// of the first eight cases.
#[test]
fn commands_survive_recordings_that_once_failed() {
    for (file, recording) in corpus("recordings") {
        let name = file.display().to_string();
        let case = name.split('.').find_map(|part| part.strip_prefix("case")?.parse().ok());
        on_input(&name, || snapshot::is_read_again(&recording));
        for case in case.map_or(0..8, |case: u8| case..case + 1) {
            on_input(&format!("{name} in case {case}"), || {
                commands::run_on_recording(&recording, case);
                printed::run_on_recording(&recording, case);
            });
        }
    }
}
