//! The subjects of a receipt, and how files differ from them.

use std::collections::BTreeMap;

use sandbox_api::artifacts::{Artifact, CheckDifference, PathDifference};
use sandbox_api::changes::{ChangeManifest, ChangeOp, ChangeType};
use sandbox_api::receipt::{Receipt, Subject};

/// The artifacts as subjects.
pub fn files(artifacts: &[Artifact]) -> Vec<Subject> {
    artifacts.iter().map(|file| Subject::file(file.path(), file.sha256.clone())).collect()
}

/// The files that a run created or changed, as subjects.
#[must_use]
pub fn changed_files(manifest: &ChangeManifest) -> Vec<Subject> {
    let files = manifest.changes.iter().filter(|it| {
        it.kind == ChangeType::File && matches!(it.op, ChangeOp::Created | ChangeOp::Modified)
    });
    let subjects = files.filter_map(|it| {
        let path = it.path_b64.as_ref().map_or(it.path.as_bytes(), |path| &path.0);
        Some(Subject::file(path, it.sha256.clone()?))
    });
    subjects.collect()
}

/// How files differ from a receipt's, sorted by path.
#[must_use]
pub fn differences(receipt: &Receipt, found: &[Subject]) -> Vec<PathDifference<CheckDifference>> {
    let by_path = |subjects: &[Subject]| -> BTreeMap<Vec<u8>, String> {
        let files = subjects.iter().filter_map(|it| Some((it.path()?, it)));
        files.map(|(path, it)| (path.to_vec(), it.digest.sha256.clone())).collect()
    };
    let (expected, mut found) = (by_path(&receipt.subject), by_path(found));
    let mut differences = Vec::new();
    for (path, digest) in &expected {
        match found.remove(path) {
            None => differences.push(PathDifference::new(path, CheckDifference::Missing)),
            Some(other) if other != *digest => {
                differences.push(PathDifference::new(path, CheckDifference::Changed));
            }
            Some(_) => {}
        }
    }
    let unexpected = |path: &Vec<u8>| PathDifference::new(path, CheckDifference::Unexpected);
    differences.extend(found.keys().map(unexpected));
    differences.sort_by(|one, other| one.path().cmp(other.path()));
    differences
}
