//! Target `capi`: sequences of calls of the C interface on a simulated device, correct and wrong ones.
//!
//! The program keeps its own list of blocks. The interface must agree with it after every call: about which addresses are
//! blocks, in the statistics and in the snapshot.

mod heap;

use std::collections::BTreeMap;

use parkade::profile::RELEASES;
use parkade_capi::parkade_status::{self, *};
use parkade_capi::{parkade_pool, parkade_request, parkade_snapshot_block};

use crate::choices::Choices;
use crate::texts;
use heap::{Address, Checkpoint, Heap, Options};

/// The most calls of a program.
const MOST_CALLS: usize = 120;

const STREAMS: [u64; 4] = [0, 0x1000, 0x3000, u64::MAX];

/// Two pools of users, one of a graph, and the default pool.
const POOLS: [parkade_pool; 4] = [id(0, 1), id(7, 0), id(0, 2), id(0, 0)];

const fn id(first: u64, second: u64) -> parkade_pool {
    parkade_pool { first, second }
}

/// Makes the calls that the bytes choose. Returns whether an allocator was created.
///
/// # Panics
/// If an answer contradicts the list of blocks, or if the library reports a defect.
pub fn run(data: &[u8]) -> bool {
    let mut choices = Choices::new(data);
    let settings = texts::settings(&mut choices);
    let (has_policy, has_settings) = (choices.once_in(3), choices.once_in(3));
    let options = Options {
        bytes: choices.pick(&[1 << 30, 64 << 20, 130 << 20, 2 << 20, 1, 80 << 30]),
        flags: choices.pick(&[0, 0, 0, 0, 0, 1, 2, 4, 6, 8, 12, 16]),
        policy: has_policy.then(|| choices.below(48)),
        settings: if has_settings { &settings } else { "" },
        release: if choices.once_in(8) { "1.2.3" } else { RELEASES[choices.below(RELEASES.len())].name },
        most_rescues: choices.below(3) as u64,
    };
    let heap = match Heap::create(&options) {
        Ok(heap) => heap,
        Err(status) => {
            expect(status, &[PARKADE_INVALID_ARGUMENT, PARKADE_INVALID_SETTINGS]);
            return false;
        }
    };
    refuse_null(&mut choices);
    let mut program = Program { heap, live: BTreeMap::new(), checkpoints: Vec::new(), choices };
    for _ in 0..MOST_CALLS {
        if program.choices.is_used_up() {
            break;
        }
        program.call();
    }
    program.finish();
    true
}

/// Checks that a failure has a text, and one of these codes. Any call may fail because of an internal assert of PyTorch, or
/// because the driver refuses the odd sizes that follow from an odd `large_segment_size_mb`.
fn expect(status: parkade_status, codes: &[parkade_status]) {
    let text = heap::error_text();
    let is_known = text.contains("INTERNAL ASSERT FAILED") || text.ends_with("failed with driver code 1");
    let is_expected = codes.contains(&status) || status == PARKADE_DEVICE_ERROR && is_known;
    assert!(is_expected, "{status:?} is none of {codes:?}: {text}");
    assert!(!text.is_empty(), "{status:?} has no text");
}

/// Checks that functions refuse the null pointer.
fn refuse_null(choices: &mut Choices<'_>) {
    let null = Heap::NULL;
    let request = parkade_request { bytes: choices.size(), stream: 0, flags: 0, pool: POOLS[0] };
    let refused = match choices.below(12) {
        0 => null.allocate(1, 0).map(drop),
        1 => null.serve(&request, Some(512)).map(drop),
        2 => null.free(512),
        3 => null.free_so(512, 0),
        4 => null.record_stream(512, 0, 0),
        5 => null.block(512).map(drop),
        6 => null.empty_cache(None, 0),
        7 => null.apply(""),
        8 => null.begin_pool(POOLS[0], 0, 0),
        9 => null.save(POOLS[0]).map(drop),
        10 => null.stats().map(drop),
        _ => null.snapshot(None).map(drop),
    };
    assert_eq!(refused, Err(PARKADE_INVALID_ARGUMENT));
}

/// The allocator with what the program knows about it.
struct Program<'b> {
    heap: Heap,
    /// The blocks that the program has, with their sizes.
    live: BTreeMap<Address, u64>,
    checkpoints: Vec<Checkpoint>,
    choices: Choices<'b>,
}

impl Program<'_> {
    /// Makes one call, and checks the answer.
    fn call(&mut self) {
        match self.choices.below(32) {
            0..=8 => self.allocate(),
            9..=13 => self.free(),
            14 | 15 => self.record(),
            16 => self.look(),
            17 => {
                let (pool, flags) = (self.pool(), self.flags());
                let pool = self.choices.once_in(2).then_some(&pool);
                self.allowed(self.heap.empty_cache(pool, flags), &[PARKADE_POOL_ERROR, PARKADE_INVALID_ARGUMENT]);
            }
            18 => {
                let fraction = self.choices.pick(&[0.0, 0.1, 0.5, 1.0, 1.0, 1.5, -1.0, 1e-300, f64::NAN, f64::INFINITY]);
                self.allowed(self.heap.set_fraction(fraction), &[PARKADE_INVALID_ARGUMENT]);
            }
            19 => {
                let bytes = if self.choices.once_in(2) { 0 } else { self.choices.size() };
                self.allowed(self.heap.set_limit(bytes), &[]);
            }
            20 => {
                let text = texts::settings(&mut self.choices);
                self.allowed(self.heap.apply(&text), &[PARKADE_INVALID_SETTINGS, PARKADE_UNSUPPORTED]);
            }
            21 => self.change_settings(),
            22..=27 => self.use_pool(),
            28 => self.save(),
            29 => self.restore(),
            30 => self.give_up(),
            _ => self.read(),
        }
        self.freed_by_callbacks();
        let stats = self.heap.stats().expect("statistics");
        assert_eq!(stats.allocation.all.current, self.live.len() as i64, "the number of allocations");
        assert_eq!(stats.allocated_bytes.all.current, self.live.values().sum::<u64>() as i64, "the allocated bytes");
    }

    /// Returns the answer; a failure must have one of these codes.
    fn allowed<T>(&self, answer: Result<T, parkade_status>, codes: &[parkade_status]) -> Option<T> {
        answer.map_err(|status| expect(status, codes)).ok()
    }

    fn pool(&mut self) -> parkade_pool {
        self.choices.pick(&POOLS)
    }

    fn stream(&mut self) -> u64 {
        self.choices.pick(&STREAMS)
    }

    /// Returns `PARKADE_CAPTURING` or 0, rarely other flags.
    fn flags(&mut self) -> u32 {
        self.choices.pick(&[0, 0, 0, 0, 0, 2, 2, 1])
    }

    /// Returns a block, rarely an address that may not be one.
    fn address(&mut self) -> Address {
        let any = self.live.keys().nth(self.choices.below(self.live.len().max(1))).copied();
        match self.choices.below(16) {
            0 => self.choices.address(),
            1 => any.map_or(0, |address| address + 512),
            _ => any.unwrap_or(512),
        }
    }

    fn allocate(&mut self) {
        let (bytes, stream) = (self.choices.size(), self.stream());
        let (answer, at) = match self.choices.below(8) {
            0..=4 => (self.heap.allocate(bytes, stream), None),
            kind => {
                let flags = if self.choices.once_in(16) { 8 } else { self.choices.below(8) as u32 };
                let request = parkade_request { bytes, stream, flags, pool: self.pool() };
                let at = (kind == 7).then(|| self.choices.address());
                (self.heap.serve(&request, at), at)
            }
        };
        self.freed_by_callbacks();
        let codes = [PARKADE_OUT_OF_MEMORY, PARKADE_POOL_ERROR, PARKADE_INVALID_ARGUMENT];
        match self.allowed(answer, &codes) {
            Some(0) => assert!(bytes == 0 || at.is_some(), "no address for {bytes} bytes"),
            Some(address) => {
                assert!(at.is_none_or(|at| at == address), "{address:#x} is not the address of the request");
                let requested = self.hold(address);
                assert_eq!(requested, bytes, "the requested bytes");
            }
            None => {}
        }
    }

    /// Adds a block that was handed out. Returns its requested bytes.
    fn hold(&mut self, address: Address) -> u64 {
        let info = self.heap.block(address).expect("a block that was handed out");
        let (end, segment_end) = (address + info.size, info.segment + info.segment_size);
        assert!(info.size >= info.requested, "{info:?} at {address:#x}");
        assert!(info.segment <= address && end <= segment_end, "{info:?} at {address:#x} is not in its segment");
        let before = self.live.range(..end).next_back();
        assert!(before.is_none_or(|(other, size)| other + size <= address), "{address:#x} is in the block {before:x?}");
        self.live.insert(address, info.size);
        info.requested
    }

    fn free(&mut self) {
        let address = self.address();
        let flags = self.choices.once_in(4).then(|| self.flags());
        let is_invalid = flags.is_some_and(|flags| flags & !2 != 0);
        let answer = match flags {
            None => self.heap.free(address),
            Some(flags) => self.heap.free_so(address, flags),
        };
        let expected = match self.live.contains_key(&address) {
            _ if is_invalid => Err(PARKADE_INVALID_ARGUMENT),
            is_live if is_live || address == 0 => Ok(()),
            _ => Err(PARKADE_UNKNOWN_ADDRESS),
        };
        assert_eq!(answer, expected, "free of {address:#x}");
        if answer.is_ok() {
            self.live.remove(&address);
        }
    }

    fn record(&mut self) {
        let (address, stream, flags) = (self.address(), self.stream(), self.flags());
        let device = self.choices.once_in(4).then(|| self.choices.below(2) as u32);
        let answer = match device {
            None => self.heap.record_stream(address, stream, flags),
            Some(device) => self.heap.record_stream_of(address, device, stream, flags),
        };
        match answer {
            Ok(()) => assert!(self.live.contains_key(&address), "{address:#x} is no block"),
            Err(PARKADE_UNKNOWN_ADDRESS) => assert!(!self.live.contains_key(&address), "{address:#x} is a block"),
            Err(PARKADE_UNSUPPORTED) => assert_eq!(device, Some(1)),
            Err(status) => expect(status, &[PARKADE_INVALID_ARGUMENT]),
        }
    }

    fn look(&mut self) {
        let address = self.address();
        let found = self.allowed(self.heap.block(address), &[PARKADE_UNKNOWN_ADDRESS]);
        assert_eq!(found.map(|info| info.size), self.live.get(&address).copied(), "the block {address:#x}");
    }

    fn change_settings(&mut self) {
        let (size, which) = (self.choices.size(), self.choices.below(8));
        let answer = self.heap.set_settings(|settings| match which {
            0 => settings.max_split_bytes = size,
            1 => settings.max_non_split_rounding_bytes = size,
            2 => settings.large_segment_bytes = size,
            3 => settings.garbage_collection_threshold = size as f64 / (1_u64 << 32) as f64,
            4 => settings.roundup_power2_divisions[(size % 16) as usize] = size,
            5 => settings.expandable_segments = !settings.expandable_segments,
            6 => settings.graph_capture_record_stream_reuse = !settings.graph_capture_record_stream_reuse,
            _ => settings.throw_on_cudamalloc_oom = !settings.throw_on_cudamalloc_oom,
        });
        self.allowed(answer, &[PARKADE_INVALID_SETTINGS, PARKADE_UNSUPPORTED]);
    }

    fn use_pool(&mut self) {
        let (pool, stream) = (self.pool(), self.stream());
        let heap = &self.heap;
        let answer = match self.choices.below(12) {
            0 => heap.create_pool(pool),
            1..=3 => heap.begin_pool(pool, self.choices.below(4) as i32, stream),
            4 | 5 => heap.end_pool(pool),
            6 | 7 => heap.release_pool(pool),
            8 => heap.uses(pool).map(drop),
            9 => heap.set_use_on_oom(pool, stream == 0),
            10 => heap.set_no_split(pool),
            _ => heap.set_memory(pool, stream == 0),
        };
        self.allowed(answer, &[PARKADE_POOL_ERROR, PARKADE_INVALID_ARGUMENT]);
    }

    fn save(&mut self) {
        let pool = self.pool();
        let saved = self.heap.save(pool);
        self.checkpoints.extend(self.allowed(saved, &[PARKADE_CHECKPOINT_ERROR]));
    }

    fn restore(&mut self) {
        let Some(place) = self.choices.place(self.checkpoints.len()) else { return };
        let restored = self.heap.restore(&self.checkpoints[place]);
        if let Some((freed, allocated)) = self.allowed(restored, &[PARKADE_CHECKPOINT_ERROR]) {
            for address in freed {
                assert!(self.live.remove(&address).is_some(), "{address:#x} was taken back and is no block");
            }
            for address in allocated {
                self.hold(address);
            }
        } else {
            // The device may have failed after the pool's blocks were taken back.
            let blocks = self.snapshot();
            self.live.retain(|address, _| blocks.contains_key(address));
        }
    }

    /// Lets a callback free a block, which may happen in any later request.
    fn give_up(&mut self) {
        let address = self.address();
        heap::give_up(address);
        if self.choices.once_in(4) {
            self.allowed(self.heap.add_callback(), &[]);
        }
    }

    fn freed_by_callbacks(&mut self) {
        for address in heap::freed_by_callbacks() {
            self.live.remove(&address);
        }
    }

    /// Calls the functions that read.
    fn read(&mut self) {
        let address = self.address();
        let pool = self.pool();
        match self.choices.below(8) {
            0 => self.check(),
            1 => {
                let live: Vec<Address> = self.live.keys().take(self.choices.below(4)).copied().collect();
                self.allowed(self.heap.live_are(pool, &live), &[PARKADE_CHECKPOINT_ERROR]);
            }
            2 => drop(self.allowed(self.heap.snapshot(Some(&pool)), &[PARKADE_POOL_ERROR])),
            3 => {
                let (free, total) = self.heap.memory_info().expect("memory information");
                assert!(free <= total);
                self.heap.largest_free_block().expect("a size");
            }
            4 => {
                self.heap.record_history(self.choices.below(4) * 5).expect("a history");
                self.heap.observe(self.choices.once_in(2)).expect("an observer");
            }
            5 => self.heap.read_all().expect("statistics of pools, segments and the history"),
            6 => self.heap.reset_stats(self.choices.once_in(2)).expect("statistics"),
            _ => {
                let codes = [PARKADE_UNSUPPORTED, PARKADE_UNKNOWN_ADDRESS, PARKADE_INVALID_ARGUMENT];
                self.allowed(self.heap.share(address), &codes);
            }
        }
    }

    /// Returns the allocated blocks in the snapshot, with their sizes.
    fn snapshot(&self) -> BTreeMap<Address, u64> {
        let (segments, blocks) = self.heap.snapshot(None).expect("a snapshot");
        let reserved = self.heap.stats().expect("statistics").reserved_bytes.all.current;
        assert_eq!(segments.iter().map(|segment| segment.total).sum::<u64>() as i64, reserved, "the reserved bytes");
        let allocated = blocks.iter().filter(|block| block.is_allocated);
        allocated.map(|block: &parkade_snapshot_block| (block.address, block.size)).collect()
    }

    /// Checks that the snapshot has exactly the program's blocks.
    fn check(&self) {
        assert_eq!(self.snapshot(), self.live, "the blocks in the snapshot");
        let unknown = self.live.keys().find(|address| self.heap.block(**address).is_err());
        assert_eq!(unknown, None, "the interface does not know a block");
    }

    /// Destroys the allocator, which must give back all memory.
    fn finish(self) {
        self.check();
        drop(self.checkpoints);
        drop(self.heap);
        assert_eq!(heap::lent(), (0, 0), "ranges that were not given back, or given back wrongly");
    }
}
