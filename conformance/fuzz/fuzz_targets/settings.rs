//! Fuzzes the target `settings`.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parkade_fuzz::settings(data);
});

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("this program fuzzes only if cargo-fuzz builds it: cargo fuzz run --fuzz-dir conformance/fuzz settings");
}
