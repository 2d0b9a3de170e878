//! The subjects of a receipt, and how files differ from them.

use std::collections::BTreeMap;

use sandbox_api::artifacts::{Artifact, CheckDifference, PathDifference};
use sandbox_api::changes::{ChangeManifest, ChangeOp, ChangeType};
use sandbox_api::receipt::{Dependency, Provenance, Receipt, Subject};

/// The artifacts as subjects.
pub fn files(artifacts: &[Artifact]) -> Vec<Subject> {
    artifacts.iter().map(|file| Subject::file(file.path(), file.sha256.clone())).collect()
}

/// The files that a run created or changed, as subjects.
pub fn changed_files(manifest: &ChangeManifest) -> Vec<Subject> {
    let files = manifest.changes.iter().filter(|it| {
        it.kind == ChangeType::File && matches!(it.op, ChangeOp::Created | ChangeOp::Modified)
    });
    let subjects = files.filter_map(|it| {
        let path = it.path.as_bytes();
        Some(Subject::file(path, it.sha256.clone()?))
    });
    subjects.collect()
}

/// The path of a file, and its digest; without one it is no regular file.
pub type FoundFile = (Vec<u8>, Option<String>);

/// How files differ from a receipt's, sorted by path.
pub fn differences(
    receipt: &Receipt,
    found: impl IntoIterator<Item = FoundFile>,
) -> Vec<PathDifference<CheckDifference>> {
    let files = receipt.subject.iter();
    compare(files.filter_map(|it| Some((it.path()?, &*it.digest.sha256))), found)
}

/// How what a run is made of differs from a receipt's dependencies, sorted by name. Without the agent, which
/// is a version's, and the image, which the engine knows.
#[must_use]
pub fn material_differences(
    predicate: &Provenance,
    found: impl IntoIterator<Item = (String, String)>,
) -> Vec<PathDifference<CheckDifference>> {
    let all = predicate.build_definition.resolved_dependencies.iter();
    let compared = all.filter(|it| ![Dependency::AGENT, Dependency::IMAGE].contains(&&*it.name));
    let compared = compared.map(|it| (it.name.as_bytes(), &*it.digest.sha256));
    compare(compared, found.into_iter().map(|(name, digest)| (name.into_bytes(), Some(digest))))
}

fn compare<'a>(
    expected: impl Iterator<Item = (&'a [u8], &'a str)>,
    found: impl IntoIterator<Item = FoundFile>,
) -> Vec<PathDifference<CheckDifference>> {
    let mut found: BTreeMap<Vec<u8>, Option<String>> = found.into_iter().collect();
    let mut differences = Vec::new();
    for (path, expected) in expected {
        let (change, actual) = match found.remove(path) {
            None => (CheckDifference::Missing, None),
            Some(Some(digest)) if digest == expected => continue,
            Some(digest) => (CheckDifference::Changed, digest),
        };
        let difference = PathDifference::new(path, change);
        differences.push(difference.with_digests(Some(expected), actual.as_deref()));
    }
    let unexpected = |(path, digest): (&Vec<u8>, &Option<String>)| {
        let difference = PathDifference::new(path, CheckDifference::Unexpected);
        difference.with_digests(None, digest.as_deref())
    };
    differences.extend(found.iter().map(unexpected));
    differences.sort_by(|one, other| one.path().cmp(other.path()));
    differences
}

/// The files among subjects, with their digests.
pub fn digests(subjects: Vec<Subject>) -> Vec<FoundFile> {
    let file = |it: Subject| Some((it.path()?.to_vec(), Some(it.digest.sha256.clone())));
    subjects.into_iter().filter_map(file).collect()
}
