//! Tries the interleavings of threads in [`Shared`]: all of two threads, and many of three threads with at most three
//! preemptions. Loom also tries every value that a load may return under the memory model.
//!
//! With a limit of preemptions, the search is not complete: of a program that was one call longer than the one in
//! [`three_threads_allocate_and_free`], it missed one of 21 outcomes. [`explore_calls`] therefore checks that it misses none.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p parkade-shared --release --test loom --target-dir target/loom -- --nocapture
//! ```
//!
//! Each test prints the number of interleavings.
#![cfg(loom)]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64 as Uncounted, Ordering};
use std::sync::{Arc, Mutex, Weak};

use loom::sync::atomic::AtomicUsize;
use loom::thread::JoinHandle;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{Allocation, Allocator};
use parkade_shared::{AddressError, Error, Shared};
use parkade_sim::{EventTiming, SimDevice, SimOptions};

type Core = Allocator<SimDevice, PyTorch, Vec<TraceEntry>>;
type Threads = Shared<SimDevice, PyTorch, Vec<TraceEntry>>;
type Answer = Result<DeviceAddress, Error>;

/// What a call returns that returns no address.
const DONE: Answer = Ok(DeviceAddress(0));
const SIZE: Bytes = Bytes(1_000);

fn core() -> Core {
    let device = SimDevice::new(SimOptions::new(Bytes::mib(256)).event_timing(EventTiming::Lazy));
    Allocator::new(device, PyTorch::new(Settings::default()), Vec::new())
}

/// Tries the interleavings of a program. `preemptions` limits how often loom interrupts a thread that could go on.
fn explore(what: &str, preemptions: Option<usize>, program: impl Fn() + Send + Sync + 'static) {
    let tried = Arc::new(Uncounted::new(0));
    let count = Arc::clone(&tried);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    let program = Arc::new(program);
    model.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let program = Arc::clone(&program);
        joined(spawn(move || program()));
    });
    eprintln!("{what}: {} interleavings", tried.load(Ordering::Relaxed));
}

/// Starts a thread on which the core has enough stack.
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    const STACK_WORDS: usize = 16 << 10;
    loom::thread::Builder::new().stack_size(STACK_WORDS).spawn(work).expect("loom has room for it")
}

fn joined<T>(thread: JoinHandle<T>) -> T {
    thread.join().expect("no thread panics")
}

fn refused_twice(address: DeviceAddress) -> Error {
    Error::Address(AddressError::NotAllocated { address })
}

/// A call of a thread's program.
#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate(Bytes),
    /// Frees the block that the thread allocated last.
    FreeOwn,
    /// Frees a block that was allocated before the threads started. Several threads may do so.
    Free(usize),
    /// Records that another stream uses such a block.
    Record(usize),
}

/// Everything that can be observed of an execution.
#[derive(PartialEq, Debug)]
struct Outcome {
    /// The answers of each thread.
    answers: Vec<Vec<Answer>>,
    trace: Vec<TraceEntry>,
    stats: Vec<(String, i64)>,
    segments: Vec<SegmentInfo>,
}

impl Outcome {
    fn new(answers: Vec<Vec<Answer>>, core: &Core) -> Outcome {
        core.check().expect("the heap is valid");
        Outcome { answers, trace: core.observer().clone(), stats: core.stats().entries(), segments: core.segments() }
    }
}

/// A core for one thread, which identifies blocks by handles.
struct Alone {
    core: Core,
    blocks: BTreeMap<DeviceAddress, Allocation>,
    given: Vec<DeviceAddress>,
}

impl Alone {
    fn new(given: usize) -> Alone {
        let mut alone = Alone { core: core(), blocks: BTreeMap::new(), given: Vec::new() };
        for _ in 0..given {
            let address = alone.answer(Call::Allocate(SIZE), &[]).expect("there is memory");
            alone.given.push(address);
        }
        alone
    }

    fn answer(&mut self, call: Call, before: &[Answer]) -> Answer {
        match call {
            Call::Allocate(bytes) => {
                let allocation = self.core.allocate(bytes, StreamId::DEFAULT).map_err(Error::Refused)?;
                let address = allocation.address();
                assert_eq!(self.blocks.insert(address, allocation), None, "{address} was handed out twice");
                Ok(address)
            }
            Call::FreeOwn => self.free(own(before)),
            Call::Free(number) => self.free(self.given[number]),
            Call::Record(number) => {
                let address = self.given[number];
                self.core.record_stream(self.blocks.get(&address).ok_or(refused_twice(address))?, StreamId(7));
                DONE
            }
        }
    }

    fn free(&mut self, address: DeviceAddress) -> Answer {
        let allocation = self.blocks.remove(&address).ok_or(refused_twice(address))?;
        self.core.free(allocation).expect("the device records events");
        DONE
    }
}

/// Returns the address that the thread's last allocation returned.
fn own(before: &[Answer]) -> DeviceAddress {
    before.iter().rev().find_map(|answer| answer.clone().ok().filter(|_| *answer != DONE)).expect("it has allocated")
}

/// Returns the outcomes of all orders in which a single thread can make the calls, without repetition.
fn serial_outcomes(programs: &[Vec<Call>], given: usize) -> Vec<Outcome> {
    fn orders(left: &[usize], order: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if left.iter().all(|&left| left == 0) {
            all.push(order.clone());
        }
        for thread in 0..left.len() {
            if left[thread] > 0 {
                let mut left = left.to_vec();
                left[thread] -= 1;
                order.push(thread);
                orders(&left, order, all);
                order.pop();
            }
        }
    }
    let (lengths, mut all) = (programs.iter().map(Vec::len).collect::<Vec<_>>(), Vec::new());
    orders(&lengths, &mut Vec::new(), &mut all);
    let mut outcomes: Vec<Outcome> = Vec::new();
    for order in all {
        let mut alone = Alone::new(given);
        let mut answers = vec![Vec::new(); programs.len()];
        for thread in order {
            let answer = alone.answer(programs[thread][answers[thread].len()], &answers[thread]);
            answers[thread].push(answer);
        }
        let outcome = Outcome::new(answers, &alone.core);
        if !outcomes.contains(&outcome) {
            outcomes.push(outcome);
        }
    }
    outcomes
}

fn run(shared: &Threads, program: &[Call], given: &[DeviceAddress]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for &call in program {
        answers.push(match call {
            Call::Allocate(bytes) => shared.allocate(bytes, StreamId::DEFAULT),
            Call::FreeOwn => shared.free(own(&answers)).and(DONE),
            Call::Free(number) => shared.free(given[number]).and(DONE),
            Call::Record(number) => shared.record_stream(given[number], StreamId(7)).and(DONE),
        });
    }
    answers
}

/// Checks that each interleaving has the outcome of a serial order, and that each of those outcomes occurs.
fn explore_calls<const N: usize>(what: &str, preemptions: Option<usize>, given: usize, programs: [&[Call]; N]) {
    let programs = programs.map(<[Call]>::to_vec);
    let expected = Arc::new(serial_outcomes(&programs, given));
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let (outcomes, found) = (Arc::clone(&expected), Arc::clone(&seen));
    explore(what, preemptions, move || {
        let shared = Arc::new(Threads::new(core()));
        let given: Vec<_> = (0..given).map(|_| shared.allocate(SIZE, StreamId::DEFAULT).expect("there is memory")).collect();
        let others: Vec<_> = programs[1..]
            .iter()
            .map(|program| {
                let (shared, program, given) = (Arc::clone(&shared), program.clone(), given.clone());
                spawn(move || run(&shared, &program, &given))
            })
            .collect();
        let mut answers = vec![run(&shared, &programs[0], &given)];
        answers.extend(others.into_iter().map(joined));
        let outcome = Outcome::new(answers, alone(shared).allocator());
        let number = outcomes.iter().position(|expected| *expected == outcome);
        let number = number.unwrap_or_else(|| panic!("no serial order has this outcome: {outcome:#?}"));
        found.lock().expect("no test panics").insert(number);
    });
    assert_eq!(seen.lock().expect("no test panics").len(), expected.len(), "each serial outcome occurs");
}

/// Returns the allocator after all other threads have ended.
fn alone(shared: Arc<Threads>) -> parkade_shared::ByAddress<SimDevice, PyTorch, Vec<TraceEntry>> {
    Arc::into_inner(shared).expect("the other threads have ended").into_inner().expect("no thread panicked")
}

/// Checks what the statistics say about blocks: how many were allocated, and how many are allocated now.
fn assert_blocks(core: &Core, allocated: i64, current: i64) {
    let stats = core.stats().entries();
    let value = |key: &str| stats.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    assert_eq!(value("allocation.all.allocated"), Some(allocated));
    assert_eq!(value("allocation.all.freed"), Some(allocated - current));
    assert_eq!(value("allocation.all.current"), Some(current));
    core.check().expect("the heap is valid");
}

// The lock.

/// Each thread adds to a number under the lock, in two steps that need the lock to be one. The loads and stores are
/// relaxed, so that only the lock makes a thread see what the previous one stored.
fn explore_lock<const N: usize>(what: &str, preemptions: Option<usize>, calls: [usize; N]) {
    explore(what, preemptions, move || {
        let shared = Arc::new(Threads::new(core()));
        let number = Arc::new(AtomicUsize::new(0));
        let add = {
            let (shared, number) = (Arc::clone(&shared), Arc::clone(&number));
            move |calls| {
                for _ in 0..calls {
                    let added = shared.with(|_| number.store(number.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
                    assert_eq!(added, Ok(()));
                }
            }
        };
        let others: Vec<_> = calls[1..]
            .iter()
            .map(|&calls| {
                let add = add.clone();
                spawn(move || add(calls))
            })
            .collect();
        add(calls[0]);
        others.into_iter().for_each(joined);
        assert_eq!(number.load(Ordering::Relaxed), calls.iter().sum::<usize>());
        drop(add);
        alone(shared);
    });
}

#[test]
fn two_threads_take_turns() {
    explore_lock("two threads take turns", None, [2, 1]);
}

#[test]
fn three_threads_take_turns() {
    explore_lock("three threads take turns", Some(3), [1, 1, 1]);
}

/// Only the thread that is inside is told so; the other one waits.
#[test]
fn a_call_from_inside_is_refused_and_another_thread_is_not() {
    explore("a call from inside", None, || {
        let shared = Arc::new(Threads::new(core()));
        let other = Arc::clone(&shared);
        let other = spawn(move || other.allocate(SIZE, StreamId::DEFAULT));
        assert_eq!(shared.with(|_| shared.allocate(SIZE, StreamId::DEFAULT)), Ok(Err(Error::Reentered)));
        let address = shared.allocate(SIZE, StreamId::DEFAULT).expect("the lock was released");
        assert_ne!(joined(other).expect("it waits"), address);
        assert_blocks(alone(shared).allocator(), 2, 2);
    });
}

#[test]
fn after_a_panic_no_request_is_served() {
    explore("a panic", None, || {
        let shared = Arc::new(Threads::new(core()));
        let other = Arc::clone(&shared);
        let other = spawn(move || [(); 2].map(|()| other.allocate(SIZE, StreamId::DEFAULT)));
        // Without the message that a panic prints.
        let panicked = catch_unwind(AssertUnwindSafe(|| shared.with(|_| resume_unwind(Box::new("a panic during a request")))));
        assert!(panicked.is_err());
        assert_eq!(shared.allocate(SIZE, StreamId::DEFAULT), Err(Error::Poisoned));
        let answers = joined(other).map(|answer| answer.map_err(|error| assert_eq!(error, Error::Poisoned)));
        assert!(answers[0].is_ok() || answers[1].is_err(), "it stays so");
        assert_eq!(shared.allocate(SIZE, StreamId::DEFAULT), Err(Error::Poisoned));
    });
}

// The table of addresses.

#[test]
fn two_threads_allocate_and_free() {
    let (small, other) = (Call::Allocate(SIZE), Call::Allocate(Bytes(3_000)));
    explore_calls("two threads allocate and free", None, 0, [&[small, Call::FreeOwn], &[small, other]]);
}

#[test]
fn two_threads_free_one_block() {
    let again = Call::Allocate(SIZE);
    explore_calls("two threads free one block", None, 1, [&[Call::Free(0)], &[Call::Free(0)]]);
    // A thread may get the address again, and the other one's second free is then a free of the new block.
    explore_calls("and allocate again", None, 1, [&[Call::Free(0), again], &[Call::Free(0)]]);
}

#[test]
fn a_stream_is_recorded_before_or_after_the_free() {
    let programs: [&[Call]; 2] = [&[Call::Record(0)], &[Call::Free(0), Call::Allocate(SIZE)]];
    explore_calls("a stream is recorded", None, 1, programs);
}

#[test]
fn three_threads_allocate_and_free() {
    let allocate = Call::Allocate(SIZE);
    let programs: [&[Call]; 3] = [&[allocate], &[Call::Free(0)], &[Call::Free(0), allocate]];
    explore_calls("three threads allocate and free", Some(3), 1, programs);
}

// Frees of another thread's block.

/// One thread allocates a block, tells its address to the others, which free it, and goes on with `then`. Loom does not
/// know that the address is told, so only the lock orders the calls. A thread that finds no address told frees nothing,
/// unless it waits.
fn explore_handing_over(
    what: &str,
    preemptions: Option<usize>,
    others: usize,
    wait: bool,
    then: fn(&Threads, DeviceAddress) -> Option<Result<(), Error>>,
) {
    explore(what, preemptions, move || {
        let shared = Arc::new(Threads::new(core()));
        let told = Arc::new(Uncounted::new(0));
        let others: Vec<_> = (0..others)
            .map(|_| {
                let (shared, told) = (Arc::clone(&shared), Arc::clone(&told));
                spawn(move || {
                    while wait && told.load(Ordering::Relaxed) == 0 {
                        loom::thread::yield_now();
                    }
                    let address = told.load(Ordering::Relaxed);
                    (address != 0).then(|| shared.free(DeviceAddress(address)))
                })
            })
            .collect();
        let address = shared.allocate(SIZE, StreamId::DEFAULT).expect("there is memory");
        told.store(address.get(), Ordering::Relaxed);
        let own = then(&shared, address);
        let answers: Vec<_> = others.into_iter().map(joined).chain([own]).flatten().collect();
        let freed = i64::from(!answers.is_empty());
        assert_freed_once(&answers, address);
        let shared = alone(shared);
        let stats = shared.allocator().stats().entries();
        let frees = stats.iter().find(|(name, _)| name == "allocation.all.freed").map(|(_, value)| *value);
        assert_eq!(frees, Some(freed));
        shared.allocator().check().expect("the heap is valid");
    });
}

/// Checks that one of the frees of a block took effect, and that the others were refused.
fn assert_freed_once(answers: &[Result<(), Error>], address: DeviceAddress) {
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), answers.len().min(1), "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == Ok(()) || *answer == Err(refused_twice(address))), "{answers:?}");
}

#[test]
fn another_thread_frees_a_block() {
    explore_handing_over("another thread frees a block", None, 1, true, |shared, _| {
        shared.allocate(Bytes(3_000), StreamId::DEFAULT).expect("there is memory");
        None
    });
}

#[test]
fn another_thread_and_the_maker_free_a_block() {
    explore_handing_over("another thread and the maker free a block", None, 1, true, |shared, address| {
        Some(shared.free(address))
    });
}

#[test]
fn two_other_threads_free_a_block() {
    explore_handing_over("two other threads free a block", Some(3), 2, false, |_, _| None);
}

// Callbacks.

/// A callback frees a spare block by its address. The other threads free it too.
fn explore_callback(what: &str, preemptions: Option<usize>, others: usize) {
    explore(what, preemptions, move || {
        let shared = Arc::new(Threads::new(core()));
        let spare = shared.allocate(SIZE, StreamId::DEFAULT).expect("there is memory");
        let freed = Arc::new(Mutex::new(Vec::new()));
        let (weak, answers): (Weak<Threads>, _) = (Arc::downgrade(&shared), Arc::clone(&freed));
        let registered = shared.with(|core| {
            core.register_free_memory_callback(move |inside| {
                let from_inside = weak.upgrade().map(|shared| shared.free(spare));
                assert_eq!(from_inside, Some(Err(Error::Reentered)));
                answers.lock().expect("no thread panics").push(inside.free(spare));
                true
            });
        });
        assert_eq!(registered, Ok(()));
        let others: Vec<_> = (0..others)
            .map(|_| {
                let shared = Arc::clone(&shared);
                spawn(move || shared.free(spare))
            })
            .collect();
        // Another stream has no free block, so the callback runs, and the request is not served with the spare block.
        let address = shared.allocate(SIZE, StreamId(1)).expect("there is memory");
        assert_ne!(address, spare);
        let mut answers: Vec<_> = others.into_iter().map(joined).collect();
        answers.append(&mut freed.lock().expect("no thread panics"));
        assert_freed_once(&answers, spare);
        assert_eq!(shared.free(address), Ok(()), "the table has the block, although a callback ran meanwhile");
        assert_blocks(alone(shared).allocator(), 2, 0);
    });
}

#[test]
fn a_callback_and_another_thread_free_a_block() {
    explore_callback("a callback and another thread free a block", None, 1);
}

#[test]
fn a_callback_and_two_other_threads_free_a_block() {
    explore_callback("a callback and two other threads free a block", Some(3), 2);
}
