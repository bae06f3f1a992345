//! Compares the real allocators' answers to random scripts with those of the policies: each placement, region, refusal
//! and release. `conformance/other_allocators/record.py` describes how we recorded them and what the lines mean;
//! `conformance/other_allocators/check.sh` runs any number of scripts on TensorFlow's BFC.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Read as _;

use lzma_rust2::XzReader;
use parkade::policy::Policy;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_policies::named;
use parkade_sim::{LogLevel, SimDevice, SimOptions};

const PAGE: Bytes = Bytes::mib(2);

/// An allocator that answers in the format of the recording.
struct Model {
    core: Allocator<SimDevice, Box<dyn Policy + Send>>,
    live: HashMap<String, Allocation>,
}

impl Model {
    /// Creates a model on a device with this many free bytes, and with a limit that may exceed them.
    fn new(name: &str, limit: u64, device: u64) -> Model {
        let policy = named(name).expect("a policy of the catalogue").make();
        // The real allocators get this limit, regardless of the device's memory.
        let total = Bytes(limit.max(device)).checked_round_up(PAGE).expect("small");
        let options = SimOptions::fake_driver(total).base(Bytes(total.0 - device));
        let mut core = Allocator::new(SimDevice::new(options), policy, ());
        core.set_limit(Some(Bytes(limit)));
        core.device_mut().set_log_level(LogLevel::Events);
        Model { core, live: HashMap::new() }
    }

    /// The driver calls since the last call of this method, one per line.
    fn calls(&mut self) -> String {
        let mut lines = String::new();
        for call in self.core.device_mut().take_log() {
            let text = call.render();
            let words: Vec<&str> = text.trim_matches(['[', ']']).split(',').collect();
            let _ = match words.as_slice() {
                ["\"cudaMalloc\"", "0", bytes, _] => writeln!(lines, "+ {bytes}"),
                ["\"cudaMalloc\"", _, bytes] => writeln!(lines, "! {bytes}"),
                ["\"cudaFree\"", "0", segment] => writeln!(lines, "- {}", segment.trim_matches(['"', 'c'])),
                _ => Ok(()),
            };
        }
        lines
    }

    /// The answer to the request of a line: the driver calls and the line itself.
    fn answer(&mut self, words: &[&str]) -> String {
        let own = match *words {
            ["a", id, bytes, _] => match self.core.allocate(Bytes(bytes.parse().expect("a number")), StreamId(0)) {
                Ok(allocation) => {
                    let place = self.core.device().name_address(allocation.address()).to_string();
                    self.live.insert(id.to_owned(), allocation);
                    format!("a {id} {bytes} {}", place.trim_start_matches('c'))
                }
                Err(AllocError::OutOfMemory(_)) => format!("a {id} {bytes} oom"),
                Err(other) => panic!("{other}"),
            },
            ["f", id] => {
                self.core.free(self.live.remove(id).expect("it was served")).expect("ours");
                format!("f {id}")
            }
            _ => panic!("no request: {words:?}"),
        };
        self.calls() + &own
    }
}

/// Compares the answers of a recording. Returns the numbers of its allocators, driver calls and refused requests.
fn compare(recording: &[u8]) -> [usize; 3] {
    let mut text = String::new();
    XzReader::new(recording, false).read_to_string(&mut text).expect("xz");
    let mut model = None;
    let (mut expected, mut counts) = (String::new(), [0; 3]);
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            [">", policy, limit, device] => {
                let number = |text: &str| text.parse().expect("a number");
                model = Some(Model::new(policy, number(limit), number(device)));
                counts[0] += 1;
            }
            ["+" | "!" | "-", ..] => {
                writeln!(expected, "{line}").expect("a string");
                counts[1] += 1;
            }
            _ => {
                expected += line;
                counts[2] += usize::from(line.ends_with("oom"));
                let model = model.as_mut().expect("a line names the policy");
                let name = model.core.policy().name();
                assert_eq!(model.answer(&words), expected, "line {}, {name}", number + 1);
                expected.clear();
            }
        }
    }
    counts
}

#[test]
fn bfc_decides_as_tensorflow_2_21_0_does() {
    let [allocators, calls, refused] = compare(include_bytes!("data/bfc.xz"));
    assert_eq!((allocators, calls > 1000, refused > 500), (16, true, true));
}
