//! What errors say: every driver call with every code, and reports of drawn numbers.

use crate::law::Broken;
use crate::reference_model::texts;
use parkade::device::{BackendError, ProcessMemory};
use parkade::profile::{Profile, RELEASES};
use parkade::stats::UnknownStatistic;
use parkade::texts::{Hint, OomWords, OutOfMemory};
use parkade::units::{Bytes, DeviceAddress, PoolId};
use parkade::{AdoptError, AllocError, AnswerProblem, CheckpointError, FreeError, PoolError, WrongAnswer};
use parkade_sim::CallName;
use proptest::prelude::*;

use crate::core_laws::run::{Draws, Outcome, run};

/// Names of calls that are no call of CUDA's, and of those that no backend here makes.
const OTHER_CALLS: [&str; 6] = ["virtual memory", "", "c", "hipMalloc", "cu", "cublasCreate"];

pub(crate) fn check(draws: &Draws) -> Outcome {
    let calls = CallName::ALL.iter().map(|name| name.as_str()).chain(OTHER_CALLS);
    for call in calls {
        for code in (0..1100).chain([u32::MAX]) {
            driver_error(call, code)?;
        }
    }
    fixed()?;
    let size = || prop_oneof![(0_u32..64, any::<u64>()).prop_map(|(bits, low)| low >> bits), Just(0), Just(1024), Just(1025)];
    let signed = || size().prop_map(|size| size as i64);
    let process = (prop::option::of(any::<u32>()), size()).prop_map(|(pid, used)| ProcessMemory { pid, used: Bytes(used) });
    let hint = prop_oneof![
        Just(Hint::ExpandableSegments),
        Just(Hint::Addresses),
        Just(Hint::None),
        size().prop_map(|size| Hint::LargerReserve(Bytes(size)))
    ];
    let report = (size(), 0..300_u32, size(), size(), prop::collection::vec(process, 0..4));
    let more = (prop::option::of(size()), signed(), signed(), prop_oneof![2 => Just(0), 3 => size()], hint);
    run(
        draws,
        356,
        &(report, more),
        |((segment, device, total, free, processes), (limit, allocated, reserved, private, hint))| {
            let report = OutOfMemory {
                segment_bytes: Bytes(*segment),
                device: *device,
                device_total: Bytes(*total),
                device_free: Bytes(*free),
                processes: processes.clone(),
                limit: limit.map(Bytes),
                allocated_bytes: *allocated,
                reserved_bytes: *reserved,
                private_cached_bytes: Bytes(*private),
                hint: *hint,
                words: &OomWords::PYTORCH_2_11,
            };
            let errors = [
                AllocError::OutOfMemory(Box::new(report)),
                AllocError::Rejected { requested: Bytes(*segment) },
                AllocError::TooLarge { requested: Bytes(*segment) },
            ];
            for error in errors {
                texts::check(&error.to_string(), texts::of_request(&error, &Profile::PYTORCH_2_11))?;
                for release in RELEASES {
                    texts::check(&said_by(release.profile, &error), texts::of_request(&error, release.profile))?;
                }
            }
            Ok(3)
        },
    )
}

/// What a release says of an error, in its own words.
fn said_by(profile: &Profile, error: &AllocError) -> String {
    match error {
        AllocError::OutOfMemory(report) => OutOfMemory { words: profile.oom_words, ..(**report).clone() }.to_string(),
        error => error.message(profile),
    }
}

/// What a code of CUDA's means where the way out is not in the call.
fn meaning(call: &str, code: u32) -> &'static str {
    if call.get(..2) != Some("cu") {
        return "";
    }
    match code {
        3 => {
            ": the driver is not initialised in this process; a child of fork cannot use CUDA if its parent did: spawn it instead"
        }
        709 => ": the context was destroyed, as by cudaDeviceReset, and all its memory with it: open the device again",
        _ => "",
    }
}

fn driver_error(call: &'static str, code: u32) -> Result<(), Broken> {
    let error = BackendError::Driver { call, code };
    let text = format!("{call} failed with driver code {code}{}", meaning(call, code));
    texts::check(&error.to_string(), Some(text.clone()))?;
    texts::check(&AllocError::Device(error).to_string(), Some(text.clone()))?;
    texts::check(&CheckpointError::Device(error).to_string(), Some(text.clone()))?;
    texts::check(&FreeError::Device(error).to_string(), Some(format!("the block stays pending: {text}")))
}

/// Errors that are parkade's own, and those of pools in every release.
fn fixed() -> Result<(), Broken> {
    let says = |seen: String, expected: &str| texts::check(&seen, Some(expected.to_owned()));
    says(AllocError::ZeroSize.to_string(), "a request of 0 bytes has no block: use a null pointer for it")?;
    says(AllocError::TooManyStreams.to_string(), "more than 65535 streams: the heap numbers them with 16 bits")?;
    says(
        FreeError::NotAllocated.to_string(),
        "the allocation does not belong to this allocator, or no longer: only the one that made it takes it back",
    )?;
    for (error, text) in [
        (AdoptError::Empty, "the segment has no block, or one of 0 bytes"),
        (AdoptError::TooLarge, "the segment reaches beyond 64 bits"),
        (AdoptError::NotCoalesced, "two neighbouring blocks of the segment are both free or both unmapped"),
        (AdoptError::NotWholePages, "memory of the segment begins or ends inside a page"),
        (AdoptError::UnknownPool, "the segment's pool has not been made"),
        (AdoptError::TooManyStreams, "more than 65535 streams"),
        (AdoptError::Misplaced, "the segment overlaps another, or does not start on a multiple of 512 bytes"),
        (AdoptError::TooMuch, "the segment would make more than 2^63 - 1 bytes in all"),
    ] {
        says(error.to_string(), text)?;
    }
    for (problem, text) in [
        (AnswerProblem::Null, "is the null pointer"),
        (AnswerProblem::Unaligned, "is not a multiple of 512"),
        (AnswerProblem::TooLong, "leaves no room for them below 2^64"),
        (AnswerProblem::Overlaps(DeviceAddress(0x5000), Bytes(700)), "overlaps the 700 bytes at 0x5000 that are still held"),
        (AnswerProblem::TooMuch, "would make more than 2^63 - 1 bytes in all"),
    ] {
        let wrong = WrongAnswer { call: "reserve", address: DeviceAddress(0xabc0), bytes: Bytes(512), problem };
        let text = format!("the device's answer cannot be used: reserve of 512 bytes returned 0xabc0, which {text}");
        says(wrong.to_string(), &text)?;
        says(AllocError::Answer(wrong).to_string(), &text)?;
    }
    let id = PoolId(3, 4);
    let errors = [
        PoolError::AlreadyRouted(id),
        PoolError::NotRouted(id),
        PoolError::Unknown(id),
        PoolError::Abandoned(id),
        PoolError::NotInUse(id),
        PoolError::Overreleased(id),
    ];
    for error in errors {
        for profile in RELEASES.iter().map(|release| release.profile) {
            texts::check(&error.message(profile), texts::of_pool(error, profile))?;
            texts::check(&AllocError::Pool(error).message(profile), texts::of_pool(error, profile))?;
        }
        texts::check(&error.to_string(), texts::of_pool(error, &Profile::PYTORCH_2_11))?;
        texts::check(&AllocError::Pool(error).to_string(), texts::of_pool(error, &Profile::PYTORCH_2_11))?;
    }
    says(PoolError::TooMany.to_string(), "more than 32767 private pools")?;
    let address = DeviceAddress(0x7f00);
    for error in [
        CheckpointError::UnknownPool(id),
        CheckpointError::LostPool(id),
        CheckpointError::Abandoned(id),
        CheckpointError::EventsPending(address),
        CheckpointError::SegmentMissing(address),
        CheckpointError::BlockPending(address),
        CheckpointError::SizeDiffers(address),
        CheckpointError::LengthDiffers(address),
        CheckpointError::TailInUse(address),
        CheckpointError::TailGrew(address),
        CheckpointError::TailMapped(address),
    ] {
        texts::check(&error.to_string(), texts::of_checkpoint(&error))?;
    }
    let parted = "a pool cannot be restored where free neighbours stay apart because they belong to different streams";
    says(CheckpointError::Parted.to_string(), parted)?;
    says(UnknownStatistic { key: "a\"b".to_owned() }.to_string(), r#"the allocator has no statistic called "a\"b""#)
}
