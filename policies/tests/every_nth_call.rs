//! Every n-th driver call fails, again and again. Each failure becomes a typed error or is handled, the heap stays
//! consistent, and at the end all memory has been returned to the device. Overflow checks are on, as in every test
//! build.

use parkade::policy::Policy;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, FreeError, PoolFilter};
use parkade_policies::{BESIDE, CATALOGUE};
use parkade_sim::{FaultError, FaultPlan, SimDevice, SimOptions, When};

type Core = Allocator<SimDevice, Box<dyn Policy + Send>>;

const CAPACITY: Bytes = Bytes::mib(700);
const POOL: PoolId = PoolId(0, 1);

/// Returns a plan in which every n-th call fails, some of them for lack of memory.
fn plan(n: u64) -> FaultPlan {
    (1..400).fold(FaultPlan::none(), |plan, k| {
        let error = if k % 3 == 0 { FaultError::OutOfMemory } else { FaultError::Code(700) };
        plan.and(When::Nth(k * n), error)
    })
}

/// Runs a program that makes every kind of driver call. It continues after every failure.
fn run(core: &mut Core, name: &str) -> Vec<Allocation> {
    let mut out: Vec<Allocation> = Vec::new();
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    core.begin_pool(POOL, PoolFilter::Stream(StreamId(3))).expect("a new pool");
    for step in 0..400 {
        match next() % 8 {
            0..=3 => {
                let bytes = Bytes(512 << (next() % 19));
                match core.allocate(bytes, StreamId(next() % 4)) {
                    Ok(taken) => out.push(taken),
                    Err(AllocError::OutOfMemory(_) | AllocError::Device(_)) => {}
                    Err(other) => panic!("{name}: {other}"),
                }
            }
            4 | 5 if !out.is_empty() => {
                let given = out.swap_remove(next() as usize % out.len());
                let answer = core.free(given);
                assert!(!matches!(answer, Err(FreeError::NotAllocated(_))), "{name}: {answer:?}");
            }
            6 if !out.is_empty() => core.record_stream(&out[next() as usize % out.len()], StreamId(next() % 4)),
            7 => {
                let answer = core.release_cached();
                assert!(matches!(answer, Ok(()) | Err(AllocError::Device(_))), "{name}: {answer:?}");
            }
            _ => {}
        }
        core.check().unwrap_or_else(|violation| panic!("{name}: step {step}: {violation}"));
    }
    core.end_pool(POOL).and_then(|()| core.release_pool(POOL)).expect("routed to");
    out
}

#[test]
fn every_nth_driver_call_may_fail() {
    let mut fired = 0;
    for named in CATALOGUE.iter().chain(BESIDE) {
        for n in [1, 2, 3, 5, 7, 11, 17] {
            let name = format!("{}, every {n}", named.name);
            let mut core: Core = Allocator::new(SimDevice::new(SimOptions::new(CAPACITY)), named.make(), ());
            core.device_mut().set_fault_plan(plan(n));
            let out = run(&mut core, &name);
            fired += core.device().fault_plan().fired();
            core.device_mut().set_fault_plan(FaultPlan::none());
            for held in out {
                core.free(held).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            // Release twice: the first call may free memory when it is too late to release it.
            core.release_cached().and_then(|()| core.release_cached()).unwrap_or_else(|error| panic!("{name}: {error}"));
            core.check().unwrap_or_else(|violation| panic!("{name}: {violation}"));
            let device = core.device();
            assert_eq!((core.heap().reserved(), device.used_bytes()), (Bytes::ZERO, Bytes::ZERO), "{name}");
        }
    }
    assert!(fired > 1_000, "only {fired} calls failed");
}
