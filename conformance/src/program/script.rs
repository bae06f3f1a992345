//! The steps of a program as a script for `parkade ops`, so that a failure can be run again and on the real allocator.

use parkade::policy::Policy as _;
use parkade::units::DeviceAddress;

use super::answer::Held;
use super::step::{POOLS, Setup, Step, pool_id};
use super::watched::Watched;
use crate::backend::{Places, STREAMS};

/// `parkade ops` numbers the streams; the handle of stream k is k times this value.
const HANDLE_STEP: u64 = 0x1000;

/// The lines so far. Steps that a script cannot express, such as letting time pass, are comments.
#[derive(Clone)]
pub(crate) struct Script {
    setup: Setup,
    lines: Vec<String>,
    names: u64,
}

impl Script {
    /// Begins with the command line that runs the script, under the policy of this name if it has one.
    pub(super) fn new(setup: &Setup, policy: &Watched, name: Option<&str>) -> Script {
        let order = if setup.places == Places::Descending { "down" } else { "up" };
        let Setup { capacity, timing, .. } = *setup;
        let options = format!("--capacity {capacity} --addresses {order}");
        let mut lines = vec![match policy.pytorch() {
            Some(_) => {
                let (release, text) = (setup.release, setup.text(setup.settings));
                format!("# parkade ops SCRIPT {options} --profile {release} --settings '{text}'")
            }
            None => match name {
                Some(name) => format!("# parkade ops SCRIPT --policy '{name}' {options}"),
                None => format!("# policy {}, seed {}; {options}", policy.name(), setup.policy_seed),
            },
        }];
        lines.push(format!("# events: {timing:?}"));
        if setup.places == Places::Reuse {
            lines.push("# new segments were placed in the lowest hole".to_owned());
        }
        if let Some(seed) = setup.adopted {
            lines.push(format!("# the allocator adopted segments, drawn from seed {seed}"));
        }
        Script { setup: *setup, lines, names: 0 }
    }

    /// Adds a step, before it is performed, with what is held and the number of checkpoints.
    /// `asked_at` is the address of a request for one.
    pub(super) fn push(&mut self, step: Step, asked_at: DeviceAddress, held: &[Held], checkpoints: usize) {
        self.lines.push(match (step, held.first()) {
            (Step::AllocateAt(bytes, place, ..), Some(first)) => {
                let behind = asked_at.get().wrapping_sub(first.address().get());
                format!("alloc_at a{} {bytes} {} a{} {behind}", self.names + 1, stream(place), first.name)
            }
            _ => self.line(step, held, checkpoints),
        });
    }

    /// Returns the script so far for a clone of the allocator, which goes on with it.
    pub(super) fn of_clone(&self) -> Script {
        let mut script = self.clone();
        script.lines.push("# from here on, a clone of the allocator goes on".to_owned());
        script
    }

    /// Returns the line of the newest step.
    pub(super) fn newest_line(&self) -> &str {
        self.lines.last().map_or("", String::as_str)
    }

    /// Returns the name of the newest allocation.
    pub(super) fn newest_name(&self) -> u64 {
        self.names
    }

    /// Returns the name of the next allocation.
    pub(super) fn next_name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    /// Returns a step as a line of the script.
    fn line(&self, step: Step, held: &[Held], checkpoints: usize) -> String {
        let pick = |which: usize| held.get(which % held.len().max(1));
        let name = |which: usize| pick(which).map_or("none".to_owned(), |held| format!("a{}", held.name));
        let raw = |which: usize| if pick(which).is_some_and(|held| held.is_raw) { "raw" } else { "" };
        let next = self.names + 1;
        match step {
            Step::Free(_) | Step::Record(..) | Step::Use(..) if held.is_empty() => format!("# {step:?}: nothing is held"),
            Step::Allocate(bytes, place) => format!("alloc a{next} {bytes} {}", stream(place)),
            Step::AllocateRaw(bytes, place) => format!("rawalloc a{next} {bytes} {}", stream(place)),
            Step::Free(which) => format!("{}free {}", raw(which), name(which)),
            Step::Record(which, place) => format!("record_stream {} {}", name(which), stream(place)),
            Step::Use(which, place) => {
                format!("record_stream {} {} # which fills it after its last user", name(which), stream(place))
            }
            Step::Complete(place) => format!("complete {}", stream(place)),
            Step::CompleteOne(place) => format!("complete_one {}", stream(place)),
            Step::CompleteAll => "complete all".to_owned(),
            Step::ProcessEvents => "process_events".to_owned(),
            Step::ReleaseCached => "empty_cache".to_owned(),
            Step::Fraction(thousandths) => format!("set_fraction {}", f64::from(thousandths) / 1000.0),
            Step::Limit(Some(bytes)) => format!("limit {bytes}"),
            Step::Limit(None) => "limit none".to_owned(),
            Step::Apply(place) => format!("conf {}", self.setup.text(place)),
            Step::OthersHold(bytes) => format!("external {bytes}"),
            Step::ResetPeaks => "reset_peak".to_owned(),
            Step::ResetSums => "reset_accumulated".to_owned(),
            Step::CreatePool(place) => format!("pool_create {}", pool(place)),
            Step::BeginPool(place, None) => format!("pool_begin {} all", pool(place)),
            Step::BeginPool(place, Some(of)) => format!("pool_begin {} stream {}", pool(place), stream(of)),
            Step::BeginGraph(place) => format!("capture_begin {}", stream(place)),
            Step::EndGraph(place) => format!("capture_end {}", stream(place)),
            Step::GraphWork(place) => format!("capture_work {}", stream(place)),
            Step::GraphWait(place, other) => format!("capture_wait {} {}", stream(place), stream(other)),
            Step::EndPool(place) => format!("pool_end {}", pool(place)),
            Step::ReleasePool(place) => format!("pool_release {}", pool(place)),
            Step::ReleaseCachedPool(place) => format!("empty_cache {}", pool(place)),
            Step::UseOnOom(place, true) => format!("pool_set {} use_on_oom", pool(place)),
            Step::UseOnOom(place, false) => format!("pool_set {} no_use_on_oom", pool(place)),
            Step::NoSplit(place) => format!("pool_set {} no_split", pool(place)),
            Step::Save(place) => format!("ckpt_save c{} {}", checkpoints, pool(place)),
            Step::Restore(which) if checkpoints > 0 => format!("ckpt_load c{}", which % checkpoints),
            Step::Snapshot => "snapshot".to_owned(),
            Step::SnapshotPool(place) => format!("snapshot {}", pool(place)),
            Step::Capturing(is_capturing) => format!("# the current stream is captured: {is_capturing}"),
            Step::Copy(from, to, place) => format!("# stream {} copies {} to {}", stream(place), name(from), name(to)),
            Step::Read(which) => format!("# the host reads {}", name(which)),
            Step::Launch(place, duration) => format!("# work of {duration} ns on stream {}", stream(place)),
            Step::Pause(duration) => format!("# {duration} ns pass"),
            Step::Stock(which, callback) => format!("# callback {callback} will free {}", name(which)),
            Step::LiveAre(place, _) => format!("# are these the live allocations of {:?}?", POOLS[place]),
            other => format!("# {other:?}"),
        }
    }

    /// Returns the script.
    pub(crate) fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Returns the script's name for one of [`STREAMS`], given its index.
fn stream(place: usize) -> u64 {
    STREAMS[place] / HANDLE_STEP
}

fn pool(pool: usize) -> String {
    let id = pool_id(pool);
    format!("{} {}", id.0, id.1)
}
