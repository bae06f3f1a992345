//! Tests on snapshots made with the real allocator of each release, in that release's own format: they are read, and
//! the release is recognised. `differential/recognition.py --keep conformance/oracle/snapshots` creates them; for 2.0,
//! only the format is real.

use std::path::Path;

use parkade::profile::{RELEASES, Release};
use parkade_recording::{DeviceRecording, FileFields, Recording, read_file};
use parkade_replay::recognition::{Asked, Basis, RefutedLimit, most_reserved, recognise, verify};

/// The snapshots with the names of their releases.
fn snapshots() -> Vec<(String, Recording)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle/snapshots");
    let mut found: Vec<(String, Recording)> = std::fs::read_dir(&folder)
        .expect("the folder")
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".pickle.xz")).expect("a release").to_owned();
            (name, read_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found.len(), 16, "2.0 to 2.15");
    found
}

fn series(release: &str) -> (u8, u8) {
    let numbers: Vec<u8> = release.split('.').map(|number| number.parse().expect("a number")).collect();
    (numbers[0], numbers[1])
}

#[test]
fn the_shape_of_every_release_is_read_and_nothing_in_it_is_unknown() {
    for (release, recording) in snapshots() {
        let (_, minor) = series(&release);
        let device = &recording.devices[0];
        assert!(!device.trace.is_empty() && !device.segments.is_empty(), "{release}");
        assert!(device.segments.iter().any(|segment| segment.blocks.iter().any(|block| block.requested.is_some())), "{release}");
        assert_eq!(device.trace[0].time().is_some(), minor >= 2, "{release}: time_us");
        assert_eq!(recording.settings.is_some(), minor >= 3, "{release}: allocator_settings");
        assert_eq!(!device.pools.is_empty(), minor >= 12, "{release}: pool_id");
        assert_eq!(device.segments.iter().all(|segment| segment.pool.is_some()), minor >= 1, "{release}: segment_pool_id");
        assert_eq!(recording.tolerated, Default::default(), "{release}");
        assert!(recording.fields.evidence().all(|fact| fact.allows(series(&release))), "{release}: the release's own keys");
    }
}

#[test]
fn the_release_that_made_a_snapshot_is_among_those_named() {
    let mut named = 0;
    for (release, recording) in snapshots() {
        let devices: Vec<&DeviceRecording> = recording.devices.iter().collect();
        let (found, verdicts) = verify(&recording, &devices, &Asked::default(), &mut |_, _| ()).expect(&release);
        if RELEASES.iter().any(|known| known.name == release) {
            let said = found.words();
            assert_eq!((found.basis, verdicts[0].0.mismatches), (Basis::Replay, 0), "{release}: {said}");
            assert!(found.releases.iter().any(|named| named.name == release), "{release}: {said}");
            named += 1;
        }
    }
    assert_eq!(named, RELEASES.iter().filter(|release| release.name.ends_with(".0")).count());
}

/// The same decisions with the keys of a different release: matching keys do not outweigh decisions. The verdict
/// therefore names the release that the keys exclude, together with the key that speaks against it.
#[test]
fn decisions_count_for_more_than_keys() {
    let of = |wanted: &str| snapshots().into_iter().find(|(release, _)| release == wanted).expect("a snapshot").1;
    let (older, old, newer) = (of("2.11.0"), of("2.12.0"), of("2.15.0"));
    let cases = [
        (&older, FileFields::of_release((2, 15)), "2.11.0", "2.15.0", "max_cached_size in its settings"),
        (&newer, FileFields::of_release((2, 11)), "2.15.0", "2.11.0", "no pool_id in its trace entries"),
        (&old, FileFields::of_release((2, 1)), "2.12.0", "2.1.0", "no time_us in its trace entries"),
    ];
    for (decided, fields, right, wrong, against) in cases {
        let mixed = Recording { fields, ..decided.clone() };
        let devices: Vec<&DeviceRecording> = mixed.devices.iter().collect();
        let (found, verdicts) = verify(&mixed, &devices, &Asked::default(), &mut |_, _| ()).expect("a verdict");
        let said = found.words();
        assert_eq!((found.basis, verdicts[0].0.mismatches), (Basis::Replay, 0), "{said}");
        let names = |releases: &[&Release], name: &str| releases.iter().any(|release| release.name == name);
        assert!(names(&found.releases, right) && !names(&found.releases, wrong), "{said}");
        assert!(found.differing.iter().any(|differing| names(&differing.releases, wrong)), "{said}");
        assert!(said.contains(&format!(", although the file has {against}")) && found.evidence_words().is_none(), "{said}");
    }
}

/// Commands that do not verify recognise the same release as `verify`.
#[test]
fn to_recognise_is_to_verify() {
    for (release, recording) in snapshots() {
        let devices: Vec<&DeviceRecording> = recording.devices.iter().collect();
        let (verified, _) = verify(&recording, &devices, &Asked::default(), &mut |_, _| ()).expect(&release);
        let recognised = recognise(&recording, &devices, &Asked::default()).expect(&release);
        assert_eq!(recognised.words(), verified.words(), "{release}");
    }
}

/// A limit that the run exceeded says nothing about its release.
#[test]
fn a_limit_below_the_peak_is_refuted_and_the_release_is_found_without_it() {
    for (release, recording) in snapshots() {
        let devices: Vec<&DeviceRecording> = recording.devices.iter().collect();
        let reserved_bytes = most_reserved(devices[0]);
        let asked = |limit_bytes| Asked { limit_bytes: Some(limit_bytes), ..Asked::default() };
        let (free, _) = verify(&recording, &devices, &Asked::default(), &mut |_, _| ()).expect(&release);
        let limit_bytes = reserved_bytes / 2;
        let (found, verdicts) = verify(&recording, &devices, &asked(limit_bytes), &mut |_, _| ()).expect(&release);
        assert_eq!(found.refuted_limit, Some(RefutedLimit { limit_bytes, reserved_bytes }), "{release}");
        assert!(verdicts[0].0.mismatches > 0, "{release}: still judged under the limit");
        assert_eq!((found.basis, found.words()), (free.basis, free.words()), "{release}");
        let (found, _) = verify(&recording, &devices, &asked(reserved_bytes), &mut |_, _| ()).expect(&release);
        assert_eq!(found.refuted_limit, None, "{release}: it may have been the limit");
    }
}
