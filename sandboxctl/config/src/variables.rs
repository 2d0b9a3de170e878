//! The environment variables that are no settings.

/// The path of the configuration file, like `--config`.
pub const FILE_VARIABLE: &str = "SANDBOXCTL_CONFIG";
/// The trace filter for stderr, in the syntax of `tracing`'s filters.
pub const LOG_VARIABLE: &str = "SANDBOXCTL_LOG";
/// The address of a service, like `--server`. No file sets it: a project's would send scripts and
/// secrets elsewhere.
pub const SERVER_VARIABLE: &str = "SANDBOXCTL_SERVER";
/// The token that the service is shown.
pub const TOKEN_VARIABLE: &str = "SANDBOXCTL_TOKEN";
/// The certificates that are trusted of it, like `--ca-file`.
pub const CA_VARIABLE: &str = "SANDBOXCTL_CA_FILE";
/// The password of the database of a cluster. No setting: these are printed.
pub const DATABASE_PASSWORD_VARIABLE: &str = "SANDBOXCTL_DATABASE_PASSWORD";
/// The program that client libraries start; it says nothing to the program itself.
const BINARY_VARIABLE: &str = "SANDBOXCTL_BINARY";
/// The variables that are no settings.
pub const OTHER_VARIABLES: [&str; 7] = [
    BINARY_VARIABLE, CA_VARIABLE, DATABASE_PASSWORD_VARIABLE, FILE_VARIABLE, LOG_VARIABLE,
    SERVER_VARIABLE, TOKEN_VARIABLE,
];

/// The files that a runner of GitHub's reads after a step, by their variables.
pub const RUNNER_FILES: [&str; 5] =
    [STEP_SUMMARY, STEP_OUTPUTS, "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE"];
/// The summary of a step.
pub const STEP_SUMMARY: &str = "GITHUB_STEP_SUMMARY";
/// The outputs of a step.
pub const STEP_OUTPUTS: &str = "GITHUB_OUTPUT";
