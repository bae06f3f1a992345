//! Rescue: PyTorch's decisions until its ladder ends, and then a request that is still served.

use parkade::policy::{Policy, PyTorch, Relief, Request, Rung, Wrapper};
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, Heap, PoolFilter};
use parkade_policies::{Reach, Rescue};
use parkade_sim::{SimDevice, SimOptions};
use proptest::collection::vec;
use proptest::prelude::*;

type Traced<P> = Allocator<SimDevice, P, Vec<TraceEntry>>;

fn pytorch() -> PyTorch {
    PyTorch::new(Settings { expandable_segments: true, ..Settings::default() })
}

fn rescue(reach: Reach) -> Rescue {
    Rescue::new(pytorch(), Some(reach))
}

fn on<P: Policy>(capacity_mib: u64, policy: P) -> Traced<P> {
    Allocator::new(SimDevice::new(SimOptions::new(Bytes::mib(capacity_mib))), policy, Vec::new())
}

fn take<P: Policy>(allocator: &mut Traced<P>, mib: u64) -> Result<Allocation, AllocError> {
    allocator.allocate(Bytes::mib(mib), StreamId::DEFAULT)
}

/// A device with 200 MiB, full of 20 MiB pages. In each page, 5 MiB stay in use and contain the number of their
/// block.
fn scattered<P: Policy>(policy: P) -> (Traced<P>, Vec<Allocation>) {
    let mut allocator = on(200, policy);
    let blocks: Vec<_> = (0..40).map(|_| take(&mut allocator, 5).unwrap()).collect();
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for (place, block) in blocks.into_iter().enumerate() {
        if place % 4 == 1 {
            allocator.device_mut().fill(block.address(), Bytes::mib(5), place as u32, StreamId::DEFAULT).unwrap();
            kept.push(block);
        } else {
            gone.push(block);
        }
    }
    gone.into_iter().for_each(|block| allocator.free(block).unwrap());
    (allocator, kept)
}

fn assert_contents<P: Policy>(allocator: &mut Traced<P>, kept: &[Allocation]) {
    for (place, block) in kept.iter().enumerate() {
        let mut words = vec![0; 5 * MIB as usize];
        allocator.device_mut().read(DeviceAddress(block.address().get()), &mut words).unwrap();
        let expected = (1 + 4 * place as u32).to_le_bytes();
        assert!(words.chunks_exact(4).all(|word| word == expected), "block {place}");
    }
}

fn give_all<P: Policy>(mut allocator: Traced<P>, blocks: Vec<Allocation>) {
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    allocator.release_cached().unwrap();
    allocator.check().unwrap();
    assert_eq!((allocator.device().used_bytes(), allocator.device().live_physical()), (Bytes::ZERO, 0));
}

#[test]
fn what_pytorch_refuses_is_served_and_nothing_in_use_changes() {
    let (mut refused, _kept) = scattered(pytorch());
    assert!(matches!(take(&mut refused, 100), Err(AllocError::OutOfMemory(_))), "PyTorch has no page that is entirely free");

    let (mut allocator, mut kept) = scattered(rescue(Reach::Breaks));
    let addresses: Vec<_> = kept.iter().map(Allocation::address).collect();
    let large = take(&mut allocator, 100).unwrap();
    allocator.check().unwrap();
    assert_contents(&mut allocator, &kept);
    assert_eq!(kept.iter().map(Allocation::address).collect::<Vec<_>>(), addresses);
    let stats = allocator.stats();
    assert_eq!((stats.num_rescues, stats.num_ooms), (1, 0));
    assert!(stats.copied_bytes > 0);
    kept.push(large);
    give_all(allocator, kept);
}

#[test]
fn the_trace_has_the_failure_that_the_program_was_spared() {
    let (mut refused, _kept) = scattered(pytorch());
    take(&mut refused, 100).unwrap_err();
    let (mut allocator, _kept) = scattered(rescue(Reach::Breaks));
    let _large = take(&mut allocator, 100).unwrap();
    let trace = allocator.observer();
    assert_eq!(trace[..refused.observer().len()], refused.observer()[..]);
    assert_eq!(refused.observer().last().unwrap().action, TraceAction::Oom);
    assert_eq!(trace.last().unwrap().action, TraceAction::Alloc);
}

#[test]
fn free_memory_moves_without_a_copy() {
    // A 20 MiB page needs the remainders of two pages.
    let mut refused = on(50, pytorch());
    let _kept = take(&mut refused, 20).unwrap();
    assert!(matches!(take(&mut refused, 30), Err(AllocError::OutOfMemory(_))));

    let mut allocator = on(50, rescue(Reach::Free));
    let kept = take(&mut allocator, 20).unwrap();
    let large = take(&mut allocator, 30).unwrap();
    assert_eq!((allocator.stats().num_rescues, allocator.stats().copied_bytes), (1, 0));
    give_all(allocator, vec![kept, large]);

    let (mut allocator, kept) = scattered(rescue(Reach::Free));
    assert!(matches!(take(&mut allocator, 100), Err(AllocError::OutOfMemory(_))), "it breaks nothing");
    assert_eq!((allocator.stats().num_rescues, allocator.stats().num_ooms), (0, 1));
    give_all(allocator, kept);
}

#[test]
fn a_rescue_that_fails_says_what_it_tried() {
    let (mut allocator, kept) = scattered(rescue(Reach::Breaks));
    let error = take(&mut allocator, 180).unwrap_err().to_string();
    assert!(error.starts_with("CUDA out of memory. Tried to allocate 180.00 MiB."), "{error}");
    assert!(error.ends_with("it moved 0 handles and broke 0 handles, but there is still not enough free memory."), "{error}");
    let ooms = allocator.observer().iter().filter(|entry| entry.action == TraceAction::Oom).count();
    assert_eq!((ooms, allocator.stats().num_ooms), (1, 1));
    assert_contents(&mut allocator, &kept);
    give_all(allocator, kept);
}

#[test]
fn no_more_requests_are_rescued_than_asked_for() {
    let (mut allocator, mut kept) = scattered(rescue(Reach::Breaks).at_most(1));
    kept.push(take(&mut allocator, 60).unwrap());
    assert_eq!(allocator.stats().num_rescues, 1);
    assert!(matches!(take(&mut allocator, 60), Err(AllocError::OutOfMemory(_))));
    give_all(allocator, kept);
}

const POOL: PoolId = PoolId(1, 0);

/// Captures a graph on a stream whose requests are routed to [`POOL`], and returns the answer to a request of this
/// size.
fn capture(allocator: &mut Traced<Rescue>, mib: u64, stream: StreamId) -> Result<Allocation, AllocError> {
    allocator.begin_pool(POOL, PoolFilter::Stream(stream)).unwrap();
    allocator.device_mut().begin_capture(stream);
    let answer = allocator.allocate(Bytes::mib(mib), stream);
    allocator.check().unwrap();
    allocator.device_mut().end_capture(stream);
    allocator.end_pool(POOL).unwrap();
    answer
}

#[test]
fn during_a_capture_memory_of_other_streams_moves_and_that_of_the_captured_stream_stays() {
    for (captured, is_rescued) in [(StreamId(1), true), (StreamId::DEFAULT, false)] {
        let mut allocator = on(50, rescue(Reach::Free));
        let (kept, gone) = (take(&mut allocator, 20).unwrap(), take(&mut allocator, 20).unwrap());
        allocator.free(gone).unwrap();
        let answer = capture(&mut allocator, 30, captured);
        assert_eq!(answer.is_ok(), is_rescued);
        allocator.release_pool(POOL).unwrap();
        give_all(allocator, answer.into_iter().chain([kept]).collect());
    }
}

#[test]
fn during_a_capture_handles_break_and_contents_stay() {
    let (mut allocator, mut kept) = scattered(rescue(Reach::Breaks));
    let graph = capture(&mut allocator, 100, StreamId(1)).unwrap();
    assert!(allocator.stats().copied_bytes > 0);
    assert_contents(&mut allocator, &kept);
    allocator.release_pool(POOL).unwrap();
    kept.push(graph);
    give_all(allocator, kept);
}

#[test]
fn what_a_private_pool_handed_out_stays_its_own_and_the_rest_of_its_pages_does_not() {
    for (freed_mib, is_rescued) in [(0, true), (10, false)] {
        let mut allocator = on(50, rescue(Reach::Breaks));
        let graph = capture(&mut allocator, 5, StreamId(1)).unwrap();
        allocator.device_mut().fill(graph.address(), Bytes::mib(5), 1, StreamId::DEFAULT).unwrap();
        if freed_mib > 0 {
            let gone = capture(&mut allocator, freed_mib, StreamId(1)).unwrap();
            allocator.free(gone).unwrap();
        }
        let answer = take(&mut allocator, 40);
        allocator.check().unwrap();
        assert_eq!(answer.is_ok(), is_rescued, "a graph may write to the {freed_mib} MiB that it freed");
        let kept = [graph];
        assert_contents(&mut allocator, &kept);
        (0..1 + u64::from(freed_mib > 0)).for_each(|_| allocator.release_pool(POOL).unwrap());
        give_all(allocator, answer.into_iter().chain(kept).collect());
    }
}

#[test]
fn no_settings_without_expandable_segments_are_rescued() {
    let policy = || Rescue::new(PyTorch::new(Settings::default()), Some(Reach::Breaks));
    let mut allocator = on(100, policy());
    let blocks: Vec<_> = (0..10).map(|_| take(&mut allocator, 10).unwrap()).collect();
    assert!(matches!(take(&mut allocator, 10), Err(AllocError::OutOfMemory(_))));
    assert_eq!(allocator.observer().iter().filter(|entry| entry.action == TraceAction::Oom).count(), 1);
    give_all(allocator, blocks);
}

/// Runs one program on both allocators until PyTorch refuses a request. Returns whether it did.
fn play_both(steps: &[(u64, usize)], most_mib: u64, reach: Reach) -> Result<bool, TestCaseError> {
    let (mut theirs, mut ours) = (on(most_mib, pytorch()), on(most_mib, rescue(reach)));
    let mut live: Vec<(Allocation, Allocation)> = Vec::new();
    for &(kib, freed) in steps {
        let bytes = Bytes(kib << 10);
        let stream = StreamId(freed as u64 % 3);
        match (theirs.allocate(bytes, stream), ours.allocate(bytes, stream)) {
            (Ok(one), Ok(other)) => live.push((one, other)),
            (Err(AllocError::OutOfMemory(_)), answer) => {
                let before = theirs.observer().len();
                prop_assert_eq!(&ours.observer()[..before], &theirs.observer()[..]);
                prop_assert!(matches!(answer, Ok(_) | Err(AllocError::OutOfMemory(_))));
                ours.check().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
                return Ok(true);
            }
            (one, other) => prop_assert!(false, "{one:?}, {other:?}"),
        }
        if freed < live.len() {
            let (one, other) = live.swap_remove(freed);
            theirs.free(one).unwrap();
            ours.free(other).unwrap();
        }
    }
    prop_assert_eq!(theirs.observer(), ours.observer());
    prop_assert_eq!(theirs.stats().entries(), ours.stats().entries());
    Ok(false)
}

proptest! {
    #[test]
    fn until_pytorch_fails_every_entry_is_its_own(
        steps in vec((prop_oneof![1_u64..1025, 1025_u64..40_000], 0_usize..24), 1..160),
        most_mib in 60_u64..400,
        breaks in any::<bool>(),
    ) {
        play_both(&steps, most_mib, if breaks { Reach::Breaks } else { Reach::Free })?;
    }
}

#[test]
fn what_a_checkpoint_has_seen_stays_the_pools_own() {
    let mut allocator = on(50, rescue(Reach::Breaks));
    let graph = capture(&mut allocator, 5, StreamId(1)).unwrap();
    let checkpoint = allocator.checkpoint_pool(POOL).unwrap();
    assert!(matches!(take(&mut allocator, 40), Err(AllocError::OutOfMemory(_))), "the rest of the page is in the checkpoint");
    let restored = allocator.restore_pool(&checkpoint).unwrap();
    assert_eq!(restored.freed, [graph.address()]);
    allocator.release_pool(POOL).unwrap();
    give_all(allocator, restored.allocations);
}

/// A pool that belongs to a captured graph: what lives in it, and the addresses that the graph writes to when it runs.
#[derive(Default)]
struct Graph {
    live: Vec<Allocation>,
    written: Vec<(DeviceAddress, Bytes)>,
}

/// Plays a program of tensors and graphs in little memory. After each rescue and at the end, all graphs write to what was ever
/// handed out to them, and the tensors keep their contents.
fn play_graphs(steps: &[(u8, u64, usize)], most_mib: u64) -> Result<(), TestCaseError> {
    let mut seen_rescues = 0;
    let mut allocator = on(most_mib, rescue(Reach::Breaks));
    let mut tensors: Vec<(Allocation, Bytes, u32)> = Vec::new();
    let mut graphs: [Graph; 2] = Default::default();
    for (step, &(kind, kib, pick)) in steps.iter().enumerate() {
        let (size, number) = (Bytes(kib << 10), pick % 2);
        let (pool, graph) = (PoolId(1 + number as u64, 0), &mut graphs[number]);
        match kind {
            0..5 => {
                if let Ok(tensor) = allocator.allocate(size, StreamId::DEFAULT) {
                    allocator.device_mut().fill(tensor.address(), size, step as u32, StreamId::DEFAULT).unwrap();
                    tensors.push((tensor, size, step as u32));
                }
            }
            5..8 if !tensors.is_empty() => allocator.free(tensors.swap_remove(pick % tensors.len()).0).unwrap(),
            8 => {
                let stream = StreamId(1 + number as u64);
                allocator.begin_pool(pool, PoolFilter::Stream(stream)).unwrap();
                allocator.device_mut().begin_capture(stream);
                for part in 1..4 {
                    let size = Bytes(size.get() / part / 4 * 4);
                    if let Ok(block) = allocator.allocate(size, stream) {
                        graph.written.push((block.address(), size));
                        graph.live.push(block);
                    }
                    if pick & (1 << part) != 0 && graph.live.len() > 1 {
                        allocator.free(graph.live.swap_remove(pick % graph.live.len())).unwrap();
                    }
                }
                allocator.device_mut().end_capture(stream);
                allocator.end_pool(pool).unwrap();
                if allocator.pool_use_count(pool).unwrap() > 1 {
                    allocator.release_pool(pool).unwrap();
                }
            }
            9 if !graph.written.is_empty() => {
                graph.live.drain(..).for_each(|block| allocator.free(block).unwrap());
                graph.written.clear();
                allocator.release_pool(pool).unwrap();
                allocator.release_cached().unwrap();
            }
            _ => {}
        }
        allocator.check().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
        let rescues = allocator.stats().num_rescues;
        if rescues == seen_rescues && step + 1 < steps.len() {
            continue;
        }
        seen_rescues = rescues;
        for &(address, size) in graphs.iter().flat_map(|graph| &graph.written) {
            let written = allocator.device_mut().fill(address, size, u32::MAX, StreamId::DEFAULT);
            prop_assert!(written.is_ok(), "step {step}: a graph writes to {address:?}: {written:?}");
        }
        for (tensor, size, value) in &tensors {
            let mut bytes = vec![0; size.get() as usize];
            allocator.device_mut().read(tensor.address(), &mut bytes).unwrap();
            let is_kept = bytes == value.to_le_bytes().repeat(bytes.len() / 4);
            prop_assert!(is_kept, "step {step}: the tensor of step {value}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn graphs_write_to_what_they_were_given_and_tensors_keep_their_contents(
        steps in vec((0_u8..10, prop_oneof![1_u64..600, 1025_u64..14_000], 0_usize..64), 1..50),
        most_mib in 40_u64..110,
    ) {
        play_graphs(&steps, most_mib)?;
    }
}

/// PyTorch's rules, but when they fail, this policy requests pages of a size that does not divide PyTorch's page size.
#[derive(Clone, Debug)]
struct Uneven(PyTorch);

impl Wrapper for Uneven {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Grow, Rung::WaitForEvents, Rung::ReleaseAll, Rung::GrowAgain, Rung::Own]
    }

    fn relieve(&mut self, _: &Heap, _: &Request, turn: u32) -> Relief {
        if turn == 0 { Relief::Rescue { page: Bytes::mib(8) } } else { Relief::Done }
    }
}

#[test]
fn pages_that_a_size_does_not_divide_stay_and_the_request_fails() {
    let (mut allocator, kept) = scattered(Uneven(pytorch()));
    assert!(matches!(take(&mut allocator, 100), Err(AllocError::OutOfMemory(_))), "this is not a fault of the policy");
    assert_eq!(allocator.heap().refined_page(), None);
    assert_contents(&mut allocator, &kept);
    give_all(allocator, kept);
}

/// If a rescue gives up and PyTorch's release of the cache then serves the request, the statistics count a rescue, because
/// the trace has the failure. It is then one of the most rescues, too.
#[test]
fn a_rescue_that_the_statistics_count_is_one_of_the_most() {
    let mut allocator = on(80, rescue(Reach::Free).at_most(2));
    let there = StreamId(2);
    allocator.policy_mut().pytorch_mut().settings.expandable_segments = false;
    let segments = [20, 20].map(|mib| allocator.allocate(Bytes::mib(mib), there).unwrap());
    allocator.policy_mut().pytorch_mut().settings.expandable_segments = true;
    let elsewhere = allocator.allocate(Bytes::mib(5), StreamId(1)).unwrap();
    let mut kept = vec![elsewhere, take(&mut allocator, 20).unwrap()];
    kept.push(take(&mut allocator, 10).unwrap());
    assert_eq!(allocator.stats().num_rescues, 1, "part of the other stream's page");
    segments.into_iter().for_each(|segment| allocator.free(segment).unwrap());
    kept.push(take(&mut allocator, 30).unwrap());
    assert_eq!((allocator.stats().num_rescues, allocator.stats().num_alloc_retries), (2, 2));
    kept.push(take(&mut allocator, 10).unwrap());
    let refused = take(&mut allocator, 4);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    assert_eq!(allocator.stats().num_rescues, 2);
    allocator.check().unwrap();
    give_all(allocator, kept);
}
