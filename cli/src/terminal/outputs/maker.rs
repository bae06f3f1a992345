//! The process that makes a draft: its host, its id and its start, which tell it from every other, and whether it is gone.

use std::fmt;
use std::str::FromStr;

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Maker {
    /// Where its id counts: the host's name, its boot and the namespace of its process ids.
    host: String,
    pid: u32,
    /// When it started, in the kernel's ticks since boot.
    start: u64,
}

/// The host where it is not known. No process of it is ever taken for gone.
const UNKNOWN: &str = "unknown";

impl Maker {
    /// This process.
    pub(super) fn this() -> Maker {
        let pid = std::process::id();
        let known = system::host().zip(system::start_of_this(pid));
        let (host, start) = known.unwrap_or_else(|| (UNKNOWN.to_owned(), 0));
        Maker { host, pid, start }
    }

    /// Whether it is a process of the host that `here` is on, and is gone for certain.
    pub(super) fn is_gone(&self, here: &Maker) -> bool {
        self.host == here.host && self.host != UNKNOWN && system::is_gone(self.pid, self.start)
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.host, self.pid, self.start)
    }
}

impl FromStr for Maker {
    type Err = ();

    fn from_str(text: &str) -> Result<Maker, ()> {
        let mut parts = text.rsplitn(3, '-');
        let (start, pid, host) = (parts.next(), parts.next(), parts.next());
        let start = start.and_then(|start| start.parse().ok()).ok_or(())?;
        let pid = pid.and_then(|pid| pid.parse().ok()).ok_or(())?;
        let host = host.filter(|host| !host.is_empty()).ok_or(())?.to_owned();
        Ok(Maker { host, pid, start })
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    /// The name alone does not tell hosts apart that are copies of one image, nor containers on one host.
    pub(super) fn host() -> Option<String> {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
        let namespace: String = namespace.to_str()?.chars().filter(char::is_ascii_digit).collect();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name: String = name.trim().chars().take(64).map(|c| if is_plain(c) { c } else { '_' }).collect();
        let boot = boot.get(..8)?;
        (!namespace.is_empty()).then(|| format!("{name}.{boot}.{namespace}"))
    }

    /// When this process started; `None` also where `/proc` is that of another namespace.
    pub(super) fn start_of_this(pid: u32) -> Option<u64> {
        let stat = fs::read("/proc/self/stat").ok()?;
        stat.starts_with(format!("{pid} ").as_bytes()).then(|| Stat::of(&stat))?.map(|stat| stat.start)
    }

    /// A process that cannot be seen may be hidden, so the kernel is asked for it.
    pub(super) fn is_gone(pid: u32, start: u64) -> bool {
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
        if test_kill_process(id) == Err(Errno::SRCH) {
            return true;
        }
        let stat = fs::read(format!("/proc/{pid}/stat")).ok().and_then(|stat| Stat::of(&stat));
        stat.is_some_and(|stat| stat.start != start || stat.has_ended)
    }

    /// What `/proc/PID/stat` says.
    struct Stat {
        start: u64,
        /// Nobody has asked how it ended yet.
        has_ended: bool,
    }

    impl Stat {
        fn of(text: &[u8]) -> Option<Stat> {
            // The name before it may have anything in it.
            let text = String::from_utf8_lossy(text);
            let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
            let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
            let (state, threads) = (fields.first()?, number(20)?);
            // Where other threads go on, its first one alone has ended.
            let has_ended = matches!(*state, "Z" | "X") && threads <= 1;
            Some(Stat { start: number(22)?, has_ended })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_state_is_read_behind_any_name() {
            let stat = |name: &str, state: &str, threads: u32| {
                format!("7 ({name}) {state} 1 7 7 0 -1 4194304 98 0 0 0 0 0 0 0 20 0 {threads} 0 413017 3133440 359")
            };
            for name in ["cat", "a b", ") Z 1 (", ""] {
                let read = |state: &str, threads| Stat::of(stat(name, state, threads).as_bytes()).expect("a state");
                assert!(read("S", 1).start == 413_017 && !read("S", 1).has_ended, "{name}");
                assert!(read("Z", 1).has_ended && !read("Z", 2).has_ended, "{name}");
            }
            assert!(Stat::of(b"7 (cat) S 1").is_none() && Stat::of(b"").is_none());
        }

        #[test]
        fn a_process_is_gone_once_it_has_ended() {
            let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("it starts");
            let pid = child.id();
            let start = Stat::of(&fs::read(format!("/proc/{pid}/stat")).expect("a state")).expect("a state").start;
            assert!(!is_gone(pid, start) && is_gone(pid, start + 1) && !is_gone(0, 0) && !is_gone(u32::MAX, 0));
            child.kill().expect("it is ended");
            // Before it is waited for, and after.
            for _ in 0..500 {
                if is_gone(pid, start) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            assert!(is_gone(pid, start));
            child.wait().expect("it ends");
            assert!(is_gone(pid, start));
        }
    }
}

/// Nothing is known here.
#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn host() -> Option<String> {
        None
    }

    pub(super) fn start_of_this(_: u32) -> Option<u64> {
        None
    }

    pub(super) fn is_gone(_: u32, _: u64) -> bool {
        false
    }
}
