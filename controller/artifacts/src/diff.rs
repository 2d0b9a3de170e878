//! The difference between two artifacts directories.

use std::collections::BTreeMap;

use sandbox_api::artifacts::{Artifact, ArtifactsDiff, DiffChange, PathDifference};

use crate::verify::Compare;
use crate::{ArtifactsDir, ContinueFn, Error};

/// Compares what two directories contain. Each must be as its manifest says.
///
/// # Errors
///
/// If one is not, if something cannot be read, or it was cancelled.
pub fn diff(
    one: &ArtifactsDir,
    other: &ArtifactsDir,
    proceed: ContinueFn<'_>,
) -> Result<ArtifactsDiff, Error> {
    for dir in [one, other] {
        dir.require(Compare::Content, proceed)?;
    }
    Ok(ArtifactsDiff { differences: differences(&one.manifest.files, &other.manifest.files) })
}

fn differences(old: &[Artifact], new: &[Artifact]) -> Vec<PathDifference<DiffChange>> {
    let mut all: BTreeMap<&[u8], [Option<&Artifact>; 2]> = BTreeMap::new();
    for (side, files) in [old, new].into_iter().enumerate() {
        for file in files {
            all.entry(file.path()).or_default()[side] = Some(file);
        }
    }
    let changes = all.into_iter().filter_map(|(path, sides)| {
        let change = match sides {
            [None, _] => DiffChange::Added,
            [_, None] => DiffChange::Removed,
            [Some(old), Some(new)] => {
                let content = |file: &Artifact| (file.bytes, file.sha256.clone(), file.mode);
                (content(old) != content(new)).then_some(DiffChange::Changed)?
            }
        };
        Some(PathDifference::new(path, change))
    });
    changes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::tests::Fixture;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn added_removed_and_changed_files_are_found() {
        let place = Fixture::new();
        for name in ["same", "gone", "content", "mode"] {
            place.file(name, "1");
        }
        place.collect(&["**"], "one").unwrap();
        fs::remove_file(place.at("io/gone")).unwrap();
        place.file("content", "2");
        place.file("new", "1");
        fs::set_permissions(place.at("io/mode"), Permissions::from_mode(0o755)).unwrap();
        place.collect(&["**"], "other").unwrap();
        let dir = |name: &str| ArtifactsDir::open(&place.at(name)).unwrap();
        let found = diff(&dir("one"), &dir("other"), &|| true).unwrap().differences;
        let found: Vec<_> = found.iter().map(|it| (&*it.path, it.change)).collect();
        let expected = [
            ("content", DiffChange::Changed),
            ("gone", DiffChange::Removed),
            ("mode", DiffChange::Changed),
            ("new", DiffChange::Added),
        ];
        assert_eq!(found, expected);
        assert_eq!(diff(&dir("one"), &dir("one"), &|| true).unwrap().differences, []);
        fs::write(place.at("other/new"), "3").unwrap();
        let error = diff(&dir("one"), &dir("other"), &|| true).unwrap_err().to_string();
        assert!(error.ends_with("differs from its manifest: changed 'new'"), "{error}");
    }
}
