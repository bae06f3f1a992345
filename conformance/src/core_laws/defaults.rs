//! What a device and a policy do that say only what they must, and that a policy in a box answers as it does outside of it.

use crate::law::{Broken, Law, ensure};
use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::policy::{Attempt, FreeOrder, Placement, Policy, Relief, Request};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, StreamId};
use parkade::{Heap, PoolSlot};

use crate::core_laws::devices::{AnyPaperCore, Paper};
use crate::core_laws::run::{Draws, Outcome};

/// A device that can take and unmap single pages, and notes what it unmaps.
#[derive(Debug)]
struct Pages(Paper, Vec<(u64, u64)>);

impl DeviceBackend for Pages {
    type Event = ();
    type Physical = u64;

    fn index(&self) -> u32 {
        0
    }

    fn total_memory(&self) -> Bytes {
        self.0.total_memory()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.0.memory_info()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.0.malloc(size)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.0.free(address)
    }

    fn create(&mut self, size: Bytes) -> Result<u64, BackendError> {
        Ok(size.get())
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.1.push((address.get(), size.get()));
        Ok(())
    }

    fn create_event(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn record_event(&mut self, (): &mut (), _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn is_complete(&mut self, (): &()) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn wait(&mut self, (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn destroy_event(&mut self, (): ()) {}
}

/// A policy with only the methods that it must have.
struct Plain;

impl Policy for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        Some(requested)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, _: &Heap, request: &Request) -> Placement {
        Placement::Segment(request.size)
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, _: &Heap, _: &Request, rung: u32) -> Relief {
        if rung == 0 { Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask } } else { Relief::GiveUp }
    }
}

/// All answers that need no heap with blocks, in words.
fn answers(policy: &dyn Policy, request: &Request) -> String {
    let sizes = [512, 700, MIB, 20 * MIB, u64::MAX].map(Bytes);
    let slots = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
    let of_size = sizes.map(|size| {
        let (rounded, class) = (policy.round(size), policy.classify(size));
        let cut = (size > request.size).then(|| policy.splits(size, request));
        (rounded, class, cut, policy.reservation(size), policy.is_oversize(size), policy.rejects(Bytes(1), size, Bytes(MIB)))
    });
    let of_slot = slots.map(|slot| (policy.is_expandable(slot), policy.page(slot), policy.stamp(slot)));
    let rules = (policy.free_order(), policy.releases_during_captures(), policy.max_split_size());
    format!("{} {} {of_size:?} {of_slot:?} {rules:?}", policy.name(), policy.profile().name)
}

pub(crate) fn check(_: &Draws) -> Outcome {
    devices()?;
    policies()?;
    boxes()?;
    Ok(3)
}

fn devices() -> Result<(), Broken> {
    let mut device = Paper::new(1 << 30);
    let (at, size, stream) = (DeviceAddress(1 << 30), Bytes(2 * MIB), StreamId::DEFAULT);
    let answers = [
        device.reserve(size).map(drop),
        device.unreserve(at, size),
        device.create(size),
        device.map(at, size, &()),
        device.set_access(at, size),
        device.unmap(at, size),
        device.release(()).map_err(|((), error)| error),
        device.create_run(size, 2).map(drop),
        device.split_run(&mut (), size, 1),
        device.unmap_run(at, size, 2),
        device.synchronize_stream(stream),
        device.stream_wait(stream, &()),
    ];
    let refused = |call| Err(BackendError::Driver { call, code: 801 });
    let is_right = answers[..11].iter().all(|answer| *answer == refused("virtual memory"));
    ensure(Law::Faults, is_right && answers[11] == refused("cudaStreamWaitEvent"), || {
        format!("a device without virtual memory answers {answers:?}")
    })?;
    let others = (device.run_pages(), device.processes().len(), device.answers_are_checked(), device.completes_by_handle());
    ensure(Law::Faults, others == (1, 0, true, false), || format!("by default a device says {others:?}"))?;
    let mut device = Pages(Paper::new(1 << 30), Vec::new());
    let taken = device.create_run(size, 5);
    let unmapped = device.unmap_run(at, size, 3);
    let is_right = taken == Ok((size.get(), 1)) && unmapped.is_ok() && device.1 == [(at.get(), 3 * size.get())];
    ensure(Law::Faults, is_right, || format!("of five pages {taken:?} are taken; unmapped are {:?}", device.1))
}

fn policies() -> Result<(), Broken> {
    let slots = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
    let of_slot = slots.map(|slot| (Plain.is_expandable(slot), Plain.page(slot).get(), Plain.stamp(slot)));
    let rules = (Plain.free_order(), Plain.releases_during_captures(), Plain.max_split_size());
    let addresses = [0, 7, 8, 800, 801, u64::MAX].map(|total| Plain.reservation(Bytes(total)).get());
    let others = (Plain.is_oversize(Bytes::MAX), Plain.rejects(Bytes::MAX, Bytes::MAX, Bytes(0)), Plain.profile().name);
    let is_right = of_slot == [(false, 2 * MIB, 0); 2]
        && rules == (FreeOrder::BySize, false, -1)
        && addresses == [0, 7, 9, 900, 901, u64::MAX]
        && others == (false, false, "2.11");
    ensure(Law::Answers, is_right, || format!("by default a policy says {of_slot:?} {rules:?} {addresses:?} {others:?}"))?;
    // A cache of two segments, of which everything may go.
    let mut core = AnyPaperCore::new(Paper::new(1 << 30), Box::new(Plain), Vec::new());
    let held = [3 * MIB, 5 * MIB].map(|size| core.allocate(Bytes(size), StreamId::DEFAULT));
    for allocation in held {
        let freed = allocation.map_err(|error| Broken::new(Law::Answers, error)).map(|allocation| core.free(allocation));
        ensure(Law::Answers, freed == Ok(Ok(())), || format!("{freed:?}"))?;
    }
    let (named, all) = (core.policy().releasable(core.heap()), core.heap().releasable());
    ensure(Law::Answers, named == all && all.len() == 2, || format!("by default {named:?} of {all:?} may be released"))
}

fn boxes() -> Result<(), Broken> {
    let text = "expandable_segments:True,max_split_size_mb:21,large_segment_size_mb:12,throw_on_cudamalloc_oom:True,\
                per_process_memory_fraction:0.5,expandable_segments_reserve:0.25,roundup_power2_divisions:8";
    let profile = &Profile::PYTORCH_2_15;
    let settings = Settings::from_environment_as(&profile.dialect, text).map_err(|error| Broken::new(Law::Settings, error))?;
    let plain = parkade::policy::PyTorch::of(profile, settings);
    let boxed: Box<dyn Policy> = Box::new(plain.clone());
    let (stream, size) = (StreamId::DEFAULT, Bytes(600));
    let pool = PoolSlot::default_pool(PoolClass::Small);
    let request = Request { requested: size, size, pool, stream, is_expandable: true };
    let (seen, expected) = (answers(&boxed, &request), answers(&plain, &request));
    ensure(Law::Answers, seen == expected, || format!("in a box a policy says {seen}, outside {expected}"))?;
    let [mut seen, mut expected] =
        [AnyPaperCore::new(Paper::new(1 << 30), boxed, Vec::new()).stats().clone(), Default::default()];
    expected.max_split_size = 21 << 20;
    ensure(Law::Counters, seen == expected, || format!("max_split_size is {} at first", seen.max_split_size))?;
    seen.reset_accumulated();
    ensure(Law::Counters, seen == expected, || "a reset changes max_split_size".to_owned())
}
