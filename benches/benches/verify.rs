//! Measures the time of reading and verifying a recording: `cargo bench -p parkade-benches --bench verify`.
//!
//! The recordings are one from the repository and those named by `PARKADE_BENCH_RECORDINGS`, separated like the entries in
//! `PATH`.

use std::hint::black_box;
use std::path::PathBuf;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use parkade_recording::{read, read_file};
use parkade_replay::{ReplaySettings, VerifyOptions, verify_device};

fn recordings() -> Vec<PathBuf> {
    let shipped = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/gpt2_varlen.default.pickle.xz"));
    let named = std::env::var_os("PARKADE_BENCH_RECORDINGS").unwrap_or_default();
    std::iter::once(shipped).chain(std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty())).collect()
}

fn verify(criterion: &mut Criterion) {
    for path in recordings() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let packed = std::fs::read(&path).expect("a recording");
        let recording = read_file(&path).expect("a recording");
        let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("settings");
        let options = VerifyOptions { settings, limit_bytes: None, stats_file: None };
        let entries = recording.devices[0].trace.len() as u64;
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(entries)).sample_size(10);
        group.bench_function("read", |bencher| bencher.iter(|| read(black_box(&packed)).expect("a recording")));
        group.bench_function("verify", |bencher| {
            bencher.iter(|| {
                let verdict = verify_device(black_box(&recording.devices[0]), &options, &mut |_| {}).expect("a verdict");
                assert_eq!(verdict.mismatches, 0);
            });
        });
        group.finish();
    }
}

criterion_group!(benches, verify);
criterion_main!(benches);
