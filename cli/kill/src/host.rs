//! The processes of this machine, from `/proc`, and signals to them.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags};

use super::Signal;

/// The initial pid namespace, whose pids the driver uses (the kernel's PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// What is shown and checked before a process is ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    /// The command's name.
    pub(crate) name: String,
    /// Its user, by name if it has one.
    pub(crate) user: String,
    /// The process that started it.
    pub(crate) parent: u32,
    /// When it started, in clock ticks since boot. Together with the pid it identifies a process.
    pub(crate) start: u64,
    /// Whether it has ended and waits to be reaped.
    pub(crate) has_ended: bool,
}

/// What `kill` needs of the machine.
pub(crate) trait Host {
    /// A process that a signal can be sent to.
    type Target;

    /// This process.
    fn own_pid(&self) -> u32;

    /// The process with this pid, if there is one.
    fn look(&self, pid: u32) -> io::Result<Option<Process>>;

    /// Whether the driver's pids are those seen here: this process is in the first pid namespace.
    fn sees_driver_pids(&self) -> io::Result<bool>;

    /// Whether the process has mapped the driver's library or one of its devices.
    fn has_driver(&self, pid: u32) -> io::Result<bool>;

    /// A handle to the process, so that a later process with the same pid is not hit.
    fn target(&self, pid: u32) -> io::Result<Self::Target>;

    /// Whether the target stays the same process if its pid is given to another.
    fn is_held(&self, target: &Self::Target) -> bool;

    /// Sends the signal.
    fn send(&self, target: &Self::Target, signal: Signal) -> io::Result<()>;
}

/// A Linux machine.
pub(crate) struct Linux;

/// A process, by a pidfd where the kernel has them (5.3).
pub(crate) enum Target {
    Held(OwnedFd),
    Named(Pid),
}

impl Host for Linux {
    type Target = Target;

    fn own_pid(&self) -> u32 {
        std::process::id()
    }

    fn look(&self, pid: u32) -> io::Result<Option<Process>> {
        let (stat, status) = match (read(pid, "stat"), read(pid, "status")) {
            (Ok(stat), Ok(status)) => (stat, status),
            (Err(error), _) | (_, Err(error)) if is_gone(&error) => return Ok(None),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let process = parse(&stat, user_id(&status).as_deref(), &fs::read_to_string("/etc/passwd").unwrap_or_default());
        process.map(Some).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is not in the format that Linux writes")))
    }

    fn sees_driver_pids(&self) -> io::Result<bool> {
        Ok(fs::read_link("/proc/self/ns/pid")?.as_os_str() == FIRST_PID_NAMESPACE)
    }

    fn has_driver(&self, pid: u32) -> io::Result<bool> {
        read(pid, "maps").map(|maps| names_driver(&maps))
    }

    fn target(&self, pid: u32) -> io::Result<Target> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        match process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(held) => Ok(Target::Held(held)),
            // An old kernel, or a sandbox without the call.
            Err(Errno::NOSYS | Errno::PERM) => Ok(Target::Named(pid)),
            Err(error) => Err(error.into()),
        }
    }

    fn is_held(&self, target: &Target) -> bool {
        matches!(target, Target::Held(_))
    }

    fn send(&self, target: &Target, signal: Signal) -> io::Result<()> {
        let signal = match signal {
            Signal::Term => process::Signal::TERM,
            Signal::Kill => process::Signal::KILL,
        };
        match target {
            Target::Held(held) => process::pidfd_send_signal(held, signal)?,
            Target::Named(pid) => process::kill_process(*pid, signal)?,
        }
        Ok(())
    }
}

/// The process's name, if the driver's pids are those of this machine: outside containers, or if the process uses the driver.
pub fn name_of(pid: u32) -> Option<String> {
    let is_it = Linux.sees_driver_pids().unwrap_or(false) || Linux.has_driver(pid).unwrap_or(false);
    is_it.then(|| Linux.look(pid).ok().flatten())?.map(|process| process.name)
}

/// For people.
impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, user {}", self.name, self.user)
    }
}

/// A file of the process. Names in it may be any bytes.
fn read(pid: u32, file: &str) -> io::Result<String> {
    fs::read(format!("/proc/{pid}/{file}")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the process ended, before or after the file was opened.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// The process of a `stat` file. Its name is in brackets and may contain brackets and spaces.
fn parse(stat: &str, user: Option<&str>, passwd: &str) -> Option<Process> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    // The third field of the file is the first here.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        name: name.to_owned(),
        user: user.map_or_else(|| String::from("unknown"), |id| user_name(id, passwd)),
        parent: fields.get(1)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
        has_ended: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// The effective user's number in a `status` file.
fn user_id(status: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1).map(str::to_owned)
}

/// The user's name from the password file, else the number.
fn user_name(id: &str, passwd: &str) -> String {
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(id)).then_some(name)
    });
    name.unwrap_or(id).to_owned()
}

/// Whether the driver's library or a device is mapped.
fn names_driver(maps: &str) -> bool {
    maps.lines().any(|line| {
        let path = line.find('/').map_or("", |start| &line[start..]);
        path.starts_with("/dev/nvidia") || path.rsplit('/').next().is_some_and(|file| file.starts_with("libcuda.so"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &str = "S 7 1 1 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 987654 1000 1";

    #[test]
    fn process_names_may_be_anything() {
        for name in ["python3", "a) S 1 (b", "", "((", "tmux: server"] {
            let process = parse(&format!("42 ({name}) {FIELDS}\n"), Some("0"), "root:x:0:0::/:\n").expect("a process");
            let expected = Process { name: name.into(), user: "root".into(), parent: 7, start: 987_654, has_ended: false };
            assert_eq!(process, expected);
        }
        let zombie = parse(&format!("42 (x) {}", FIELDS.replacen('S', "Z", 1)), None, "").expect("a process");
        assert!(zombie.has_ended && zombie.user == "unknown");
        for damaged in ["", "42", "42 (x", "42 (x) S 7", "42 (x) S x 1 1 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 987654"] {
            assert_eq!(parse(damaged, None, ""), None, "{damaged:?}");
        }
    }

    #[test]
    fn users_have_names_or_numbers() {
        assert_eq!(user_id("Name:\tx\nUid:\t1000\t1001\t0\t0\n").as_deref(), Some("1001"), "the effective one");
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1001:1001::/home/alice:/bin/sh\n";
        assert_eq!((user_name("1001", passwd).as_str(), user_name("5", passwd).as_str()), ("alice", "5"));
    }

    #[test]
    fn only_the_drivers_files_show_a_gpu() {
        let line = |path| format!("7f00-7f01 r--p 00000000 08:01 99    {path}\n");
        for path in
            ["/dev/nvidia0", "/dev/nvidia-uvm", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "/opt/my libs/libcuda.so.1"]
        {
            assert!(names_driver(&(line("/usr/lib/libc.so.6") + &line(path))), "{path}");
        }
        for path in ["/usr/lib/libcudart.so.12", "[heap]", "", "/home/nvidia0/libc.so", "/srv/libcuda.so.1/data"] {
            assert!(!names_driver(&line(path)), "{path}");
        }
    }

    #[test]
    fn this_machine_answers() {
        let own = Linux.look(Linux.own_pid()).expect("readable").expect("running");
        assert!(own.parent > 0 || Linux.own_pid() == 1);
        assert_eq!(Linux.look(u32::MAX).expect("readable"), None, "there is no such pid");
        assert!(Linux.target(u32::MAX).is_err());
        assert!(!Linux.has_driver(Linux.own_pid()).expect("readable"));
    }
}
