//! Tests that, since entries name their pools in PyTorch 2.12 and later, private pools that were gone before the end need no
//! guess.

use std::sync::Arc;

use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{Allocation, Allocator, PoolFilter};
use parkade_recording::{Action, DeviceRecording, Entry, PoolTable};
use parkade_replay::{DeviceVerdict, ReplaySettings, VerifyOptions, verify_device};
use parkade_sim::{SimDevice, SimOptions};

const LIMIT_BYTES: u64 = 300 << 20;

/// Numbers from a seed (xorshift).
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most
    }
}

type Core = Allocator<SimDevice, PyTorch, Vec<TraceEntry>>;

/// A program that creates up to four pools at a time, uses them and the default pool on two streams, drops them, and
/// sometimes runs out of memory.
struct Program {
    core: Core,
    draw: Draw,
    live: Vec<Allocation>,
    pools: Vec<PoolId>,
    made: u64,
}

impl Program {
    fn fill(&mut self) {
        let bytes = (1 << (8 + self.draw.below(18))) + self.draw.below(4096);
        let stream = StreamId(self.draw.below(2));
        self.live.extend(self.core.raw_allocate(Bytes(bytes), stream).ok());
    }

    fn step(&mut self) {
        while self.pools.len() < 4 {
            self.made += 1;
            self.pools.push(PoolId(0, self.made));
            self.core.create_pool(PoolId(0, self.made)).expect("a pool");
        }
        let pool = self.pools[self.draw.below(4) as usize];
        self.core.begin_pool(pool, PoolFilter::All).expect("it begins");
        (0..2).for_each(|_| self.fill());
        self.core.end_pool(pool).expect("it ends");
        self.core.release_pool(pool).expect("one use is over");
        self.fill();
        if self.draw.below(6) == 0 {
            let dropped = self.pools.swap_remove(self.draw.below(4) as usize);
            self.core.release_pool(dropped).expect("the other use is over");
            self.core.release_cached_pool(dropped).expect("it gives back");
        }
        while self.live.len() as u64 > 5 + self.draw.below(20) {
            let place = self.draw.below(self.live.len() as u64) as usize;
            self.core.free(self.live.swap_remove(place)).expect("it is in use");
        }
    }
}

/// Returns the recording that 2.13 makes of one of these programs, which drops everything at its end.
fn recorded(seed: u64, settings: &str) -> DeviceRecording {
    let policy = PyTorch::of(&Profile::PYTORCH_2_13, Settings::from_environment(settings).expect("settings"));
    let mut core = Allocator::new(SimDevice::new(SimOptions::h200()), policy, Vec::new());
    core.set_limit(Some(Bytes(LIMIT_BYTES)));
    let mut program = Program { core, draw: Draw(seed), live: Vec::new(), pools: Vec::new(), made: 0 };
    (0..120).for_each(|_| program.step());
    let Program { mut core, live, pools, .. } = program;
    live.into_iter().for_each(|block| core.free(block).expect("it is in use"));
    pools.into_iter().for_each(|pool| core.release_pool(pool).expect("the last use is over"));
    core.release_cached().expect("all goes back");
    written(&mut core)
}

/// Returns the recording of everything that a core has done, without the segments at its end.
fn written(core: &mut Core) -> DeviceRecording {
    let mut named = PoolTable::default();
    let trace = core.observer_mut().drain(..).map(|entry| {
        let action = Action::from_name(entry.action.name().as_bytes()).expect("an action");
        let mut written = Entry::new(action, entry.address, entry.size, entry.stream.get());
        written.pool = named.intern((entry.pool.0, entry.pool.1));
        written
    });
    let trace = trace.collect();
    DeviceRecording { trace, pools: Arc::new(named), ..DeviceRecording::default() }
}

fn verify(recording: &DeviceRecording, settings: &str) -> DeviceVerdict {
    let settings = ReplaySettings { profile: &Profile::PYTORCH_2_13, ..ReplaySettings::given(settings).expect("settings") };
    let options = VerifyOptions { settings, limit_bytes: Some(LIMIT_BYTES), stats_file: None };
    verify_device(recording, &options, &mut |_| ()).expect("a verdict")
}

#[test]
fn pools_that_entries_name_are_not_guessed() {
    let (mut guessed, mut failed) = (0, 0);
    for settings in ["", "expandable_segments:True"] {
        for seed in 1..9 {
            let mut recording = recorded(seed, settings);
            let verdict = verify(&recording, settings);
            assert_eq!((verdict.mismatches, &verdict.first), (0, &None), "{settings} {seed}");
            assert_eq!(verdict.not_in_file.guess, None, "{settings} {seed}");
            failed += verdict.ooms;
            recording.pools = Arc::default();
            let unnamed = verify(&recording, settings);
            guessed += u32::from(unnamed.mismatches > 0 || unnamed.not_in_file.guess.is_some());
        }
    }
    assert!(failed > 0, "requests fail, in pools too");
    assert!(guessed > 8, "without the names there is something to guess: {guessed}");
}

/// The default pool could serve a request that fails in a private pool, which then never has memory.
#[test]
fn a_request_may_fail_in_a_pool_that_never_has_memory() {
    for is_beside_another in [false, true] {
        let policy = PyTorch::of(&Profile::PYTORCH_2_13, Settings::default());
        let mut core = Allocator::new(SimDevice::new(SimOptions::h200()), policy, Vec::new());
        core.set_limit(Some(Bytes(LIMIT_BYTES)));
        let in_pool = |core: &mut Core, number: u64, mib: u64| {
            core.begin_pool(PoolId(0, number), PoolFilter::All).expect("it begins");
            let served = core.raw_allocate(Bytes(mib << 20), StreamId(0));
            core.end_pool(PoolId(0, number)).expect("it ends");
            served.ok()
        };
        let mut live = Vec::from_iter(is_beside_another.then(|| in_pool(&mut core, 7, 20).expect("there is room")));
        for mib in [if is_beside_another { 250 } else { 270 }, 3] {
            live.push(core.raw_allocate(Bytes(mib << 20), StreamId(0)).expect("there is room"));
        }
        assert!(in_pool(&mut core, 1, 15).is_none(), "the default pool has 17 MiB, and the device 10");
        live.into_iter().for_each(|block| core.free(block).expect("it is in use"));
        core.release_pool(PoolId(0, 7)).ok();
        core.release_cached_pool(PoolId(0, 7)).expect("it gives back");
        core.release_cached().expect("all goes back");
        let verdict = verify(&written(&mut core), "");
        assert_eq!((verdict.mismatches, &verdict.first, verdict.ooms), (0, &None, 1), "{is_beside_another}");
    }
}

/// Wrong names explain nothing, so the replay ignores them.
#[test]
fn names_that_are_wrong_are_passed_over() {
    let mut recording = recorded(3, "");
    let table = Arc::make_mut(&mut recording.pools);
    let (default, other) = (table.intern((0, 0)), table.intern((0, 2)));
    for entry in recording.trace.iter_mut().filter(|entry| entry.pool != default) {
        entry.pool = other;
    }
    let with = verify(&recording, "");
    recording.pools = Arc::default();
    let without = verify(&recording, "");
    assert_eq!((with.mismatches, with.first), (without.mismatches, without.first));
}
