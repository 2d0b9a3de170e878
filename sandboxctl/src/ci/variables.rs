//! The variables of the runners.

/// The variables with the files that GitHub's runner reads after a step.
pub const FILE_VARIABLES: [&str; 5] =
    [SUMMARY, OUTPUTS, "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE"];

pub const SUMMARY: &str = "GITHUB_STEP_SUMMARY";
pub const OUTPUTS: &str = "GITHUB_OUTPUT";
