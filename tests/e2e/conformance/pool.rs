//! The warm pool: sandboxes that are started ahead, each for one launch.

use std::time::Duration;

use sandbox_api::{Limits, Outcome, SandboxSpec, Script, StartKind};
use sandbox_controller::{PoolConfig, Sandbox};

use crate::ENGINE;
use crate::library::Library;
use crate::place::{Place, eventually, files_below};

fn spec() -> SandboxSpec {
    SandboxSpec::new().fresh_io_dir()
}

/// A library whose pool has this many sandboxes.
fn pooled(place: &Place, size: usize) -> Library {
    let library = Library::new(place);
    let controller = library.controller();
    library.wait(async {
        controller.pool(PoolConfig { size, ..PoolConfig::default() });
        controller.prewarm(spec()).await.unwrap();
        controller.pool_settled().await;
    });
    library
}

fn start(sandbox: &Sandbox) -> StartKind {
    sandbox.launch_info().start
}

fn run(library: &Library, sandbox: &Sandbox, source: &str) -> String {
    let run = library.wait(sandbox.run(Script::new(source))).unwrap();
    match &run.outcome {
        Outcome::Ok { result } => result.get().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_parked_sandbox_serves_one_launch_with_files_and_limits_of_its_own() {
    let place = Place::new();
    let library = pooled(&place, 2);
    assert_eq!(place.containers().len(), 2);
    let mut seen = Vec::new();
    for round in 0..4 {
        let limits = Limits { timeout: Duration::from_secs(20 + round), ..Limits::default() };
        let sandbox = library.launch(spec().limits(limits));
        assert_eq!(start(&sandbox), StartKind::Warm);
        let files = "local n = #fs.list('.') fs.write('mark', 'x') return n";
        assert_eq!(run(&library, &sandbox, files), "0", "it has what another left");
        let result = library.wait(sandbox.run(Script::new("return 1"))).unwrap();
        assert_eq!(result.limits, limits);
        seen.push(sandbox.container_id().to_owned());
        library.wait(sandbox.close()).unwrap();
        library.wait(library.controller().pool_settled());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4);
    let stats = library.controller().pool_stats().unwrap();
    assert_eq!((stats.hits, stats.misses, stats.parked), (4, 0, 2));
    // Closed with two that nobody claimed: the place is clean.
}

#[test]
fn parked_sandboxes_of_a_killed_program_are_removed_by_the_next() {
    let place = Place::new();
    place.expect_a_dead_instance();
    let mut command = place.command(["tools", "--stdio", "--pool", "2"]);
    command.stdin(std::process::Stdio::piped());
    let mut child = crate::place::spawn(command);
    eventually("two are parked", || (place.containers().len() == 2).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("nothing is left", || {
        place.sandboxctl(["gc"]).assert_code(0);
        (place.containers().is_empty() && ENGINE.remains(&place).is_empty()).then_some(())
    });
    assert_eq!(files_below(&place.scratch()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn kept_io_dir_of_a_parked_sandbox_outlives_it() {
    let place = Place::new();
    let library = pooled(&place, 1);
    let sandbox = library.launch(spec());
    assert_eq!(start(&sandbox), StartKind::Warm);
    run(&library, &sandbox, "fs.write('out.csv', 'a,b') return 1");
    // The library's scratch directory is below its state.
    let kept = place.state().join("kept");
    sandbox.keep_io_dir(&kept).unwrap();
    assert_eq!(run(&library, &sandbox, "return fs.read('out.csv')"), "\"a,b\"");
    library.wait(sandbox.close()).unwrap();
    assert_eq!(std::fs::read_to_string(kept.join("out.csv")).unwrap(), "a,b");
    std::fs::remove_dir_all(kept).unwrap();
}
