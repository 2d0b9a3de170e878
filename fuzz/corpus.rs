//! The corpora of the fuzz targets, for the tests that replay them.

/// Calls `hold` with every file of a target's corpus; names the file where it panics.
#[track_caller]
pub fn replay(target: &str, hold: impl Fn(&[u8])) {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("fuzz/corpus"))
        .find(|corpus| corpus.is_dir())
        .expect("the crate lies in the workspace")
        .join(target);
    let entries = std::fs::read_dir(&corpus).expect("the target has a corpus");
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 3, "{} has no seeds", corpus.display());
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        // Shown where the test fails.
        println!("{}", file.display());
        hold(&bytes);
    }
}
