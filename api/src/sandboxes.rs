//! Lists of sandboxes, and the removal of leftovers.

use std::fmt;
use std::time::SystemTime;

use sandbox_dirfd::is_random_hex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::unix_seconds;
use crate::{EngineKind, ProgramImage};

/// The state of a sandbox's container and its controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// Its controller is alive.
    Running,
    /// Its controller is dead, or its maximum lifetime is over: to be removed.
    Leftover,
    /// Whether its controller is alive is unknown: it is another user's, or on another machine.
    Unknown,
}

/// The bytes of the id of a kept sandbox, which is in hexadecimal.
const KEPT_ID_BYTES: usize = 12;

/// The id of one of the containers of a kept sandbox, `ID-gN`: they come and go, each with a number of its
/// own, and the sandbox's id stays.
pub fn generation_id(sandbox: &str, generation: u64) -> String {
    format!("{sandbox}-g{generation}")
}

/// The sandbox's id, and the number of its container, if this is a [`generation_id`].
pub fn generation_of(id: &str) -> Option<(&str, u64)> {
    let (sandbox, number) = id.split_once("-g")?;
    let generation: u64 = number.parse().ok()?;
    let is_one =
        is_random_hex::<KEPT_ID_BYTES>(sandbox) && generation_id(sandbox, generation) == id;
    is_one.then_some((sandbox, generation))
}

/// A sandbox's container, as `ps` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxSummary {
    /// The sandbox's id.
    pub id: String,
    /// Which of the containers of a kept sandbox it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The kind of engine that has its container.
    pub engine: EngineKind,
    /// The engine's id of the container.
    pub container: String,
    /// The id of the controller that created it.
    pub instance: String,
    /// Its state.
    pub state: SandboxState,
    /// When it was created, in seconds since 1970.
    #[serde(with = "unix_seconds")]
    #[schemars(with = "u64")]
    pub created: SystemTime,
    /// When its maximum lifetime ends, in seconds since 1970.
    #[serde(with = "unix_seconds")]
    #[schemars(with = "u64")]
    pub expires: SystemTime,
    /// The name that was given to its container.
    pub name: Option<String>,
    /// What it was made for: [`SandboxSpec::title`](crate::SandboxSpec::title).
    pub title: Option<String>,
    /// What programs run in, if they can: an image, or a path.
    pub image: Option<String>,
    /// The io dir on the host; `None` if it has none, or a private one.
    pub io_dir: Option<String>,
}

/// Options of `gc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcOptions {
    /// Whether to remove anything.
    pub mode: GcMode,
    /// What to remove.
    pub force: Force,
    /// Which stores of programs to remove.
    pub stores: Stores,
}

/// Whether to remove anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GcMode {
    /// Only report what would be removed.
    DryRun,
    /// Remove.
    #[default]
    Remove,
}

/// What to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Force {
    /// Leftovers only.
    #[default]
    No,
    /// Leftovers, and containers of unknown state.
    Yes,
}

/// Which stores of programs to remove. What runs is not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stores {
    /// Those of other versions.
    #[default]
    OtherVersions,
    /// This version's too: the next sandbox makes it again.
    All,
}

/// What `gc` did, or would do.
#[derive(Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GcReport {
    /// What was removed, or would be removed.
    pub removed: Vec<SandboxSummary>,
    /// What was kept.
    pub kept: Vec<SandboxSummary>,
    /// What could not be removed, and why.
    pub failed: Vec<GcFailure>,
    /// Unpacked image archives, unused for 30 days, that were removed, or would be removed.
    pub archives_removed: Vec<ProgramImage>,
    /// The other unpacked image archives.
    pub archives_kept: Vec<ProgramImage>,
    /// Stages of dead controllers whose commits were completed, or would be.
    pub commits_completed: Vec<LeftStage>,
    /// What they were completed without.
    pub commit_conflicts: Vec<CommitConflicts>,
    /// Stages of dead controllers that were removed, or would be: their io dirs are as they were.
    pub stages_removed: Vec<LeftStage>,
    /// Stages of dead controllers that are left.
    pub stages_kept: Vec<LeftStage>,
    /// The paths of the stores of programs that were removed, or would be.
    pub stores_removed: Vec<String>,
}

/// What a dead controller left of a staged io dir.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftStage {
    /// The path of the stage.
    pub path: String,
    /// The io dir.
    pub io_dir: String,
    /// Whether its commit was begun, so that it must be completed.
    #[serde(rename = "interrupted")]
    pub is_interrupted: bool,
    /// Of an interrupted commit: the stage or the io dir, if it is not at its path. The commit is
    /// completed once it is back.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Of an interrupted commit: what cannot be moved because something is mounted there. The commit is
    /// completed once it is unmounted.
    #[serde(default)]
    pub blocked: SomePaths,
    /// The file that records it. Without it an interrupted commit is dropped.
    pub record: String,
}

impl LeftStage {
    /// What to do about a commit that cannot be completed, if anything.
    pub fn advice(&self) -> Option<String> {
        let Self { path, io_dir, blocked, record, .. } = self;
        let missing = self.missing.join(" and ");
        let problem = match (missing.is_empty(), blocked.first.is_empty()) {
            (false, _) => {
                format!("needs {missing}, which is not there, or another one: move it back")
            }
            (true, false) => format!("cannot change {blocked}: unmount what is mounted there"),
            (true, true) => return None,
        };
        Some(format!(
            "the interrupted commit to {io_dir} {problem} and run `sandboxctl gc`; to give the commit \
             up, delete {record} and {path}"
        ))
    }
}

/// What an interrupted commit was completed without, because something else had changed it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommitConflicts {
    /// The io dir.
    pub io_dir: String,
    /// What is in it as something else left it.
    pub paths: SomePaths,
}

impl fmt::Display for CommitConflicts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { io_dir, paths } = self;
        write!(
            formatter,
            "the interrupted commit to {io_dir} was completed without {paths}: something else \
             changed that meanwhile"
        )
    }
}

/// Paths in an io dir, of which there may be many.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SomePaths {
    /// At most 10, relative to the io dir; lossy where they are not UTF-8.
    pub first: Vec<String>,
    /// How many more there are.
    pub more: usize,
}

impl SomePaths {
    /// The first of these, and the number of the others.
    pub fn of(paths: &[Vec<u8>]) -> Self {
        let first = paths.iter().take(10).map(|path| String::from_utf8_lossy(path).into_owned());
        let first: Vec<_> = first.collect();
        Self { more: paths.len() - first.len(), first }
    }
}

impl fmt::Display for SomePaths {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.first.join(", "))?;
        match self.more {
            0 => Ok(()),
            more => write!(formatter, " and {more} more"),
        }
    }
}

/// A container that could not be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GcFailure {
    /// The sandbox.
    pub sandbox: SandboxSummary,
    /// The reason.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_of_a_kept_sandbox_is_known_by_its_id() {
        let id = "0123456789abcdef01234567";
        assert_eq!(generation_of(&generation_id(id, 12)), Some((id, 12)));
        for other in [
            "",
            id,
            "0123456789abcdef-g1",
            &format!("{id}-g"),
            &format!("{id}-g01"),
            &format!("{id}-g+1"),
        ] {
            assert_eq!(generation_of(other), None, "{other}");
        }
    }

    #[test]
    fn gc_report_reads_back_as_written() {
        let sandbox = SandboxSummary {
            id: "s".to_owned(),
            generation: None,
            engine: EngineKind::Embedded,
            container: "c".to_owned(),
            instance: "i".to_owned(),
            state: SandboxState::Leftover,
            created: SystemTime::UNIX_EPOCH,
            expires: SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(3600),
            name: Some("n".to_owned()),
            title: None,
            image: Some("debian".to_owned()),
            io_dir: None,
        };
        let failed = GcFailure { sandbox: sandbox.clone(), reason: "busy".to_owned() };
        let archive = ProgramImage {
            id: "1-abc".to_owned(),
            engine: EngineKind::Embedded,
            names: Vec::new(),
            since: SystemTime::UNIX_EPOCH,
            size: 7,
        };
        let report = GcReport {
            removed: vec![sandbox],
            kept: Vec::new(),
            failed: vec![failed],
            archives_removed: vec![archive],
            archives_kept: Vec::new(),
            commits_completed: Vec::new(),
            commit_conflicts: vec![CommitConflicts {
                io_dir: "/d/io".to_owned(),
                paths: SomePaths::of(&vec![b"f".to_vec(); 12]),
            }],
            stages_removed: vec![LeftStage {
                path: "/d/.sandboxctl-stage-0".to_owned(),
                io_dir: "/d/io".to_owned(),
                is_interrupted: false,
                missing: Vec::new(),
                blocked: SomePaths::default(),
                record: "/s/stages/0".to_owned(),
            }],
            stages_kept: Vec::new(),
            stores_removed: vec!["/run/sandboxctl/programs/0".to_owned()],
        };
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<GcReport>(&json).unwrap(), report, "{json}");
        let text = report.commit_conflicts[0].to_string();
        assert!(text.contains("without f, f, f, f, f, f, f, f, f, f and 2 more:"), "{text}");
    }
}
