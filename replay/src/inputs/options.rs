//! What the caller knows of a recorded run.

use super::replay_settings::ReplaySettings;
use super::stats_file::StatsFile;

/// How the recorded run was made, and its stats if they are to be compared.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The settings of the run.
    pub settings: ReplaySettings,
    /// The memory limit of the run in bytes, which a recording does not contain.
    pub limit_bytes: Option<u64>,
    /// The stats at the end of the run, to compare with.
    pub stats_file: Option<StatsFile>,
}
