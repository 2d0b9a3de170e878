//! What dead controllers left of stages, by their records.

use std::fs;
use std::path::Path;

use sandbox_api::LeftStage;

use crate::journal;
use crate::stage::Recorded;

/// The stages that one controller recorded and did not remove. For when it is dead.
#[must_use]
pub fn leftovers(records: &Path) -> Vec<LeftStage> {
    let records = fs::read_dir(records).into_iter().flatten().flatten();
    let stages = records.filter_map(|entry| {
        let Recorded { path, io_path, .. } =
            serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Some(LeftStage {
            is_interrupted: path.join(journal::NAME).symlink_metadata().is_ok(),
            path: text(&path),
            io_dir: text(&io_path),
        })
    });
    stages.collect()
}
