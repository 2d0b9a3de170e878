use super::*;

#[tokio::test(start_paused = true)]
async fn processes_are_listed_again_until_the_engine_reports_them() {
    let cell = OnceCell::new();
    let asked = Cell::new(0);
    let find = || {
        asked.set(asked.get() + 1);
        std::future::ready((asked.get() == 10).then_some("found"))
    };
    find_until_found(&cell, find).await;
    assert_eq!((cell.get(), asked.get()), (Some(&"found"), 10));
    // Once they are found, the engine is not asked again.
    find_until_found(&cell, find).await;
    assert_eq!(asked.get(), 10);
}

#[test]
fn programs_are_killed_only_if_every_run_is_being_ended() {
    let runs = Runs::new(true);
    let most = DiskUsage { bytes: 50 << 20, entries: 10 };
    let begin = || runs.begin(Bounds::new(DiskUsage::default(), most));
    let (one, other) = (begin(), begin());
    one.set_ending();
    assert!(!runs.are_all_ending());
    other.end();
    assert!(runs.are_all_ending());
    // A run that has started since goes on, and an ended one does not count.
    let later = begin();
    assert!(!runs.are_all_ending());
    drop(later);
    assert!(runs.are_all_ending());
}
