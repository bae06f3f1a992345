//! `parkade info`: the memory of every GPU and the processes that hold it, as reported by NVML, or by the CUDA driver if there
//! is no NVML.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use parkade::device::DeviceBackend;
use parkade_gpu::nvml::{GpuProcess, Nvml, NvmlDevice, NvmlError, NvmlLibrary, NvmlMemory};
use parkade_gpu::{CudaDevice, Unavailable};

use crate::terminal::answer::Answer;
use crate::terminal::args::{Json, interval};
use crate::terminal::json_struct::{Word, all, sections, view};
use crate::terminal::output;
use crate::terminal::output::Width;
use crate::terminal::runner::{Command, Form, Lines};
use crate::terminal::size::show_bytes;
use crate::terminal::table::Table;

/// The default number of seconds between two readings.
const EVERY_SECOND: &str = "1";

/// Show every GPU with its memory and the processes that hold it.
///
/// The figures come from NVML, the driver's management library; without it, they come from the CUDA driver, which lists no
/// processes and takes a context's memory (about 500 MiB on each device) while the command runs. Exit code: 0, or 2 if neither
/// is present.
///
/// "used" is what the driver has allocated, as nvidia-smi shows it. It exceeds an allocator's "reserved"
/// (torch.cuda.memory_reserved) by the process's CUDA context and libraries' own memory. "listed" is what the listed processes hold of
/// it, "unlisted" the difference.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade info
  parkade info --watch               again every second, until Ctrl-C
  parkade info --watch 10 --json >> memory.jsonl")]
pub(crate) struct Args {
    /// Repeat after this many seconds until interrupted: in place on a terminal, elsewhere one block after another.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = EVERY_SECOND, value_parser = interval,
          allow_hyphen_values = true)]
    watch: Option<Duration>,
    #[command(flatten)]
    json: Json,
}

impl Command for Args {
    type Found = ();

    /// Prints each reading at once.
    fn compute(&self) -> Result<()> {
        let in_place = self.watch.is_some() && io::stdout().is_terminal() && !self.json.json;
        let look = Look { json: self.json.json, in_place };
        look.show(&mut Source::open()?, &mut output::stdout(), |out| {
            // Until interrupted, or until nobody reads.
            self.watch.filter(|_| !out.get_ref().is_unread()).map(std::thread::sleep).is_some()
        })
    }

    fn form(&self) -> Form {
        self.json.form()
    }
}

/// How readings are shown.
struct Look {
    json: bool,
    in_place: bool,
}

impl Look {
    /// Reads and shows the memory, and repeats this as long as `pause` returns true.
    fn show<W: Write>(&self, source: &mut Source, out: &mut W, mut pause: impl FnMut(&W) -> bool) -> Result<()> {
        let mut is_first = true;
        loop {
            let reading = source.read()?;
            if self.json {
                let mut lines = Lines::default();
                lines.add(&Object::of(&reading))?;
                write!(out, "{}", lines.text())?;
            } else if self.in_place {
                // Overwrites the previous text line by line, because clearing it first would flicker. An interruption leaves
                // nothing to undo.
                let clear = if is_first { "\x1b[2J" } else { "" };
                let text = text(&reading, Width::of_output()).replace('\n', "\x1b[K\n");
                write!(out, "{clear}\x1b[H{text}\x1b[J")?;
            } else {
                write!(out, "{}{}", if is_first { "" } else { "\n" }, text(&reading, Width::of_output()))?;
            }
            out.flush()?;
            is_first = false;
            if !pause(out) {
                return Ok(());
            }
        }
    }
}

/// An open source.
enum Source {
    Nvml(Box<dyn Nvml>),
    /// Every device, and why NVML is not used.
    Cuda(Vec<CudaSlot>, NvmlError),
}

/// A CUDA device by its index, opened if possible.
type CudaSlot = (u32, Result<CudaDevice, Unavailable>);

/// One reading.
#[derive(Debug)]
struct Reading {
    /// The driver's version, or from CUDA the newest version it supports.
    driver: Result<String, String>,
    devices: Vec<Device>,
    /// Why NVML was not used, if it was not.
    no_nvml: Option<String>,
}

/// One device. Errors are texts.
#[derive(Debug)]
struct Device {
    index: u32,
    name: Result<String, String>,
    uuid: Option<String>,
    memory: Result<NvmlMemory, String>,
    /// `None` where nothing lists processes.
    processes: Option<Result<Vec<Process>, String>>,
}

/// A process, with its name if it can be known.
#[derive(Debug)]
struct Process {
    listed: GpuProcess,
    name: Option<String>,
}

impl Device {
    /// The memory of the listed processes, as far as it is known.
    fn listed_bytes(&self) -> Option<u64> {
        let processes = self.processes.as_ref()?.as_ref().ok()?;
        Some(processes.iter().filter_map(|process| process.listed.used_bytes).fold(0, u64::saturating_add))
    }

    /// The used memory beyond that; 0 if processes count shared memory twice.
    fn unlisted_bytes(&self) -> Option<u64> {
        Some(self.memory.as_ref().ok()?.used_bytes.saturating_sub(self.listed_bytes()?))
    }

    /// Whether processes that are not listed hold memory.
    fn hides_processes(&self) -> bool {
        /// An idle driver uses less.
        const IDLE_BYTES: u64 = 64 << 20;
        let lists_none = matches!(&self.processes, Some(Ok(processes)) if processes.is_empty());
        lists_none && self.unlisted_bytes() > Some(IDLE_BYTES)
    }
}

impl Source {
    /// Opens the best source available.
    fn open() -> Result<Source> {
        let no_nvml = match NvmlLibrary::open() {
            Ok(nvml) => return Ok(Source::Nvml(Box::new(nvml))),
            Err(error) => error,
        };
        match cuda_devices() {
            Ok(devices) => Ok(Source::Cuda(devices, no_nvml)),
            Err(error) => bail!("no GPU found: {no_nvml}; {error}"),
        }
    }

    fn read(&mut self) -> Result<Reading> {
        match self {
            Source::Nvml(nvml) => {
                let devices = nvml.devices()?;
                ensure!(!devices.is_empty(), "no GPU found: NVML lists none");
                let driver = nvml.driver_version().map_err(|error| error.to_string());
                Ok(Reading { driver, devices: devices.into_iter().map(device).collect(), no_nvml: None })
            }
            Source::Cuda(devices, no_nvml) => {
                let opened = devices.iter().find_map(|(_, device)| device.as_ref().ok());
                let version = opened.map(|device| device.driver_version().map_err(|error| error.to_string()));
                let version = version.unwrap_or_else(|| Err(String::from("no device could be opened")));
                Ok(Reading {
                    driver: version.map(|(major, minor)| format!("for CUDA {major}.{minor}")),
                    devices: devices.iter_mut().map(cuda_device).collect(),
                    no_nvml: Some(no_nvml.to_string()),
                })
            }
        }
    }
}

fn device(told: NvmlDevice) -> Device {
    let named = |listed: GpuProcess| Process { listed, name: process_name(listed.pid) };
    let processes = told.processes.map(|processes| processes.into_iter().map(named).collect());
    Device {
        index: told.index,
        name: told.name.map_err(|error| error.to_string()),
        uuid: told.uuid.ok(),
        memory: told.memory.map_err(|error| error.to_string()),
        processes: Some(processes.map_err(|error| error.to_string())),
    }
}

#[cfg(target_os = "linux")]
fn process_name(pid: u32) -> Option<String> {
    crate::commands::kill::name_of(pid)
}

#[cfg(not(target_os = "linux"))]
fn process_name(_: u32) -> Option<String> {
    None
}

/// All CUDA devices, or why there are none. One that cannot be opened (full, or exclusive to another process) does not hide the
/// others.
fn cuda_devices() -> Result<Vec<CudaSlot>, Unavailable> {
    match CudaDevice::open(u32::MAX) {
        Err(Unavailable::NoDevice { count, .. }) if count > 0 => {
            Ok((0..count).map(|ordinal| (ordinal, CudaDevice::open(ordinal))).collect())
        }
        Err(Unavailable::NoDevice { count, .. }) => Err(Unavailable::NoDevice { ordinal: 0, count }),
        Err(error) => Err(error),
        // No machine has that many.
        Ok(device) => Ok(vec![(u32::MAX, Ok(device))]),
    }
}

/// The device, as far as it could be opened.
fn cuda_device((index, slot): &mut CudaSlot) -> Device {
    let device = match slot {
        Ok(device) => device,
        Err(error) => {
            let refusal = error.to_string();
            return Device { index: *index, name: Err(refusal.clone()), uuid: None, memory: Err(refusal), processes: None };
        }
    };
    let memory = device.memory_info().map(|memory| {
        let (total_bytes, free_bytes) = (memory.total.get(), memory.free.get());
        NvmlMemory { total_bytes, free_bytes, used_bytes: total_bytes.saturating_sub(free_bytes), reserved_bytes: None }
    });
    Device {
        index: *index,
        name: device.name().map_err(|error| error.to_string()),
        uuid: None,
        memory: memory.map_err(|error| error.to_string()),
        processes: None,
    }
}

const HEADS: [&str; 8] = ["gpu", "name", "total", "free", "used", "driver's own", "listed", "unlisted"];
/// The column of text; the others are numbers.
const NAME: usize = 1;

const USED: &str = "used: what the driver has allocated, as nvidia-smi shows it. It includes each process's CUDA context (about 500 MiB), so \
                    it exceeds an allocator's reserved memory.";
const UNLISTED: &str =
    "unlisted: used memory that no listed process holds: the driver's own, and that of processes it does not list.";
const HIDDEN: &str =
    "memory is in use but no process is listed: in a container NVML may see none (docker run --pid=host shows them)";
const BY_CUDA: &str =
    "used: everything that is not free, including parkade's own CUDA context. Only NVML shows what each process holds.";

fn text(reading: &Reading, width: impl Into<Width>) -> String {
    answer(reading).text(width)
}

/// The devices in a table, then what each of them lacks or who holds its memory.
fn answer(reading: &Reading) -> Answer {
    let mut answer = Answer::new();
    answer.paragraph(match &reading.driver {
        Ok(version) => format!("driver {version}"),
        Err(refusal) => format!("driver version unknown: {refusal}"),
    });
    answer.paragraphs(reading.no_nvml.as_ref().map(|reason| format!("these figures come from the CUDA driver: {reason}")));
    let rows: Vec<[String; 8]> = reading.devices.iter().map(row).collect();
    let shown: Vec<usize> = (0..HEADS.len()).filter(|&column| rows.iter().any(|row| !row[column].is_empty())).collect();
    let columns = |cells: &[String; HEADS.len()]| shown.iter().map(|&column| cells[column].clone()).collect::<Vec<_>>();
    let name = shown.iter().position(|&column| column == NAME);
    let mut table = Table::plain(0, columns(&HEADS.map(String::from))).with_left(name);
    for row in &rows {
        table.row(columns(row));
    }
    answer.table(table);
    for device in &reading.devices {
        let details = details(device);
        if !details.is_empty() && reading.devices.len() > 1 {
            answer.paragraph(format!("gpu {}", device.index));
        }
        details.into_iter().for_each(|detail| answer.indented(2, detail));
    }
    answer.paragraphs(if reading.no_nvml.is_some() { vec![BY_CUDA] } else { vec![USED, UNLISTED] });
    answer
}

/// The cells of a device; unknown ones are empty.
fn row(device: &Device) -> [String; 8] {
    let size = |bytes: Option<u64>| bytes.map_or_else(String::new, show_bytes);
    let memory = device.memory.as_ref().ok();
    [
        device.index.to_string(),
        output::one_line(device.name.as_deref().unwrap_or("")),
        size(memory.map(|memory| memory.total_bytes)),
        size(memory.map(|memory| memory.free_bytes)),
        size(memory.map(|memory| memory.used_bytes)),
        size(memory.and_then(|memory| memory.reserved_bytes)),
        size(device.listed_bytes()),
        size(device.unlisted_bytes()),
    ]
}

/// The lines below a device: refusals, then processes.
fn details(device: &Device) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(device.name.as_ref().err().map(|refusal| format!("name unknown: {refusal}")));
    lines.extend(device.memory.as_ref().err().map(|refusal| format!("memory unknown: {refusal}")));
    match &device.processes {
        Some(Ok(processes)) => lines.extend(processes.iter().map(process)),
        Some(Err(refusal)) => lines.push(format!("processes unknown: {refusal}")),
        None => {}
    }
    if device.hides_processes() {
        lines.push(String::from(HIDDEN));
    }
    lines
}

fn process(process: &Process) -> String {
    let bytes = process.listed.used_bytes.map_or_else(|| String::from("bytes unknown"), show_bytes);
    let kind = match (process.listed.compute, process.listed.graphics) {
        (true, true) => "compute and graphics",
        (false, true) => "graphics",
        _ => "compute",
    };
    format!("pid {:<8} {bytes:>12}  {kind}  {}", process.listed.pid, process.name.as_deref().unwrap_or("(name unknown)"))
}

/// Who was asked.
enum Asked {
    Nvml,
    Cuda,
}

parkade_recording::names! {
    Asked {
        Asked::Nvml => "nvml",
        Asked::Cuda => "cuda",
    }
}

view! {
    /// Unknown values are null; a refused value has an `..._error` with the reason.
    struct Object<'a>(reading: &'a Reading) {
        /// Who was asked.
        source: Word<Asked> = Word::of(if reading.no_nvml.is_some() { &Asked::Cuda } else { &Asked::Nvml }),
        /// Why NVML was not asked.
        no_nvml: Option<&'a str> = reading.no_nvml.as_deref(),
        /// The driver's version.
        driver: Option<&'a str> = reading.driver.as_deref().ok(),
        /// Each device.
        devices: Vec<OfDevice<'a>> = all(&reading.devices, OfDevice::of),
    }
}

sections! {
    "info": Object<'_>;
}

view! {
    struct OfDevice<'a>(device: &'a Device) {
        /// The device's index.
        index: u32 = device.index,
        /// The device's name.
        name: Option<&'a str> = device.name.as_deref().ok(),
        /// The device's UUID.
        uuid: Option<&'a str> = device.uuid.as_deref(),
        /// The device's memory.
        total_bytes: Option<u64> = device.memory.as_ref().ok().map(|memory| memory.total_bytes),
        /// The part of it that is free.
        free_bytes: Option<u64> = device.memory.as_ref().ok().map(|memory| memory.free_bytes),
        /// The part of it that the driver has handed out.
        used_bytes: Option<u64> = device.memory.as_ref().ok().map(|memory| memory.used_bytes),
        /// The part of it that the driver keeps for itself.
        driver_reserved_bytes: Option<u64> = device.memory.as_ref().ok().and_then(|memory| memory.reserved_bytes),
        /// Why the memory is unknown.
        memory_error: Option<&'a str> = device.memory.as_ref().err().map(String::as_str),
        /// What the listed processes hold.
        listed_bytes: Option<u64> = device.listed_bytes(),
        /// What is used, but held by no listed process.
        unlisted_bytes: Option<u64> = device.unlisted_bytes(),
        /// The listed processes.
        processes: Option<Vec<OfProcess<'a>>> =
            device.processes.as_ref().and_then(|told| told.as_ref().ok()).map(|list| all(list, OfProcess::of)),
        /// Why the processes are unknown.
        processes_error: Option<&'a str> =
            device.processes.as_ref().and_then(|told| told.as_ref().err()).map(String::as_str),
    }
}

view! {
    struct OfProcess<'a>(process: &'a Process) {
        /// The process id.
        pid: u32 = process.listed.pid,
        /// The process's name.
        name: Option<&'a str> = process.name.as_deref(),
        /// What it holds.
        used_bytes: Option<u64> = process.listed.used_bytes,
        /// Whether it has a compute context.
        compute: bool = process.listed.compute,
        /// Whether it has a graphics context.
        graphics: bool = process.listed.graphics,
    }
}

#[cfg(test)]
mod tests {
    use parkade_gpu::nvml::{GpuProcess, Nvml, NvmlDevice, NvmlError, NvmlMemory};
    use parkade_gpu::{DriverError, Unavailable};

    use super::*;

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
        serde_json::to_value(Object::of(reading)).expect("an object")
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
            text(&read(vec![device(0, &[(BIG, Some(GIB)), (BIG + 1, Some(GIB / 2)), (BIG + 2, None)]), device(1, &[])]), 100);
        let expected = "\
driver 580.95.05
gpu  name              total        free      used  driver's own    listed  unlisted
  0  NVIDIA H200  140.00 GiB  136.00 GiB  3.00 GiB      1.00 GiB  1.50 GiB  1.50 GiB
  1  NVIDIA H200  140.00 GiB  136.00 GiB  3.00 GiB      1.00 GiB   0 bytes  3.00 GiB
gpu 0
  pid 4000000000     1.00 GiB  compute  (name unknown)
  pid 4000000001   512.00 MiB  compute and graphics  (name unknown)
  pid 4000000002 bytes unknown  compute  (name unknown)
gpu 1
  memory is in use but no process is listed: in a container NVML may see none (docker run --pid=host
  shows them)
used: what the driver has allocated, as nvidia-smi shows it.";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("\nunlisted: "), "{text}");
    }

    #[test]
    fn an_idle_device_hides_nothing() {
        let mut idle = device(0, &[]);
        idle.memory =
            Ok(NvmlMemory { total_bytes: 140 * GIB, free_bytes: 139 * GIB, used_bytes: 4 << 20, reserved_bytes: Some(GIB) });
        assert!(!text(&read(vec![idle]), 100).contains("no process is listed"));
    }

    #[test]
    fn what_is_refused_is_told_and_the_rest_is_shown() {
        let mut lost = device(0, &[]);
        lost.name = Err(REFUSED);
        lost.memory = Err(REFUSED);
        lost.processes = Err(REFUSED);
        let reading = read(vec![lost, device(1, &[(BIG, Some(GIB))])]);
        let text = text(&reading, 100);
        for part in ["name", "memory", "processes"] {
            assert!(text.contains(&format!("  {part} unknown: nvmlDeviceGetMemoryInfo: no permission")), "{text}");
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
        assert!(text(&read(vec![named]), 100).contains("a\\u{1b}[31m\\nb"));
    }

    /// CUDA without NVML, as far as it goes without a GPU: a device that could not be opened is listed with the reason.
    #[test]
    fn what_the_cuda_driver_tells_is_less() {
        let full = Unavailable::Refused(DriverError { call: "cuDevicePrimaryCtxRetain", code: 2 });
        let no_nvml = NvmlError::NoLibrary { reason: "libnvidia-ml.so.1: not found".into() };
        let reading = Source::Cuda(vec![(3, Err(full))], no_nvml).read().expect("a reading");
        let text = text(&reading, 100);
        let expected = "\
driver version unknown: no device could be opened
these figures come from the CUDA driver: no NVML (libnvidia-ml.so.1: not found)
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
        assert_eq!(error.to_string(), "no GPU found: NVML lists none");
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!((interval("2"), interval("0.5")), (Ok(Duration::from_secs(2)), Ok(Duration::from_millis(500))));
        for text in ["0", "-1", "nan", "inf", "1e9", "", "soon"] {
            assert!(interval(text).is_err_and(|error| error.contains("is not a number of seconds")), "{text}");
        }
    }
}
