//! D5 and D8: commands of the binary, run with a fake libnvidia-ml that is compiled here.
//!
//! They need no GPU, and touch no process except children of this one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, process, thread};

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};

use crate::scenarios::story::{claim, failed, scenario};

/// A libnvidia-ml with one GPU. It lists the process that the environment names.
const FAKE_NVML: &str = include_str!("fake_nvml.c");
/// The time limit for a child to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// The interval between two checks of a child.
const MOMENT: Duration = Duration::from_millis(1);
/// Distinguishes the folders of two fake drivers in this process.
static FOLDERS: AtomicU32 = AtomicU32::new(0);

pub(super) fn entries(backend: &AnyBackend, parkade: Option<&Path>) -> Vec<Entry> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    let entry = |name, says, check: fn(&Parkade) -> Verdict| {
        let parkade = parkade.map(|path| Parkade(path.to_owned()));
        scenario(name, says, move |_: &AnyBackend| match &parkade {
            Some(parkade) => check(parkade),
            None => Err(Trouble::Skip("this entry runs commands of the binary, so only `parkade conform` runs it".to_owned())),
        })
    };
    vec![
        entry(
            "D5/enable",
            "`parkade enable` prints the line that sets PyTorch's settings, and refuses what PyTorch refuses",
            enable,
        ),
        entry("D5/kill", "`parkade kill` ends one process that holds GPU memory, and only after confirmation", kill),
        entry(
            "D8/info",
            "`parkade info` shows how much memory the driver has handed out, how much of it processes hold, and the difference",
            info,
        ),
    ]
}

/// The path of the binary.
struct Parkade(PathBuf);

impl Parkade {
    /// Runs a command, with the fake driver if one is given; the fake driver lists this process.
    fn run(&self, arguments: &[&str], driver: Option<(&FakeDriver, u32)>) -> Result<Output, Trouble> {
        let mut command = Command::new(&self.0);
        command.args(arguments).stdin(Stdio::null());
        if let Some((driver, pid)) = driver {
            command.env("LD_LIBRARY_PATH", &driver.folder).env("FAKE_NVML_PID", pid.to_string());
        }
        command.output().map_err(|error| Trouble::fail(format!("{}: {error}", self.0.display())))
    }
}

/// Checks a command's output and exit code.
fn expect(output: &Output, code: i32, out: &str, err: &str) -> Result<(), Trouble> {
    let [found_out, found_err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let is_so = output.status.code() == Some(code) && found_out.contains(out) && found_err.contains(err);
    claim(is_so, || format!("expected exit code {code}, {out:?} and {err:?}; found {}: {found_out}{found_err}", output.status))
}

fn enable(parkade: &Parkade) -> Verdict {
    let line = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n";
    let output = parkade.run(&["enable", "expandable_segments"], None)?;
    expect(&output, 0, line, "")?;
    claim(output.stdout == line.as_bytes(), || format!("the output contains more than the line: {output:?}"))?;
    let output = parkade.run(&["enable", "max_split:3"], None)?;
    let refusal = "Unrecognized key 'max_split' in CUDA allocator config.";
    expect(&output, 1, "", refusal)?;
    Ok(Evidence::text(format!(
        "parkade enable expandable_segments\n  {line}parkade enable max_split:3\n  exit code 1: {refusal}\n"
    )))
}

fn info(parkade: &Parkade) -> Verdict {
    let driver = FakeDriver::build()?;
    let own = process::id();
    let output = parkade.run(&["info"], Some((&driver, own)))?;
    expect(&output, 0, "CUDA context (about 500 MiB)", "")?;
    let shown = String::from_utf8_lossy(&output.stdout);
    let [version, heads, device, process, ..] = shown.lines().collect::<Vec<_>>()[..] else {
        return Err(Trouble::fail(shown.into_owned()));
    };
    let cells: Vec<&str> = device.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    // 4 GiB is used; listed processes use 3 GiB and 99 bytes of it.
    let expected = ["0", "Fake GPU", "8.00 GiB", "3.00 GiB", "4.00 GiB", "1.00 GiB", "3.00 GiB", "1.00 GiB"];
    claim(cells == expected, || format!("expected {expected:?}, found {shown}"))?;
    claim(process.contains(&format!("pid {own} ")) && process.contains("3.00 GiB"), || shown.clone().into_owned())?;
    Ok(Evidence::text(format!("parkade info, on a fake libnvidia-ml\n  {version}\n  {heads}\n  {device}\n")))
}

fn kill(parkade: &Parkade) -> Verdict {
    let driver = FakeDriver::build()?;
    let mut text = String::new();
    let mut tell = |line: &str| text.push_str(&format!("{line}\n"));
    let child = Child::on_gpu(&driver)?;
    let pid = child.pid.to_string();
    let listed = Some((&driver, child.pid));
    expect(&parkade.run(&["kill", &pid], listed)?, 2, "", "--yes ends process")?;
    claim(child.is_running(), || "the child was killed without confirmation".to_owned())?;
    tell("parkade kill PID, without a terminal for the confirmation: exit code 2, no signal was sent");
    let own = process::id();
    expect(
        &parkade.run(&["kill", &own.to_string(), "--yes"], Some((&driver, own)))?,
        2,
        "",
        "cannot be ended from here: parkade runs in it",
    )?;
    tell("parkade kill on a process that it runs in: exit code 2, no signal was sent");
    expect(
        &parkade.run(&["kill", &pid, "--yes"], Some((&driver, own)))?,
        2,
        "",
        "holds no memory on a GPU, so parkade leaves it alone",
    )?;
    claim(child.is_running(), || "the child was killed even though it held no GPU memory".to_owned())?;
    tell("parkade kill on a process that the driver does not list: exit code 2, no signal was sent");
    expect(&parkade.run(&["kill", &pid, "--yes"], listed)?, 0, "3.00 GiB on GPU 0 (Fake GPU)", "")?;
    let status = child.end()?.to_string();
    claim(status.contains("15 (SIGTERM)"), || format!("the child was not ended by SIGTERM: {status}"))?;
    tell("parkade kill PID --yes, on a child that holds 3.00 GiB: exit code 0, the child ended by SIGTERM");
    Ok(Evidence::text(text))
}

/// The fake library in its own folder, under the names of NVML and of CUDA.
struct FakeDriver {
    folder: PathBuf,
}

impl FakeDriver {
    fn build() -> Result<FakeDriver, Trouble> {
        if cfg!(not(target_os = "linux")) {
            return Err(Trouble::Skip("the fake libnvidia-ml is for Linux only".to_owned()));
        }
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("parkade-fake-nvml-{}-{number}", process::id()));
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let driver = FakeDriver { folder };
        let (source, library) = (driver.folder.join("fake.c"), driver.folder.join("libnvidia-ml.so.1"));
        std::fs::write(&source, FAKE_NVML).map_err(failed)?;
        let compiler = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).args([&library, &source]).output();
        match compiler {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Trouble::Skip("there is no C compiler (cc) to build a fake libnvidia-ml".to_owned()))
            }
            Err(error) => Err(failed(format!("cc: {error}"))),
            Ok(output) if !output.status.success() => Err(failed(String::from_utf8_lossy(&output.stderr))),
            Ok(_) => {
                for name in ["libcuda.so", "libcuda.so.1"] {
                    std::fs::copy(&library, driver.folder.join(name)).map_err(failed)?;
                }
                Ok(driver)
            }
        }
    }
}

impl Drop for FakeDriver {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A child that sleeps with CUDA's library in its memory, like a process on a GPU.
///
/// The child is reaped as soon as it ends, so that it is not listed as a zombie, and it is killed when dropped.
struct Child {
    pid: u32,
    process: Arc<Mutex<process::Child>>,
    reaper: Option<JoinHandle<io::Result<ExitStatus>>>,
}

impl Child {
    fn on_gpu(driver: &FakeDriver) -> Result<Child, Trouble> {
        let library = driver.folder.join("libcuda.so.1");
        let sleep = Command::new("sleep").arg("60").env("LD_PRELOAD", library).stdin(Stdio::null()).spawn().map_err(failed)?;
        let pid = sleep.id();
        let process = Arc::new(Mutex::new(sleep));
        let child = Child { pid, reaper: Some(thread::spawn(reap(Arc::clone(&process)))), process };
        let start = Instant::now();
        while !std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("/libcuda.so.1")) {
            claim(start.elapsed() < PATIENCE && child.is_running(), || "the child does not load the fake library".to_owned())?;
            thread::sleep(MOMENT);
        }
        Ok(child)
    }

    fn is_running(&self) -> bool {
        self.reaper.as_ref().is_some_and(|reaper| !reaper.is_finished())
    }

    /// Waits for the child to end.
    fn end(mut self) -> Result<ExitStatus, Trouble> {
        let reaper = self.reaper.take().ok_or_else(|| failed("the thread that waits for the child is missing"))?;
        reaper.join().map_err(|_| failed("waiting for the child panicked"))?.map_err(failed)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // This has no effect after the child has been reaped.
        if let Ok(mut process) = self.process.lock() {
            let _ = process.kill();
        }
    }
}

/// Waits for a process without keeping it locked.
fn reap(process: Arc<Mutex<process::Child>>) -> impl FnOnce() -> io::Result<ExitStatus> {
    move || loop {
        if let Some(status) = process.lock().map_err(|_| io::Error::other("poisoned"))?.try_wait()? {
            return Ok(status);
        }
        thread::sleep(MOMENT);
    }
}
