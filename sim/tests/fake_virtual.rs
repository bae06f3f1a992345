//! Compares the device's virtual memory with the fake driver, which the real PyTorch allocator used with expandable
//! segments: the same calls must produce the same log.
//!
//! The fake driver printed these lines (`oracle-2.11.0 --log=2`, 1 GiB, `expandable_segments:True`). The test turns
//! each line back into a call, for which the device must log the same line. Lines that start with `!` are the script's
//! instructions to the driver.

use std::collections::BTreeMap;

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{LogLevel, SimDevice, SimEvent, SimOptions, SimPhysical};

/// The real allocator's calls in a script with two segments, an emptied cache, a real out-of-memory error, a planned
/// one, and an event.
const LINES: [&str; 52] = [
    r#"["cuMemAddressReserve",0,1207959552,"v0"]"#,
    r#"["cuMemCreate",800,2097152,8]"#,
    r#"["cuMemCreate",0,2097152,"h0",1]"#,
    r#"["cuMemMap",0,"v0+0",2097152,"h0"]"#,
    r#"["cuMemSetAccess",0,"v0+0",2097152,0]"#,
    r#"["cuMemAddressReserve",0,1216348160,"v1"]"#,
    r#"["cuMemCreate",0,20971520,"h1",1]"#,
    r#"["cuMemCreate",0,20971520,"h2",1]"#,
    r#"["cuMemMap",0,"v1+0",20971520,"h1"]"#,
    r#"["cuMemMap",0,"v1+20971520",20971520,"h2"]"#,
    r#"["cuMemSetAccess",0,"v1+0",41943040,0]"#,
    r#"["cudaStreamSynchronize",0,0]"#,
    r#"["cuMemUnmap",0,"v1+0",20971520]"#,
    r#"["cuMemRelease",0,"h1"]"#,
    "!external 1000000000",
    r#"["cuMemAddressReserve",0,1216348160,"v2"]"#,
    r#"["cuMemCreate",0,20971520,"h3",1]"#,
    r#"["cuMemCreate",0,20971520,"h4",1]"#,
    r#"["cuMemCreate",2,20971520]"#,
    r#"["cuMemRelease",0,"h3"]"#,
    r#"["cuMemRelease",0,"h4"]"#,
    r#"["cuMemCreate",0,20971520,"h5",1]"#,
    r#"["cuMemCreate",0,20971520,"h6",1]"#,
    r#"["cuMemCreate",2,20971520]"#,
    r#"["cuMemRelease",0,"h5"]"#,
    r#"["cuMemRelease",0,"h6"]"#,
    r#"["cudaMemGetInfo",0,50673152,1073741824]"#,
    "!external 0",
    r#"["cudaStreamSynchronize",0,0]"#,
    r#"["cuMemUnmap",0,"v1+20971520",20971520]"#,
    r#"["cuMemRelease",0,"h2"]"#,
    r#"["cuMemAddressFree",0,"v1",1216348160]"#,
    r#"["cudaStreamSynchronize",0,0]"#,
    r#"["cuMemUnmap",0,"v0+0",2097152]"#,
    r#"["cuMemRelease",0,"h0"]"#,
    r#"["cuMemAddressFree",0,"v0",1207959552]"#,
    "!fail_next 2",
    r#"["cuMemCreate",2,20971520]"#,
    r#"["cuMemCreate",2,20971520]"#,
    r#"["cudaMemGetInfo",0,1073741824,1073741824]"#,
    r#"["cuMemAddressReserve",0,1207959552,"v3"]"#,
    r#"["cuMemCreate",0,2097152,"h7",1]"#,
    r#"["cuMemMap",0,"v3+0",2097152,"h7"]"#,
    r#"["cuMemSetAccess",0,"v3+0",2097152,0]"#,
    r#"["cudaEventCreate",0,0,2]"#,
    r#"["cudaEventRecord",0,0,8192]"#,
    r#"["cudaEventSynchronize",0,0]"#,
    r#"["cudaStreamSynchronize",0,4096]"#,
    r#"["cuMemUnmap",0,"v3+0",2097152]"#,
    r#"["cuMemRelease",0,"h7"]"#,
    r#"["cuMemAddressFree",0,"v3",1207959552]"#,
    r#"["cudaMemGetInfo",0,1073741824,1073741824]"#,
];

/// A device, and the objects to which the names in the lines refer.
struct Replay {
    device: SimDevice,
    ranges: BTreeMap<String, DeviceAddress>,
    handles: BTreeMap<String, SimPhysical>,
    events: BTreeMap<String, SimEvent>,
}

impl Replay {
    fn new() -> Self {
        let mut device = SimDevice::new(SimOptions::fake_driver(Bytes::mib(1024)));
        device.set_log_level(LogLevel::Events);
        Replay { device, ranges: BTreeMap::new(), handles: BTreeMap::new(), events: BTreeMap::new() }
    }

    fn address(&self, name: &str) -> DeviceAddress {
        let (range, offset) = name.split_once('+').unwrap_or((name, "0"));
        self.ranges[range].offset(bytes(offset))
    }

    fn steer(&mut self, words: &[&str]) {
        let device = &mut self.device;
        match (words[0], bytes(words.get(1).unwrap_or(&"0")).get()) {
            ("fail_next", calls) => device.fail_next(calls),
            ("external", bytes) => device.set_external_bytes(Bytes(bytes)),
            ("capacity", bytes) => device.set_capacity(Bytes(bytes)),
            ("complete", _) if words[1] == "all" => device.complete_all(),
            ("complete", stream) => device.complete(StreamId(stream * 0x1000)),
            ("complete_one", stream) => drop(device.complete_one(StreamId(stream * 0x1000))),
            _ => panic!("{words:?}"),
        }
    }

    /// Makes the call in a line. The device decides whether it fails.
    fn call(&mut self, words: &[&str]) {
        let argument = |index: usize| words.get(index + 2).copied().unwrap_or("");
        let new_name = argument(1).to_owned();
        match words[0] {
            "cuMemAddressReserve" => {
                let address = self.device.reserve(bytes(argument(0))).unwrap();
                self.ranges.insert(new_name, address);
            }
            "cuMemAddressFree" => self.device.unreserve(self.address(argument(0)), bytes(argument(1))).unwrap(),
            "cuMemCreate" => {
                if let Ok(memory) = self.device.create(bytes(argument(0))) {
                    self.handles.insert(format!("h{}", memory.ordinal()), memory);
                }
            }
            "cuMemMap" => {
                let memory = &self.handles[argument(2)];
                self.device.map(self.address(argument(0)), bytes(argument(1)), &memory.clone()).unwrap();
            }
            "cuMemSetAccess" => self.device.set_access(self.address(argument(0)), bytes(argument(1))).unwrap(),
            "cuMemUnmap" => self.device.unmap(self.address(argument(0)), bytes(argument(1))).unwrap(),
            "cuMemRelease" => self.device.release(self.handles.remove(argument(0)).unwrap()).unwrap(),
            "cudaMalloc" => {
                if let Ok(address) = self.device.malloc(bytes(argument(0))) {
                    self.ranges.insert(new_name, address);
                }
            }
            "cudaFree" => self.device.free(self.address(argument(0))).unwrap(),
            "cudaMemGetInfo" => drop(self.device.memory_info().unwrap()),
            "cudaStreamSynchronize" => self.device.synchronize_stream(StreamId(bytes(argument(0)).get())).unwrap(),
            "cudaDeviceSynchronize" => self.device.synchronize(),
            _ => self.call_event(words[0], argument(0), argument(1)),
        }
    }

    fn call_event(&mut self, name: &str, event: &str, argument: &str) {
        match name {
            "cudaEventCreate" => drop(self.events.insert(event.to_owned(), self.device.create_event().unwrap())),
            "cudaEventRecord" => {
                let stream = StreamId(bytes(argument).get());
                self.device.record_event(self.events.get_mut(event).unwrap(), stream).unwrap();
            }
            "cudaEventQuery" => drop(self.device.is_complete(&self.events[event]).unwrap()),
            "cudaEventSynchronize" => self.device.wait(&self.events[event]).unwrap(),
            "cudaEventDestroy" => self.device.destroy_event(self.events.remove(event).unwrap()),
            _ => panic!("{name}"),
        }
    }

    /// Makes all calls. Every line that the device logs must equal the next expected one. Returns the number of lines
    /// compared.
    fn run<'a>(&mut self, lines: impl Iterator<Item = &'a str>) -> u64 {
        let mut expected = lines.enumerate().peekable();
        let mut compared = 0;
        while let Some((number, line)) = expected.next() {
            if let Some(steering) = line.strip_prefix('!') {
                self.steer(&steering.split(' ').collect::<Vec<_>>());
                continue;
            }
            let text = line.replace(['[', ']', '"'], "");
            self.call(&text.split(',').collect::<Vec<_>>());
            let mut line = line;
            for (index, call) in self.device.take_log().iter().enumerate() {
                if index > 0 {
                    // The first cuMemCreate logs two lines.
                    line = expected.next().expect("one more line").1;
                }
                assert_eq!(call.render(), line, "line {number}");
                compared += 1;
            }
        }
        compared
    }
}

fn bytes(word: &str) -> Bytes {
    Bytes(word.parse().unwrap_or(0))
}

#[test]
fn the_real_allocators_calls_give_the_same_log() {
    let mut replay = Replay::new();
    let compared = replay.run(LINES.into_iter());
    assert_eq!(compared, LINES.iter().filter(|line| !line.starts_with('!')).count() as u64);
    assert_eq!(replay.device.used_bytes(), Bytes::ZERO);
}
