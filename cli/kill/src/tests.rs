//! `kill` on a fake driver and a fake machine.

use std::cell::{Cell, RefCell};

use super::*;
use parkade_gpu::nvml::{NvmlError, NvmlMemory};

const PID: u32 = 4242;
const GIB: u64 = 1 << 30;
const OWN: u32 = 900;
const SHELL: u32 = 800;

/// Pids with their bytes, as the driver lists them.
type Listed = Vec<(u32, Option<u64>)>;

/// A machine with one process that uses the GPU and others that do not, and its driver.
struct World {
    process: RefCell<Option<Process>>,
    has_driver: Cell<Option<bool>>,
    /// Whether this machine is no container, or that is not known.
    sees_driver_pids: Cell<Option<bool>>,
    has_pidfd: Cell<bool>,
    /// What the driver lists on device 1; device 0 is idle.
    listed: RefCell<Result<Listed, NvmlError>>,
    /// Whether a signal ends the process.
    ends: Cell<bool>,
    sent: RefCell<Vec<Signal>>,
}

impl World {
    fn new() -> World {
        let process = Process { name: "python3".into(), user: "alice".into(), parent: 1, start: 77, has_ended: false };
        World {
            process: RefCell::new(Some(process)),
            has_driver: Cell::new(Some(true)),
            sees_driver_pids: Cell::new(Some(true)),
            has_pidfd: Cell::new(true),
            listed: RefCell::new(Ok(vec![(17, Some(GIB)), (PID, Some(3 * GIB))])),
            ends: Cell::new(true),
            sent: RefCell::default(),
        }
    }

    /// Kills with this signal and this answer to the question: outcome and output.
    fn kill_as(&self, pid: u32, signal: Signal, answer: impl FnOnce() -> bool) -> (Result<Outcome>, String) {
        let mut out = Vec::new();
        let killing = Killing { nvml: self, host: self, pid, signal, patience: Duration::from_millis(5) };
        let outcome = killing.run(&mut out, |question| {
            assert_eq!(question, format!("End process {pid} (python3, user alice) with {signal}?"));
            Ok(answer())
        });
        (outcome, String::from_utf8(out).expect("UTF-8"))
    }

    fn kill(&self, answer: impl FnOnce() -> bool) -> (Result<Outcome>, String) {
        self.kill_as(PID, Signal::Term, answer)
    }

    /// Checks that nothing is sent to this pid, nobody is asked, and the reason.
    fn refuses(&self, pid: u32, text: &str) {
        let (outcome, out) = self.kill_as(pid, Signal::Term, || panic!("nobody is asked"));
        let error = format!("{:#}", outcome.expect_err("refused"));
        assert!(error.contains(text), "{error} lacks {text:?}");
        assert!(out.is_empty() && self.sent.borrow().is_empty());
    }
}

impl Nvml for World {
    fn driver_version(&self) -> Result<String, NvmlError> {
        Ok("580.95.05".into())
    }

    fn devices(&self) -> Result<Vec<NvmlDevice>, NvmlError> {
        let device = |index, processes: Result<Vec<GpuProcess>, NvmlError>| {
            let used_bytes = processes.iter().flatten().filter_map(|process| process.used_bytes).sum();
            let memory =
                NvmlMemory { total_bytes: 140 * GIB, free_bytes: 140 * GIB - used_bytes, used_bytes, reserved_bytes: Some(0) };
            NvmlDevice { index, name: Ok("NVIDIA H200".into()), uuid: Ok(format!("GPU-{index}")), memory: Ok(memory), processes }
        };
        let process = |&(pid, used_bytes): &(u32, _)| GpuProcess { pid, used_bytes, compute: true, graphics: false };
        let listed = self.listed.borrow().as_ref().map(|listed| listed.iter().map(process).collect()).map_err(Clone::clone);
        Ok(vec![device(0, Ok(Vec::new())), device(1, listed)])
    }
}

impl Host for World {
    type Target = u32;

    fn own_pid(&self) -> u32 {
        OWN
    }

    fn look(&self, pid: u32) -> io::Result<Option<Process>> {
        let relative = |parent| Process { name: "sh".into(), user: "alice".into(), parent, start: 1, has_ended: false };
        Ok(match pid {
            OWN => Some(relative(SHELL)),
            SHELL => Some(relative(1)),
            1 => Some(relative(0)),
            PID => self.process.borrow().clone(),
            _ => None,
        })
    }

    fn sees_driver_pids(&self) -> io::Result<bool> {
        self.sees_driver_pids.get().ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }

    fn is_held(&self, _: &u32) -> bool {
        self.has_pidfd.get()
    }

    fn has_driver(&self, _: u32) -> io::Result<bool> {
        self.has_driver.get().ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }

    fn target(&self, pid: u32) -> io::Result<u32> {
        self.look(pid)?.map(|_| pid).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn send(&self, &target: &u32, signal: Signal) -> io::Result<()> {
        assert_eq!(target, PID, "only ever the process that was asked for");
        self.sent.borrow_mut().push(signal);
        if self.ends.get() {
            *self.process.borrow_mut() = None;
            if let Ok(listed) = &mut *self.listed.borrow_mut() {
                listed.retain(|&(pid, _)| pid != PID);
            }
        }
        Ok(())
    }
}

#[test]
fn a_process_ends_and_its_memory_comes_back() {
    for signal in [Signal::Term, Signal::Kill] {
        let world = World::new();
        let (outcome, out) = world.kill_as(PID, signal, || true);
        assert_eq!(outcome.expect("sent"), Outcome::Good);
        assert_eq!(*world.sent.borrow(), [signal]);
        assert!(out.starts_with("process 4242 (python3, user alice) holds\n  3.00 GiB on GPU 1 (NVIDIA H200)\n"), "{out}");
        assert!(out.contains(&format!("s after {signal}\n")), "{out}");
        assert!(out.ends_with("  GPU 1: 3.00 GiB came back (free before 136.00 GiB, now 139.00 GiB)\n"), "{out}");
    }
}

/// Exit code 0, as for other commands, would claim that the process ended.
#[test]
fn a_reader_that_went_away_changes_nothing() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }
    for (answer, expected, sent) in [(true, Outcome::Good, 1), (false, Outcome::CouldNotRun, 0)] {
        let world = World::new();
        let killing = Killing { nvml: &world, host: &world, pid: PID, signal: Signal::Term, patience: Duration::from_millis(5) };
        assert_eq!(killing.run(&mut Closed, |_| Ok(answer)).expect("answered"), expected);
        assert_eq!(world.sent.borrow().len(), sent);
    }
}

#[test]
fn without_a_yes_nothing_is_sent() {
    let world = World::new();
    let (outcome, out) = world.kill(|| false);
    assert_eq!(outcome.expect("answered"), Outcome::CouldNotRun);
    assert!(world.sent.borrow().is_empty() && out.ends_with("nothing was sent to process 4242\n"), "{out}");
}

#[test]
fn a_pid_that_is_anothers_by_now_is_not_hit() {
    let world = World::new();
    let (outcome, _) = world.kill(|| {
        world.process.borrow_mut().as_mut().expect("running").start = 78;
        true
    });
    assert!(outcome.expect_err("refused").to_string().contains("its id now belongs to another process: nothing was sent"));
    assert!(world.sent.borrow().is_empty());
}

#[test]
fn a_process_that_ends_by_itself_needs_no_signal() {
    for left in [None, Some(Process { has_ended: true, ..World::new().process.into_inner().expect("running") })] {
        let world = World::new();
        let (outcome, out) = world.kill(|| {
            *world.process.borrow_mut() = left;
            true
        });
        assert_eq!(outcome.expect("gone"), Outcome::Good);
        assert!(world.sent.borrow().is_empty() && out.ends_with("process 4242 ended by itself: nothing was sent\n"), "{out}");
    }
}

#[test]
fn a_process_that_does_not_end_is_told() {
    let world = World::new();
    world.ends.set(false);
    let (outcome, out) = world.kill(|| true);
    assert_eq!(outcome.expect("sent"), Outcome::CheckFailed);
    assert!(out.contains("has not ended 0.005 s after SIGTERM") && out.contains("--signal KILL"), "{out}");
}

#[test]
fn only_what_holds_memory_is_ended() {
    World::new().refuses(5000, "process 5000 holds no memory on a GPU and is left alone: NVML lists 17, 4242");
    let world = World::new();
    *world.listed.borrow_mut() = Ok(vec![(PID, Some(0))]);
    world.refuses(PID, "holds no memory on a GPU");
    *world.listed.borrow_mut() = Ok(Vec::new());
    world.refuses(PID, "NVML lists none (in a container it may see none: run it on the host)");
    *world.listed.borrow_mut() = Err(NvmlError::Refused { call: "nvmlDeviceGetComputeRunningProcesses_v3", code: 4 });
    world.refuses(PID, "not known for GPU 1 (nvmlDeviceGetComputeRunningProcesses_v3: no permission");
}

#[test]
fn unknown_bytes_are_not_none() {
    let world = World::new();
    *world.listed.borrow_mut() = Ok(vec![(PID, None)]);
    let (outcome, out) = world.kill(|| true);
    assert_eq!(outcome.expect("sent"), Outcome::Good);
    assert!(out.contains("an unknown number of bytes on GPU 1"), "{out}");
}

#[test]
fn what_this_process_runs_in_is_never_ended() {
    let world = World::new();
    *world.listed.borrow_mut() = Ok(vec![(OWN, Some(GIB)), (SHELL, Some(GIB)), (1, Some(GIB))]);
    for pid in [OWN, SHELL, 1] {
        world.refuses(pid, "is never ended: parkade runs in it");
    }
}

#[test]
fn a_pid_that_means_another_process_here_is_left_alone() {
    let world = World::new();
    world.has_driver.set(Some(false));
    world.refuses(PID, "process 4242 is python3, user alice here and does not use the driver, so NVML means another process");
    world.has_driver.set(None);
    world.refuses(PID, "cannot be checked: run it as alice or root");
    *world.process.borrow_mut() = None;
    world.refuses(PID, "which does not exist here: it has ended, or this is a container");
}

/// Both the host and the container have a process with this pid that uses the driver: only the namespace tells.
#[test]
fn in_a_pid_namespace_of_its_own_nothing_is_ended() {
    let world = World::new();
    world.sees_driver_pids.set(Some(false));
    world.refuses(PID, "may be one of the host's and 4242 here another: run it on the host");
    world.sees_driver_pids.set(None);
    world.refuses(PID, "pid namespace is not known");
}

#[test]
fn without_a_pidfd_it_says_so_before_it_asks() {
    let world = World::new();
    world.has_pidfd.set(false);
    let (outcome, out) = world.kill(|| false);
    assert_eq!(outcome.expect("answered"), Outcome::CouldNotRun);
    assert!(out.contains("has no pidfd"), "{out}");
    let (_, out) = World::new().kill(|| false);
    assert!(!out.contains("pidfd"), "{out}");
}

#[test]
fn pids_that_mean_more_or_less_than_a_process_are_refused() {
    for text in ["0", "1", "-1", "-4242", "2147483648", "4294967298", "-9223372036854775808"] {
        assert!(process_id(text).expect_err(text).to_string().contains("is never ended"), "{text}");
    }
    for text in ["", "python3", "12x", " 12", "99999999999999999999", "0x10"] {
        assert!(process_id(text).expect_err(text).to_string().contains("is not a process id"), "{text}");
    }
    assert_eq!((process_id("2").ok(), process_id("2147483647").ok()), (Some(2), Some(2_147_483_647)));
}
