//! Sweeps: workloads x policies x capacities x seeds; each combination is an independent job with a row of numbers.
//!
//! A [`Plan`] lists the jobs in order. [`Plan::job`] derives a job from its number alone, so any machine can run any part.
//! [`run_jobs`] runs some of the jobs on several threads and returns their [`Row`]s in order, and [`Summary`] summarizes all
//! rows. A row contains integers and depends only on its job.

mod ablation;
mod build;
mod row;
mod summary;

pub use super::capacity::{needs_by_construction, takes_a_share_at_first};
pub use ablation::{AblatedValue, Ablation, Ablations};
pub use build::{COMMON_BUILD, build_of, entire_build};
pub use row::{PreparedWorkload, Row, Source, run_jobs};
pub use summary::{
    BoundRatios, Cell, Comparison, Course, CourseOfAll, Level, PolicySummary, SeedComparison, Summary, Without, bound_ratios,
};

use std::fmt;
use std::str::FromStr;

use parkade_sim::PAGE_BYTES;
use serde::{Deserialize, Serialize};

use super::run::{Addresses, PRECISION};

/// The maximum number of jobs in a sweep.
pub const MOST_JOBS: u64 = 1_000_000;
/// Factors are counted in parts of one in this many.
const MILLION: u64 = 1_000_000;

/// The memory of a job's device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Capacity {
    /// The smallest memory in which the workload fits, which the job has to find.
    Smallest,
    /// More memory than is needed.
    Plenty,
    /// A multiple of the workload's load.
    Load(Share),
    /// A number of bytes.
    Bytes(u64),
}

impl Capacity {
    /// Returns the memory in bytes for a workload with this load, or `None` for [`Capacity::Smallest`] and
    /// [`Capacity::Plenty`].
    #[must_use]
    pub fn bytes(self, load_bytes: u64) -> Option<u64> {
        match self {
            Capacity::Smallest | Capacity::Plenty => None,
            Capacity::Load(share) => Some(share.of(load_bytes).div_ceil(PAGE_BYTES).max(1).saturating_mul(PAGE_BYTES)),
            Capacity::Bytes(bytes) => Some(bytes),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Capacity::Smallest => f.write_str("smallest"),
            Capacity::Plenty => f.write_str("plenty"),
            Capacity::Load(share) => write!(f, "{share}"),
            Capacity::Bytes(bytes) => write!(f, "{bytes}B"),
        }
    }
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Capacity, String> {
        match text {
            "smallest" => Ok(Capacity::Smallest),
            "plenty" => Ok(Capacity::Plenty),
            _ => match text.strip_suffix('B').map(str::parse::<u64>) {
                Some(Ok(bytes)) if bytes > 0 => Ok(Capacity::Bytes(bytes)),
                Some(_) => Err(format!("{text:?} is not a number of bytes: write a whole number above 0 followed by B")),
                None => text.parse().map(Capacity::Load),
            },
        }
    }
}

impl From<Capacity> for String {
    fn from(capacity: Capacity) -> String {
        capacity.to_string()
    }
}

impl TryFrom<String> for Capacity {
    type Error = String;

    fn try_from(text: String) -> Result<Capacity, String> {
        text.parse()
    }
}

/// A multiple of a load, exact to the millionth. It is written as a decimal number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Share(u64);

impl Share {
    /// Returns this share of a number of bytes, rounded up.
    #[must_use]
    pub fn of(self, bytes: u64) -> u64 {
        let exact = (u128::from(bytes) * u128::from(self.0)).div_ceil(u128::from(MILLION));
        u64::try_from(exact).unwrap_or(u64::MAX)
    }

    /// Returns the share as a floating-point number, for drawing.
    #[must_use]
    pub fn value(self) -> f64 {
        self.0 as f64 / MILLION as f64
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / MILLION, self.0 % MILLION);
        let digits = format!("{part:06}");
        let digits = digits.trim_end_matches('0');
        if digits.is_empty() { write!(f, "{whole}.0") } else { write!(f, "{whole}.{digits}") }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let refused =
            || format!("{text:?} is not a factor: write a number above 0 and at most 1000, with at most six decimals (1.05)");
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let is_number = !whole.is_empty() && whole.bytes().chain(part.bytes()).all(|byte| byte.is_ascii_digit());
        if !is_number || part.len() > 6 || whole.len() > 4 {
            return Err(refused());
        }
        let whole: u64 = whole.parse().map_err(|_| refused())?;
        let part: u64 = format!("{part:0<6}").parse().map_err(|_| refused())?;
        let millionths = whole * MILLION + part;
        if millionths == 0 || millionths > 1000 * MILLION { Err(refused()) } else { Ok(Share(millionths)) }
    }
}

/// The part of the load to within which the smallest memory is found: `1/256`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Precision(u64);

impl Precision {
    /// The finest precision: beyond it, the pages of 2 MiB decide for any load below 2 TiB.
    const FINEST: u64 = 1_000_000;

    /// Returns the number of parts.
    #[must_use]
    pub fn parts(self) -> u64 {
        self.0
    }

    fn is_default(&self) -> bool {
        *self == Precision::default()
    }
}

impl Default for Precision {
    fn default() -> Precision {
        Precision(PRECISION)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1/{}", self.0)
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Precision, String> {
        let parts = text.strip_prefix("1/").filter(|parts| parts.bytes().all(|byte| byte.is_ascii_digit()));
        let parts = parts.and_then(|parts| parts.parse().ok()).filter(|parts| (1..=Precision::FINEST).contains(parts));
        parts
            .map(Precision)
            .ok_or_else(|| format!("{text:?} is not a part of LOAD: write 1/4096, at most 1/{}", Precision::FINEST))
    }
}

impl From<Precision> for String {
    fn from(precision: Precision) -> String {
        precision.to_string()
    }
}

impl TryFrom<String> for Precision {
    type Error = String;

    fn try_from(text: String) -> Result<Precision, String> {
        text.parse()
    }
}

impl From<Share> for String {
    fn from(share: Share) -> String {
        share.to_string()
    }
}

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Share, String> {
        text.parse()
    }
}

/// A workload in a sweep.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedWorkload {
    /// Its name.
    pub name: String,
    /// The number of seeds it is generated from: 1, 2 and so on.
    pub seeds: u64,
    /// [`PreparedWorkload::hash`](PreparedWorkload) of a workload that is read from a file, which may be missing on
    /// other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// Everything that determines a sweep's rows, except the code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The workloads.
    pub workloads: Vec<PlannedWorkload>,
    /// The policies, by name.
    pub policies: Vec<String>,
    /// The capacities.
    pub capacities: Vec<Capacity>,
    /// The address model, by name.
    pub addresses: String,
    /// The share of the load that is requested and freed before the workload, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocate: Option<Share>,
    /// The part of the load to within which the smallest memory is found.
    #[serde(default, skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
}

/// A job: one run, or one search for the smallest memory. All fields except the seed are indices into the plan's lists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Job {
    /// The workload.
    pub workload: usize,
    /// The workload's seed.
    pub seed: u64,
    /// The policy.
    pub policy: usize,
    /// The capacity.
    pub capacity: usize,
}

/// The reason why a plan cannot be run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPlan {
    /// The plan has no jobs.
    #[error("there is nothing to do: no {0}")]
    Nothing(&'static str),
    /// A name occurs twice.
    #[error("{what} {name:?} is given twice")]
    Twice {
        /// The kind of name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The plan has more than [`MOST_JOBS`].
    #[error("this is more than {MOST_JOBS} jobs: use fewer seeds or fewer workloads")]
    TooMany,
    /// There is no such address model.
    #[error("there is no address model {0:?}")]
    Addresses(String),
}

impl Plan {
    /// Checks that the plan has jobs, that there are not too many of them, and that names are unique.
    ///
    /// # Errors
    /// See [`BadPlan`].
    pub fn check(&self) -> Result<(), BadPlan> {
        unique("the workload", self.workloads.iter().map(|workload| workload.name.clone()).collect())?;
        unique("the policy", self.policies.clone())?;
        unique("the capacity", self.capacities.iter().map(ToString::to_string).collect())?;
        if self.workloads.iter().any(|workload| workload.seeds == 0) {
            return Err(BadPlan::Nothing("seeds"));
        }
        Addresses::named(&self.addresses).ok_or_else(|| BadPlan::Addresses(self.addresses.clone()))?;
        let cells = self.workloads.iter().try_fold(0_u64, |sum, workload| sum.checked_add(workload.seeds));
        let jobs = cells.and_then(|cells| cells.checked_mul(self.jobs_of_a_cell()));
        jobs.filter(|&jobs| jobs <= MOST_JOBS).map(|_| ()).ok_or(BadPlan::TooMany)
    }

    fn jobs_of_a_cell(&self) -> u64 {
        (self.policies.len() * self.capacities.len()) as u64
    }

    /// Returns the number of jobs. The plan must have passed [`Plan::check`]; if not, the number may overflow.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.workloads.iter().map(|workload| workload.seeds).sum::<u64>() * self.jobs_of_a_cell()
    }

    /// Returns the number of a job of this plan.
    #[must_use]
    pub fn number(&self, job: &Job) -> u64 {
        let before = self.workloads[..job.workload].iter().map(|workload| workload.seeds).sum::<u64>();
        let in_cell = (job.policy * self.capacities.len() + job.capacity) as u64;
        (before + job.seed - 1) * self.jobs_of_a_cell() + in_cell
    }

    /// Returns the job of this plan that is the same as a job of another plan; `None` if this plan does not have it.
    #[must_use]
    pub fn same_job(&self, other: &Plan, job: &Job) -> Option<Job> {
        let name = &other.workloads.get(job.workload)?.name;
        let workload = self.workloads.iter().position(|workload| workload.name == *name && job.seed <= workload.seeds)?;
        let policy = self.policies.iter().position(|policy| Some(policy) == other.policies.get(job.policy))?;
        let capacity = self.capacities.iter().position(|capacity| Some(capacity) == other.capacities.get(job.capacity))?;
        Some(Job { workload, seed: job.seed, policy, capacity })
    }

    /// Returns the job with this number, counted from 0; `None` beyond the last job. Jobs are ordered by workload, then seed,
    /// then policy, then capacity.
    #[must_use]
    pub fn job(&self, number: u64) -> Option<Job> {
        let in_cell = usize::try_from(number % self.jobs_of_a_cell().max(1)).ok()?;
        let mut cell = number.checked_div(self.jobs_of_a_cell())?;
        for (workload, planned) in self.workloads.iter().enumerate() {
            if cell < planned.seeds {
                let (policy, capacity) = (in_cell / self.capacities.len(), in_cell % self.capacities.len());
                return Some(Job { workload, seed: cell + 1, policy, capacity });
            }
            cell -= planned.seeds;
        }
        None
    }
}

fn unique(what: &'static str, mut names: Vec<String>) -> Result<(), BadPlan> {
    if names.is_empty() {
        return Err(BadPlan::Nothing(match what {
            "the workload" => "workloads",
            "the policy" => "policies",
            _ => "capacities",
        }));
    }
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(BadPlan::Twice { what, name: pair[0].clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use parkade_policies::{Named, named};

    use super::*;

    pub(in crate::study::sweep) fn policies() -> [Named; 2] {
        ["pytorch", "pytorch-expandable"].map(|name| named(name).expect("a policy"))
    }

    pub(in crate::study::sweep) fn plan() -> Plan {
        Plan {
            workloads: ["one", "two", "three"].map(|name| PlannedWorkload { name: name.into(), seeds: 2, hash: None }).into(),
            policies: policies().map(|policy| policy.name.into_owned()).into(),
            capacities: ["smallest", "plenty", "1.1"].map(|text| text.parse().expect("a capacity")).into(),
            addresses: "driver".into(),
            preallocate: None,
            precision: Precision::default(),
        }
    }

    #[test]
    fn jobs_are_numbered_by_workload_seed_policy_capacity() {
        let plan = plan();
        assert_eq!((plan.check(), plan.jobs()), (Ok(()), 3 * 2 * 2 * 3));
        let job = |number| plan.job(number).expect("a job");
        assert_eq!(job(0), Job { workload: 0, seed: 1, policy: 0, capacity: 0 });
        assert_eq!(job(5), Job { workload: 0, seed: 1, policy: 1, capacity: 2 });
        assert_eq!(job(6), Job { workload: 0, seed: 2, policy: 0, capacity: 0 });
        assert_eq!(job(35), Job { workload: 2, seed: 2, policy: 1, capacity: 2 });
        assert_eq!(plan.job(36), None);
        assert!((0..36).all(|number| plan.number(&job(number)) == number));
    }

    #[test]
    fn a_job_is_found_in_a_larger_plan() {
        let small = plan();
        let mut large = plan();
        large.policies.insert(0, "bfc".into());
        large.workloads.reverse();
        large.workloads[0].seeds = 5;
        let of = |number| small.job(number).and_then(|job| large.same_job(&small, &job));
        // Workload "one" is the last, after 5 + 2 seeds; its first policy is the second.
        assert_eq!(of(0).map(|job| large.number(&job)), Some((5 + 2) * 3 * 3 + 3));
        assert!((0..small.jobs()).all(|number| of(number).is_some()));
        let job = |number| large.job(number).expect("a job");
        assert_eq!(small.same_job(&large, &job(0)), None, "the policy is not in it");
        assert_eq!(small.same_job(&large, &job(2 * 9 + 3)), None, "nor is the seed");
    }

    #[test]
    fn plans_that_cannot_be_carried_out_say_why() {
        let bad = |change: fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            plan.check().expect_err("a bad plan").to_string()
        };
        assert!(bad(|plan| plan.workloads.clear()).contains("no workloads"));
        assert!(bad(|plan| plan.policies.clear()).contains("no policies"));
        assert!(bad(|plan| plan.capacities.clear()).contains("no capacities"));
        assert!(bad(|plan| plan.workloads[0].seeds = 0).contains("no seeds"));
        assert!(bad(|plan| plan.workloads[0].seeds = u64::MAX).contains("more than 1000000 jobs"));
        assert!(bad(|plan| plan.workloads[0].name = "two".into()).contains("\"two\" is given twice"));
        assert!(bad(|plan| plan.addresses = "up".into()).contains("no address model"));
    }

    #[test]
    fn capacities_are_written_as_they_are_read() {
        for (text, shown) in
            [("1", "1.0"), ("1.05", "1.05"), ("1.050", "1.05"), ("80B", "80B"), ("plenty", "plenty"), ("0.5", "0.5")]
        {
            let capacity: Capacity = text.parse().expect("a capacity");
            assert_eq!(capacity.to_string(), shown);
            assert_eq!(shown.parse(), Ok(capacity));
        }
        for text in ["", "0", "0.0", "0B", "-1", "1e3", "1001", "1.0000001", "most", "B", "99999", ".5"] {
            assert!(text.parse::<Capacity>().is_err(), "{text:?}");
        }
        assert_eq!(
            "1/4096".parse::<Precision>().map(|precision| (precision.parts(), precision.to_string())),
            Ok((4096, "1/4096".into()))
        );
        for text in ["", "4096", "1/0", "1/", "2/256", "1/+4", "1/1000001", "1/99999999999999999999"] {
            assert!(text.parse::<Precision>().is_err(), "{text:?}");
        }
        assert_eq!("1.1".parse::<Share>().expect("a factor").of(10), 11);
        assert_eq!("1.1".parse::<Share>().expect("a factor").of(11), 13, "rounded up");
    }
}
