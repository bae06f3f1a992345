//! What is known of a recorded run beside its recording.

use super::replay_settings::ReplaySettings;
use super::stats_file::StatsFile;

/// How to verify.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The settings to replay under.
    pub settings: ReplaySettings,
    /// The memory limit of the run, which a recording does not contain.
    pub limit_bytes: Option<u64>,
    /// The statistics at the end of the run, to compare with.
    pub stats_file: Option<StatsFile>,
}
