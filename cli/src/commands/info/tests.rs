//! `info` on a fake driver.

use parkade_gpu::nvml::{GpuProcess, Nvml, NvmlDevice, NvmlError, NvmlMemory};
use parkade_gpu::{DriverError, Unavailable};

use super::*;
use source::Reading;

const GIB: u64 = 1 << 30;
const REFUSED: NvmlError = NvmlError::Refused { call: "nvmlDeviceGetMemoryInfo", code: 4 };

/// A driver with these devices.
struct Fake(Vec<NvmlDevice>);

impl Nvml for Fake {
    fn driver_version(&self) -> Result<String, NvmlError> {
        Ok("580.95.05".into())
    }

    fn devices(&self) -> Result<Vec<NvmlDevice>, NvmlError> {
        Ok(self.0.clone())
    }
}

/// A device with 3 GiB in use, some of it by these processes.
fn device(index: u32, processes: &[(u32, Option<u64>)]) -> NvmlDevice {
    let process = |&(pid, used_bytes): &(u32, _)| GpuProcess { pid, used_bytes, compute: true, graphics: pid % 2 == 1 };
    let memory = NvmlMemory { total_bytes: 140 * GIB, free_bytes: 136 * GIB, used_bytes: 3 * GIB, reserved_bytes: Some(GIB) };
    NvmlDevice {
        index,
        name: Ok("NVIDIA H200".into()),
        uuid: Ok(format!("GPU-{index}")),
        memory: Ok(memory),
        processes: Ok(processes.iter().map(process).collect()),
    }
}

// Pids that no machine has, so that no name is found.
const BIG: u32 = 4_000_000_000;

fn object(reading: &Reading) -> serde_json::Value {
    serde_json::to_value(json::Object::of(reading)).expect("an object")
}

fn read(devices: Vec<NvmlDevice>) -> Reading {
    Source::Nvml(Box::new(Fake(devices))).read().expect("a reading")
}

fn shown(devices: Vec<NvmlDevice>, look: &Look, mut again: u32) -> String {
    let mut out = Vec::new();
    let pause = |_: &Vec<u8>| {
        again = again.saturating_sub(1);
        again > 0
    };
    look.show(&mut Source::Nvml(Box::new(Fake(devices))), &mut out, pause).expect("shown");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn a_table_shows_devices_processes_and_what_nobody_lists() {
    let text =
        table::text(&read(vec![device(0, &[(BIG, Some(GIB)), (BIG + 1, Some(GIB / 2)), (BIG + 2, None)]), device(1, &[])]));
    let expected = "\
driver 580.95.05
gpu  name              total        free      used  driver's own    listed  unlisted
  0  NVIDIA H200  140.00 GiB  136.00 GiB  3.00 GiB      1.00 GiB  1.50 GiB  1.50 GiB
     pid 4000000000     1.00 GiB  compute  (name unknown)
     pid 4000000001   512.00 MiB  compute and graphics  (name unknown)
     pid 4000000002 bytes unknown  compute  (name unknown)
  1  NVIDIA H200  140.00 GiB  136.00 GiB  3.00 GiB      1.00 GiB   0 bytes  3.00 GiB
     memory is in use but no process is listed: in a container NVML may see none (docker run --pid=host shows them)
used: what the driver has allocated, as nvidia-smi shows it.";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("unlisted: ")), "{text}");
}

#[test]
fn an_idle_device_hides_nothing() {
    let mut idle = device(0, &[]);
    idle.memory =
        Ok(NvmlMemory { total_bytes: 140 * GIB, free_bytes: 139 * GIB, used_bytes: 4 << 20, reserved_bytes: Some(GIB) });
    assert!(!table::text(&read(vec![idle])).contains("no process is listed"));
}

#[test]
fn what_is_refused_is_told_and_the_rest_is_shown() {
    let mut lost = device(0, &[]);
    lost.name = Err(REFUSED);
    lost.memory = Err(REFUSED);
    lost.processes = Err(REFUSED);
    let reading = read(vec![lost, device(1, &[(BIG, Some(GIB))])]);
    let text = table::text(&reading);
    for part in ["name", "memory", "processes"] {
        assert!(text.contains(&format!("     {part} unknown: nvmlDeviceGetMemoryInfo: no permission")), "{text}");
    }
    assert!(text.contains("\n  1  NVIDIA H200  140.00 GiB"), "{text}");
    let object = object(&reading);
    let lost = &object["devices"][0];
    assert!(lost["memory_error"].is_string() && lost["total_bytes"].is_null() && lost["unlisted_bytes"].is_null(), "{lost}");
    assert!(lost["processes_error"].is_string() && lost["processes"].is_null(), "{lost}");
}

#[test]
fn json_has_exact_bytes() {
    let object = object(&read(vec![device(5, &[(BIG, Some(1_234_567_891)), (BIG + 1, None)])]));
    assert_eq!((&object["source"], &object["driver"]), (&"nvml".into(), &"580.95.05".into()));
    let device = &object["devices"][0];
    assert_eq!((&device["index"], &device["uuid"], &device["used_bytes"]), (&5.into(), &"GPU-5".into(), &(3 * GIB).into()));
    assert_eq!(device["listed_bytes"], 1_234_567_891);
    assert_eq!(device["unlisted_bytes"], 3 * GIB - 1_234_567_891);
    assert_eq!(device["driver_reserved_bytes"], GIB);
    assert_eq!((&device["processes"][0]["pid"], &device["processes"][0]["used_bytes"]), (&BIG.into(), &1_234_567_891.into()));
    assert!(device["processes"][1]["used_bytes"].is_null() && device["processes"][1]["graphics"] == true);
}

#[test]
fn memory_that_processes_share_is_not_a_debt() {
    let object = object(&read(vec![device(0, &[(BIG, Some(2 * GIB)), (BIG + 1, Some(u64::MAX - 1))])]));
    assert_eq!(object["devices"][0]["unlisted_bytes"], 0);
}

#[test]
fn a_watch_appends_blocks_draws_in_place_or_writes_lines() {
    let once = shown(vec![device(0, &[])], &Look { json: false, in_place: false }, 0);
    assert_eq!(shown(vec![device(0, &[])], &Look { json: false, in_place: false }, 3), [once.as_str(); 3].join("\n"));
    let drawn = shown(vec![device(0, &[])], &Look { json: false, in_place: true }, 3);
    assert!(drawn.starts_with("\x1b[2J\x1b[Hdriver") && drawn.ends_with("\x1b[K\n\x1b[J"), "{drawn:?}");
    assert_eq!((drawn.matches("\x1b[2J").count(), drawn.matches("\x1b[H").count()), (1, 3));
    let lines = shown(vec![device(0, &[])], &Look { json: true, in_place: false }, 3);
    assert_eq!(lines.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count(), 3);
}

#[test]
fn names_cannot_speak_to_the_terminal() {
    let mut named = device(0, &[]);
    named.name = Ok("a\x1b[31m\nb".into());
    assert!(table::text(&read(vec![named])).contains("a\\u{1b}[31m\\nb"));
}

/// CUDA without NVML, as far as it goes without a GPU: a device that could not be opened is listed with the reason.
#[test]
fn what_the_cuda_driver_tells_is_less() {
    let full = Unavailable::Refused(DriverError { call: "cuDevicePrimaryCtxRetain", code: 2 });
    let no_nvml = NvmlError::NoLibrary { reason: "libnvidia-ml.so.1: not found".into() };
    let reading = Source::Cuda(vec![(3, Err(full))], no_nvml).read().expect("a reading");
    let text = table::text(&reading);
    let expected = "\
driver version unknown: no device could be opened
from the CUDA driver: no NVML (libnvidia-ml.so.1: not found)
gpu
  3
     name unknown: cuDevicePrimaryCtxRetain failed with driver code 2
     memory unknown: cuDevicePrimaryCtxRetain failed with driver code 2
used: everything that is not free, including parkade's own CUDA context.";
    assert!(text.starts_with(expected), "{text}");
    let object = object(&reading);
    assert_eq!((&object["source"], &object["no_nvml"]), (&"cuda".into(), &"no NVML (libnvidia-ml.so.1: not found)".into()));
    let device = &object["devices"][0];
    assert!(
        device["processes"].is_null() && device["processes_error"].is_null() && device["memory_error"].is_string(),
        "{device}"
    );
}

#[test]
fn no_device_is_an_error() {
    let error = Source::Nvml(Box::new(Fake(Vec::new()))).read().expect_err("nothing to show");
    assert_eq!(error.to_string(), "no GPU found: NVML counts none");
}

#[test]
fn seconds_are_positive_and_finite() {
    assert_eq!((interval("2"), interval("0.5")), (Ok(Duration::from_secs(2)), Ok(Duration::from_millis(500))));
    for text in ["0", "-1", "nan", "inf", "1e9", "", "soon"] {
        assert!(interval(text).is_err_and(|error| error.contains("is not a number of seconds")), "{text}");
    }
}
