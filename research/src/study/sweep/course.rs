//! What the driver does over the course of a program: for each step, in the later half, and waiting.

use super::levels::{Level, over_all, plain_over_all};
use super::row::Row;

/// The driver's work over the course of one workload, in one memory. Arithmetic means over the seeds, since a value may
/// be 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Course {
    /// Driver calls for each step; `None` if the workload's steps are not known.
    pub calls_per_step: Option<Level>,
    /// Their cost for each step, in nanoseconds.
    pub ns_per_step: Option<Level>,
    /// Driver calls for each step of the later half; `None` if the workload has fewer than two steps.
    pub later_calls_per_step: Option<Level>,
    /// Their cost for each step of the later half, in nanoseconds.
    pub later_ns_per_step: Option<Level>,
    /// The share of the calls' cost that falls into the later half: 0 for a policy that is slow only in the beginning,
    /// about a half for one that is always slow. `None` if the calls cost nothing.
    pub later_share: Option<Level>,
    /// How long driver calls waited for work on the device, in nanoseconds; `None` if the workload does not say how long
    /// its work takes.
    pub waited_ns: Option<Level>,
    /// The driver calls that return only when work on the device is done.
    pub waiting_calls: Level,
}

/// The driver's work over the course of the workloads that fit in one memory.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CourseOfAll {
    /// Driver calls for each step: the geometric mean over the workloads whose steps are known.
    pub calls_per_step: Option<Level>,
    /// Their cost for each step, in nanoseconds, likewise.
    pub ns_per_step: Option<Level>,
    /// The share of the calls' cost that falls into the later half: the arithmetic mean.
    pub later_share: Option<Level>,
    /// How long driver calls waited, in nanoseconds: the arithmetic mean over the workloads that say how long their
    /// work takes.
    pub waited_ns: Option<Level>,
    /// The driver calls that return only when work on the device is done: the arithmetic mean.
    pub waiting_calls: Option<Level>,
}

impl Course {
    /// From the rows of all seeds; `None` if there are none or the workload does not fit with some seed.
    pub(super) fn of(rows: &[&Row]) -> Option<Course> {
        let over = |value: fn(&Row) -> Option<f64>| -> Option<Level> {
            plain_over_all(&rows.iter().map(|row| value(row)).collect::<Option<Vec<_>>>()?)
        };
        if rows.iter().any(|row| !row.fits) {
            return None;
        }
        Some(Course {
            calls_per_step: over(|row| quotient(row.driver_calls, row.steps)),
            ns_per_step: over(|row| quotient(row.driver_ns, row.steps)),
            later_calls_per_step: over(|row| quotient(row.later_driver_calls, row.later_steps)),
            later_ns_per_step: over(|row| quotient(row.later_driver_ns, row.later_steps)),
            later_share: over(|row| quotient(row.later_driver_ns, row.driver_ns)),
            waited_ns: over(|row| (row.work_ns > 0).then_some(row.waited_ns as f64)),
            waiting_calls: over(|row| Some(row.waiting_calls as f64))?,
        })
    }
}

impl CourseOfAll {
    /// From the courses of workloads.
    pub(super) fn of(courses: &[Course]) -> CourseOfAll {
        let means = |value: fn(&Course) -> Option<Level>| -> Vec<f64> {
            courses.iter().filter_map(value).map(|level| level.mean).collect()
        };
        CourseOfAll {
            calls_per_step: over_all(&means(|course| course.calls_per_step)),
            ns_per_step: over_all(&means(|course| course.ns_per_step)),
            later_share: plain_over_all(&means(|course| course.later_share)),
            waited_ns: plain_over_all(&means(|course| course.waited_ns)),
            waiting_calls: plain_over_all(&means(|course| Some(course.waiting_calls))),
        }
    }
}

fn quotient(amount: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| amount as f64 / of as f64)
}
