//! Processes of kept sandboxes, and sandboxes that are paused.

use bytes::Bytes;
use sandbox_api::service::{
    CommandRequest, IdleAction, KeptSpec, SandboxPatch, SandboxStatus, SandboxView,
};
use sandbox_api::{
    ProcessRequest, ProcessState, ProcessView, Processes, PtyRequest, ReadFrom, ReadMode,
    SignalName, SignalRequest, SignalTarget, TerminalSize,
};

use super::*;
use crate::sandboxes::registry::DueAction;
use crate::{ProcessFilter, SandboxQuery};

const NOW: Duration = Duration::ZERO;

fn images(config: &mut ServiceConfig) {
    config.allowed_images = vec!["debian:*".to_owned()];
}

fn keeping() -> SandboxRequest {
    let spec = KeptSpec {
        image: Some("debian:13".to_owned()),
        processes: Processes::Kept,
        ..KeptSpec::default()
    };
    SandboxRequest { spec, ..SandboxRequest::default() }
}

fn line(line: &str) -> ProcessRequest {
    let command = CommandRequest { shell: Some(line.into()), ..CommandRequest::default() };
    ProcessRequest { command, ..ProcessRequest::default() }
}

fn kind(error: &ServiceError) -> ProblemKind {
    error.problem().kind
}

impl World {
    fn sandbox(&self, request: SandboxRequest) -> String {
        self.block_on(self.service().create_sandbox(me(), request)).unwrap().sandbox.id
    }

    fn sandbox_view(&self, id: &str) -> SandboxView {
        self.block_on(self.service().sandbox(me(), id)).unwrap()
    }

    /// What is done about it next, if it is not used.
    fn due(&self, id: &str) -> Option<DueAction> {
        let kept = self.service().core.kept.find(me(), id).unwrap();
        kept.due().map(|(_, action)| action)
    }

    fn start_process(
        &self,
        id: &str,
        request: ProcessRequest,
    ) -> Result<ProcessView, ServiceError> {
        let sandbox = of_sandbox(id, None);
        let started = self.service().start_process(me(), &sandbox, request, None);
        self.block_on(started).map(|it| it.value)
    }

    fn stop(&self, id: &str, process: u32, wait: Duration) -> ProcessView {
        let sandbox = of_sandbox(id, None);
        let stopped = self.service().stop_process(me(), &sandbox, process, wait);
        self.block_on(stopped).unwrap().value
    }

    fn list(&self, id: &str, generation: Option<u64>, filter: ProcessFilter) -> Vec<u32> {
        let sandbox = of_sandbox(id, generation);
        let list = self.block_on(self.service().processes(me(), &sandbox, filter)).unwrap();
        list.value.processes.into_iter().map(|process| process.id).collect()
    }

    fn process(
        &self,
        id: &str,
        generation: Option<u64>,
        process: u32,
        wait: Duration,
    ) -> Result<ProcessView, ServiceError> {
        let sandbox = of_sandbox(id, generation);
        let found = self.block_on(self.service().process(me(), &sandbox, process, wait));
        found.map(|it| it.value)
    }

    fn write(&self, id: &str, process: u32, text: &'static str) -> Result<(), ServiceError> {
        let (sandbox, bytes) = (of_sandbox(id, None), Bytes::from_static(text.as_bytes()));
        self.block_on(self.service().write_process_stdin(me(), &sandbox, process, bytes))
    }

    fn process_events(&self, id: &str, process: u32, from: ReadFrom) -> Vec<(u64, &'static str)> {
        self.block_on(async {
            let sandbox = of_sandbox(id, None);
            let reading =
                self.service().process_events(me(), &sandbox, process, from, ReadMode::Wait);
            let events = reading.await.unwrap();
            events.map(|event| event.unwrap()).map(|it| (it.seq, it.event.name())).collect().await
        })
    }
}

#[test]
fn process_is_started_written_to_read_and_stopped() {
    let world = World::with(images);
    let id = world.sandbox(keeping());
    let request = ProcessRequest { stdin: true, tag: Some("echo".to_owned()), ..line("cat") };
    let cat = world.start_process(&id, request).unwrap();
    assert_eq!((cat.id, cat.generation, cat.state), (1, 1, ProcessState::Running));
    world.write(&id, 1, "a").unwrap();
    let other = world.start_process(&id, line("echo a b")).unwrap();
    // Its end is noticed a moment later.
    world.until_true(|| world.sandbox_view(&id).processes == Some(1));
    let all = [(1, "start"), (2, "output"), (3, "output"), (4, "exit"), (5, "end")];
    for after in 0..=5 {
        let read = world.process_events(&id, other.id, ReadFrom::After(after));
        assert_eq!(read, all[after as usize..], "{after}");
    }
    let list = |filter: ProcessFilter| world.list(&id, None, filter);
    assert_eq!(list(ProcessFilter::default()), [2, 1]);
    let running = Some(ProcessState::Running);
    assert_eq!(list(ProcessFilter { state: running, tag: None }), [1]);
    assert_eq!(list(ProcessFilter { state: None, tag: Some("echo".to_owned()) }), [1]);
    // A wait for its end ends when its stdin is closed.
    let (service, of) = (world.service().clone(), of_sandbox(&id, None));
    let waiting = world.spawn(async move { service.process(me(), &of, 1, TEST_TIMEOUT).await });
    let sandbox = of_sandbox(&id, None);
    world.block_on(world.service().close_process_stdin(me(), &sandbox, 1)).unwrap();
    let ended = world.block_on(waiting).unwrap().unwrap().value;
    assert_eq!((ended.state, ended.exit_code), (ProcessState::Ended, Some(0)));
    assert_eq!(kind(&world.write(&id, 1, "b").unwrap_err()), ProblemKind::ProcessEnded);
    // What is asked of the kernel.
    let sleep = world.start_process(&id, line("sleep 60")).unwrap().id;
    assert_eq!(kind(&world.write(&id, sleep, "b").unwrap_err()), ProblemKind::NoStdin);
    let signal = |process, signal| {
        let request = SignalRequest { signal, to: SignalTarget::Tree };
        world.block_on(world.service().signal_process(me(), &sandbox, process, request))
    };
    signal(sleep, SignalName::Winch).unwrap();
    signal(sleep, SignalName::Usr1).unwrap();
    assert_eq!(world.process(&id, None, sleep, NOW).unwrap().signal, Some(10));
    assert_eq!(kind(&signal(sleep, SignalName::Kill).unwrap_err()), ProblemKind::ProcessEnded);
    assert_eq!(kind(&signal(77, SignalName::Kill).unwrap_err()), ProblemKind::NotFound);
    let sleep = world.start_process(&id, line("sleep 60")).unwrap().id;
    let stopped = world.stop(&id, sleep, TEST_TIMEOUT);
    assert_eq!((stopped.state, stopped.signal), (ProcessState::Ended, Some(15)));
    world.until_true(|| world.sandbox_view(&id).processes == Some(0));
    // They count as what has run.
    world.until_true(|| world.block_on(world.service().usage(me())).unwrap().cpu_ms == 4 * 7);
    let counters = world.service().counters();
    assert_eq!((counters.processes, counters.processes_started), (0, 4));
}

#[test]
fn terminal_of_a_process_has_a_size_and_takes_input() {
    let world = World::with(images);
    let id = world.sandbox(keeping());
    let pty = Some(PtyRequest { cols: 80, rows: 24, term: None });
    let shell = world.start_process(&id, ProcessRequest { pty, ..line("cat") }).unwrap();
    assert!(shell.pty);
    world.write(&id, shell.id, "ls\r").unwrap();
    let sleep = world.start_process(&id, line("sleep 60")).unwrap().id;
    let resize = |process, cols| {
        let size = TerminalSize { cols, rows: 50 };
        world.block_on(world.service().resize_process(me(), &of_sandbox(&id, None), process, size))
    };
    resize(shell.id, 100).unwrap();
    assert_eq!(kind(&resize(shell.id, 0).unwrap_err()), ProblemKind::Invalid);
    assert_eq!(kind(&resize(sleep, 100).unwrap_err()), ProblemKind::Conflict);
    world.stop(&id, shell.id, TEST_TIMEOUT);
    assert_eq!(kind(&resize(shell.id, 100).unwrap_err()), ProblemKind::ProcessEnded);
}

#[test]
fn repeated_key_of_a_start_is_the_same_process_of_a_generation() {
    let mut world = World::with(images);
    let id = world.sandbox(keeping());
    let start = |world: &World, text: &str| {
        let sandbox = of_sandbox(&id, None);
        let started = world.service().start_process(me(), &sandbox, line(text), key("k"));
        world.block_on(started).map(|it| (it.value.id, it.generation))
    };
    assert_eq!(start(&world, "sleep 60").unwrap(), (1, 1));
    assert_eq!(start(&world, "sleep 60").unwrap(), (1, 1));
    assert_eq!(kind(&start(&world, "sleep 61").unwrap_err()), ProblemKind::KeyReused);
    // Many at one time start one.
    let both = world.block_on(async {
        let sandbox = of_sandbox(&id, None);
        let starts = (0..8)
            .map(|_| world.service().start_process(me(), &sandbox, line("sleep 9"), key("other")));
        futures_util::future::join_all(starts).await
    });
    assert!(both.into_iter().all(|it| it.unwrap().value.id == 2));
    world.restart();
    assert_eq!(start(&world, "sleep 61").unwrap(), (1, 2));
}

#[test]
fn process_of_an_earlier_generation_is_gone() {
    let mut world = World::with(images);
    let id = world.sandbox(keeping());
    let started = world.start_process(&id, line("sleep 60")).unwrap();
    let before = world.process(&id, Some(1), started.id, NOW).unwrap();
    assert_eq!(before.generation, 1);
    world.restart();
    // Without a container nothing is started to find out.
    for wait in [NOW, TEST_TIMEOUT] {
        for generation in [None, Some(1)] {
            let gone = world.process(&id, generation, started.id, wait).unwrap_err();
            assert_eq!(kind(&gone), ProblemKind::Gone, "{gone}");
        }
    }
    assert_eq!(kind(&world.write(&id, started.id, "a").unwrap_err()), ProblemKind::Gone);
    assert_eq!(world.launcher.launches.load(Ordering::SeqCst), 1);
    assert!(world.list(&id, None, ProcessFilter::default()).is_empty());
    let next = world.start_process(&id, line("sleep 60")).unwrap();
    assert_eq!((next.id, next.generation), (1, 2));
    for wait in [NOW, TEST_TIMEOUT] {
        let gone = world.process(&id, Some(1), 1, wait).unwrap_err();
        assert_eq!(gone.problem(), ServiceError::stale_generation(&id, 1).problem());
    }
    assert_eq!(kind(&world.process(&id, None, 2, NOW).unwrap_err()), ProblemKind::NotFound);
    // Those who follow one see its end with the sandbox.
    let of = of_sandbox(&id, None);
    let events = world.service().process_events(me(), &of, 1, ReadFrom::Now, ReadMode::Lossy);
    let events = world.block_on(events).unwrap();
    let following = world.spawn(async move {
        events.map(|event| event.unwrap().event.name()).collect::<Vec<_>>().await
    });
    world.block_on(world.service().delete_sandbox(me(), &id)).unwrap();
    assert_eq!(world.block_on(following).unwrap(), ["exit", "end"]);
    assert_eq!(kind(&world.process(&id, None, 1, NOW).unwrap_err()), ProblemKind::Gone);
}

#[test]
fn processes_are_started_only_where_they_are_kept_and_start_no_container_elsewhere() {
    let world = World::with(images);
    let mut usual = keeping();
    usual.spec.processes = Processes::PerCommand;
    let id = world.sandbox(usual);
    world.launcher.all_ended.store(true, Ordering::SeqCst);
    let refused = world.start_process(&id, line("sleep 60")).unwrap_err();
    assert_eq!(refused.problem(), ServiceError::keeps_no_processes().problem());
    assert_eq!(world.launcher.launches.load(Ordering::SeqCst), 1);
    // Another subject's is not found.
    let sandbox = of_sandbox(&id, None);
    let theirs = world.service().start_process(other(), &sandbox, line("a"), None);
    assert_eq!(kind(&world.block_on(theirs).unwrap_err()), ProblemKind::NotFound);
}

#[test]
fn number_of_processes_and_the_output_that_may_be_kept_of_them_are_bounded() {
    let world = World::with(|config| {
        images(config);
        config.kept.processes = 3;
        (config.kept.scrollback, config.kept.output) = (ByteSize::b(10), ByteSize::b(30));
    });
    let ids = [world.sandbox(keeping()), world.sandbox(keeping())];
    let start = |id: &str, request| world.start_process(id, request).map(|it| it.id);
    for id in [&ids[0], &ids[0], &ids[1]] {
        start(id, line("sleep 60")).unwrap();
    }
    let refused = start(&ids[1], line("sleep 60")).unwrap_err();
    assert_eq!(refused.problem(), ServiceError::too_many_processes().problem());
    assert_eq!(refused.problem().kind.status(), 429);
    world.stop(&ids[1], 1, TEST_TIMEOUT);
    world.until_true(|| world.sandbox_view(&ids[1]).processes == Some(0));
    // Each counts with what may be kept of it, which a front end may say.
    let sleep = |bytes| {
        let scrollback = Some(ByteSize::b(bytes));
        ProcessRequest { scrollback, ..line("sleep 60") }
    };
    let refused = start(&ids[1], sleep(11)).unwrap_err();
    assert_eq!(kind(&refused), ProblemKind::QuotaExceeded);
    start(&ids[1], sleep(9)).unwrap();
}

#[test]
fn as_many_processes_run_as_the_reference_says_if_little_is_kept_of_each() {
    let world = World::with(images);
    let ids: Vec<_> = (0..4).map(|_| world.sandbox(keeping())).collect();
    let start = |id: &str, scrollback| {
        world.start_process(id, ProcessRequest { scrollback, ..line("sleep 60") })
    };
    for number in 0..256 {
        start(&ids[number % 4], Some(ByteSize::b(64 << 10))).unwrap();
    }
    let refused = start(&ids[0], Some(ByteSize::b(64 << 10))).unwrap_err();
    assert_eq!(kind(&refused), ProblemKind::QuotaExceeded);
    // What a process needs beside them is there when one of them has ended.
    world.stop(&ids[0], 1, TEST_TIMEOUT);
    world.until_true(|| start(&ids[0], None).is_ok());
}

#[test]
fn kept_output_of_what_has_ended_gives_way_to_what_is_started() {
    let world = World::with(|config| {
        images(config);
        config.kept.scrollback = ByteSize::b(10);
        (config.kept.output, config.kept.output_of_all) = (ByteSize::b(30), ByteSize::b(40));
    });
    let service = world.service();
    let own = world.sandbox(keeping());
    let theirs = world.block_on(service.create_sandbox(other(), keeping())).unwrap().sandbox.id;
    // Whether the output of each process is kept, the latest first.
    let kept = |subject: &Subject, id: &str| {
        let sandbox = of_sandbox(id, None);
        let list = service.processes(subject, &sandbox, ProcessFilter::default());
        let list = world.block_on(list).unwrap().value.processes;
        list.iter().map(|it| it.first_event == 1).collect::<Vec<_>>()
    };
    let echo = |subject: &Subject, id: &str| {
        let sandbox = of_sandbox(id, None);
        let started = service.start_process(subject, &sandbox, line("echo 1234567890"), None);
        world.block_on(started).unwrap();
        // It counts as running for a moment.
        let living = || service.core.kept.find(subject, id).unwrap().info().processes;
        world.until_true(|| living() == 0);
    };
    echo(other(), &theirs);
    for _ in 0..3 {
        echo(me(), &own);
    }
    assert_eq!((kept(me(), &own), kept(other(), &theirs)), (vec![true; 3], vec![true]));
    // What its own subject starts takes the place of the oldest.
    echo(me(), &own);
    assert_eq!(kept(me(), &own), [true, true, true, false]);
    assert_eq!(world.process_events(&own, 1, ReadFrom::After(0)), [(4, "end")]);
    echo(other(), &theirs);
    assert_eq!(kept(other(), &theirs), [true, false]);
    assert_eq!(kept(me(), &own), [true, true, true, false]);
    let sleep = |subject: &Subject, id: &str| {
        let sandbox = of_sandbox(id, None);
        world.block_on(service.start_process(subject, &sandbox, line("sleep 60"), None))
    };
    for _ in 0..2 {
        sleep(me(), &own).unwrap();
    }
    assert_eq!(kept(me(), &own), [true, true, true, false, false, false]);
    sleep(other(), &theirs).unwrap();
    assert_eq!(kept(other(), &theirs), [true, false, false]);
    assert_eq!(kept(me(), &own), [true, true, true, false, false, false]);
    // Without ended output of its own, that of others is dropped, but never what running processes may print.
    sleep(other(), &theirs).unwrap();
    assert_eq!(kept(me(), &own), [true, true, false, false, false, false]);
    let refused = sleep(other(), &theirs).err().unwrap();
    assert_eq!(kind(&refused), ProblemKind::QuotaExceeded);
}

#[test]
fn process_is_a_use_of_its_sandbox_until_it_ends() {
    let world = World::with(images);
    let id = world.sandbox(SandboxRequest { idle_ms: Some(50), ..keeping() });
    let process = world.start_process(&id, line("sleep 60")).unwrap();
    // Nothing is before its expiry.
    assert_eq!(world.sandbox_view(&id).idle_at, None);
    assert_eq!(world.due(&id), Some(DueAction::Delete));
    world.stop(&id, process.id, NOW);
    world.until_true(|| world.sandbox_view(&id).status == SandboxStatus::Stopped);
    // Its time ends it in any case.
    let id = world.sandbox(keeping());
    world.start_process(&id, line("sleep 60")).unwrap();
    let of = of_sandbox(&id, None);
    let events = world.service().process_events(me(), &of, 1, ReadFrom::Now, ReadMode::Wait);
    let events = world.block_on(events).unwrap();
    let short: SandboxPatch = serde_json::from_str(r#"{"ttl_ms":50}"#).unwrap();
    world.block_on(world.service().patch_sandbox(me(), &id, short)).unwrap();
    assert_eq!(world.block_on(events.count()), 2);
    let expired = || world.block_on(world.service().sandbox(me(), &id)).is_err();
    world.until_true(expired);
}

#[test]
fn idle_sandbox_is_frozen_with_its_processes_and_thawed_by_any_use() {
    let world = World::with(images);
    let (pauses, resumes) = (&world.launcher.pauses, &world.launcher.resumes);
    let request = SandboxRequest { idle: IdleAction::Freeze, idle_ms: Some(50), ..keeping() };
    let id = world.sandbox(request);
    let start = ProcessRequest { stdin: true, ..line("cat") };
    let process = world.start_process(&id, start).unwrap();
    let is_paused = || world.sandbox_view(&id).status == SandboxStatus::Paused;
    world.until_true(is_paused);
    // It may have been frozen and thawed before the process was started, too.
    let [paused, resumed] = [pauses, resumes].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(world.service().counters().paused, 1);
    // Looking at it is no use.
    world.process(&id, None, process.id, NOW).unwrap();
    assert_eq!(world.list(&id, Some(1), ProcessFilter::default()), [process.id]);
    assert!(is_paused() && resumes.load(Ordering::SeqCst) == resumed);
    let view = world.sandbox_view(&id);
    assert_eq!((view.idle_at, view.processes, view.idle), (None, Some(1), IdleAction::Freeze));
    // Every use thaws it, and it is frozen again.
    let stat = || serde_json::from_str(r#"{"operation":"stat","path":"a"}"#).unwrap();
    let uses: [&dyn Fn(); 4] = [
        &|| world.write(&id, process.id, "a").unwrap(),
        &|| _ = world.process(&id, Some(1), process.id, Duration::from_millis(1)).unwrap(),
        &|| {
            let sandbox = of_sandbox(&id, Some(1));
            let used = world.block_on(world.service().perform(me(), &sandbox, stat()));
            assert_eq!(used.unwrap().generation, 1);
        },
        &|| {
            _ = world
                .block_on(world.service().resume_sandbox(me(), &of_sandbox(&id, None)))
                .unwrap()
        },
    ];
    for (number, used) in uses.into_iter().enumerate() {
        world.until_true(|| is_paused() && pauses.load(Ordering::SeqCst) == paused + number);
        used();
        assert_eq!(resumes.load(Ordering::SeqCst), resumed + number + 1);
    }
    // Who follows a process uses its sandbox.
    let reading = world.service();
    let sandbox = of_sandbox(&id, None);
    let reading = reading.process_events(me(), &sandbox, process.id, ReadFrom::Now, ReadMode::Wait);
    let events = world.block_on(reading).unwrap();
    assert_eq!(world.due(&id), Some(DueAction::Delete));
    drop(events);
    world.until_true(is_paused);
    world.block_on(world.service().delete_sandbox(me(), &id)).unwrap();
}

#[test]
fn idle_sandbox_stays_frozen_until_it_expires() {
    let world = World::with(|config| {
        images(config);
        config.kept.paused_for = Duration::from_millis(1);
    });
    let request = SandboxRequest {
        idle: IdleAction::Freeze,
        idle_ms: Some(50),
        ttl_ms: Some(60_000),
        ..keeping()
    };
    let id = world.sandbox(request);
    world.start_process(&id, line("sleep 60")).unwrap();
    world.until_true(|| world.sandbox_view(&id).status == SandboxStatus::Paused);
    assert_eq!(world.due(&id), Some(DueAction::Delete));
    // Also if its life is made longer meanwhile.
    let patch = |json: &str| {
        let patch: SandboxPatch = serde_json::from_str(json).unwrap();
        world.block_on(world.service().patch_sandbox(me(), &id, patch)).unwrap()
    };
    assert_eq!(patch(r#"{"ttl_ms":120000}"#).status, SandboxStatus::Paused);
    assert_eq!(world.due(&id), Some(DueAction::Delete));
    patch(r#"{"ttl_ms":50}"#);
    world.until_true(|| world.block_on(world.service().sandbox(me(), &id)).is_err());
}

#[test]
fn sandbox_that_cannot_be_frozen_is_stopped_unless_processes_run_in_it() {
    let world = World::with(images);
    world.launcher.refuses_pauses.store(true, Ordering::SeqCst);
    let request = || SandboxRequest { idle: IdleAction::Freeze, idle_ms: Some(50), ..keeping() };
    let [busy, idle] = [world.sandbox(request()), world.sandbox(request())];
    let process = world.start_process(&busy, line("sleep 60")).unwrap();
    let first = world.sandbox_view(&busy).idle_at;
    world.until_true(|| world.sandbox_view(&idle).status == SandboxStatus::Stopped);
    world.until_true(|| world.sandbox_view(&busy).idle_at > first);
    assert_eq!(world.sandbox_view(&busy).status, SandboxStatus::Ready);
    // It may have been stopped before the process was started.
    let generation = Some(process.generation);
    assert!(world.process(&busy, generation, process.id, NOW).unwrap().exit_code.is_none());
}

#[test]
fn paused_sandbox_is_stopped_after_its_time() {
    let world = World::with(|config| {
        images(config);
        config.kept.paused_for = Duration::from_millis(1);
    });
    let id = world.sandbox(keeping());
    let process = world.start_process(&id, line("sleep 60")).unwrap();
    let sandbox = of_sandbox(&id, None);
    let pause = || world.block_on(world.service().pause_sandbox(me(), &sandbox));
    pause().unwrap();
    world.until_true(|| world.sandbox_view(&id).status == SandboxStatus::Stopped);
    let gone = world.process(&id, Some(1), process.id, NOW).unwrap_err();
    assert_eq!(kind(&gone), ProblemKind::Gone);
    assert_eq!(kind(&pause().unwrap_err()), ProblemKind::Gone);
}

#[test]
fn paused_sandbox_waits_for_a_use() {
    let world = World::with(|config| {
        images(config);
        config.kept.paused = 1;
    });
    let [first, second] = [world.sandbox(keeping()), world.sandbox(keeping())];
    world.start_process(&first, line("sleep 60")).unwrap();
    let pause = |id: &str, generation| {
        world.block_on(world.service().pause_sandbox(me(), &of_sandbox(id, generation)))
    };
    assert_eq!(kind(&pause(&first, Some(7)).unwrap_err()), ProblemKind::Gone);
    for _ in 0..2 {
        let paused = pause(&first, Some(1)).unwrap();
        assert_eq!((paused.status, paused.paused_memory), (SandboxStatus::Paused, Some(1 << 20)));
    }
    assert_eq!(world.service().counters().paused_memory, 1 << 20);
    assert_eq!(world.launcher.pauses.load(Ordering::SeqCst), 1);
    let refused = pause(&second, None).unwrap_err();
    assert_eq!(refused.problem(), ServiceError::too_many_paused().problem());
    world.block_on(world.service().delete_sandbox(me(), &first)).unwrap();
    // One in which something runs is not paused; who reads what comes waits.
    let run = world.service().submit(me(), script("wait"), at(&second, None), None);
    let run = world.block_on(run).unwrap().id;
    world.until(&run, ExecutionState::Running);
    let refused = pause(&second, None).unwrap_err();
    assert_eq!(refused.problem(), ServiceError::sandbox_in_use(&second).problem());
    world.launcher.go_on.add_permits(1);
    world.wait(&run);
    let process = world.start_process(&second, line("sleep 60")).unwrap().id;
    let sandbox = of_sandbox(&second, None);
    let reading = world.service();
    let reading = reading.process_events(me(), &sandbox, process, ReadFrom::Now, ReadMode::Wait);
    let events = world.block_on(reading).unwrap();
    world.until_true(|| pause(&second, None).is_ok());
    let resumed = world.block_on(world.service().resume_sandbox(me(), &sandbox)).unwrap();
    assert_eq!((resumed.status, resumed.generation), (SandboxStatus::Ready, 1));
    assert_eq!((resumed.paused_memory, world.service().counters().paused_memory), (None, 0));
    drop(events);
}

#[test]
fn restart_leaves_stopped_sandboxes_with_all_that_they_are() {
    let mut world = World::with(images);
    let mut request = SandboxRequest {
        name: Some("a".to_owned()),
        idle: IdleAction::Freeze,
        idle_ms: Some(50),
        metadata: serde_json::from_str(r#"{"team":"blue"}"#).unwrap(),
        ..keeping()
    };
    request.spec.env.insert("A".to_owned(), "1".into());
    let id = world.sandbox(request.clone());
    world.until_true(|| world.sandbox_view(&id).status == SandboxStatus::Paused);
    world.restart();
    let view = world.sandbox_view(&id);
    assert_eq!((view.status, view.processes), (SandboxStatus::Stopped, Some(0)));
    assert_eq!((&view.spec, &view.metadata), (&request.spec, &request.metadata));
    assert_eq!((view.name.as_deref(), view.idle), (Some("a"), IdleAction::Freeze));
    assert_eq!(world.start_process(&id, line("sleep 60")).unwrap().generation, 2);
}

#[test]
fn sandbox_is_patched_to_end_earlier_and_to_have_other_metadata() {
    let mut world = World::with(images);
    let id = world.sandbox(SandboxRequest { ttl_ms: Some(60_000), ..keeping() });
    let patch = |world: &World, json: &str| {
        let patch: SandboxPatch = serde_json::from_str(json).unwrap();
        world.block_on(world.service().patch_sandbox(me(), &id, patch))
    };
    let before = world.sandbox_view(&id);
    let shorter = patch(&world, r#"{"ttl_ms":30000}"#).unwrap();
    assert!(shorter.expires_at < before.expires_at && shorter.metadata.is_empty());
    let changed = patch(&world, r#"{"metadata":{"step":3}}"#).unwrap();
    assert_eq!((changed.expires_at, &changed.metadata["step"]), (shorter.expires_at, &3.into()));
    let most = patch(&world, r#"{"ttl_ms":999999999999}"#).unwrap();
    assert_eq!(most.expires_at, before.max_expires_at);
    assert_eq!(kind(&patch(&world, r#"{"ttl_ms":0}"#).unwrap_err()), ProblemKind::Invalid);
    let large = format!(r#"{{"metadata":{{"a":"{}"}}}}"#, "x".repeat(20_000));
    assert_eq!(kind(&patch(&world, &large).unwrap_err()), ProblemKind::Invalid);
    patch(&world, r#"{"ttl_ms":30000}"#).unwrap();
    let last = world.sandbox_view(&id);
    world.restart();
    let stored = world.sandbox_view(&id);
    assert_eq!((stored.expires_at, &stored.metadata), (last.expires_at, &changed.metadata));
    // The next generation does not bring the old end back.
    world.start_process(&id, line("echo a")).unwrap();
    world.restart();
    assert_eq!(world.sandbox_view(&id).expires_at, last.expires_at);
    patch(&world, r#"{"ttl_ms":1}"#).unwrap();
    let is_gone = || world.block_on(world.service().sandbox(me(), &id)).is_err();
    world.until_true(is_gone);
}

#[test]
fn lists_of_sandboxes_are_filtered_and_paged_from_the_newest() {
    let world = World::with(images);
    let ids: Vec<_> = (0..5)
        .map(|number: u32| {
            let mut request = SandboxRequest { name: Some(number.to_string()), ..keeping() };
            request.metadata.insert("number".to_owned(), number.into());
            request.metadata.insert("is".to_owned(), ["even", "odd"][number as usize % 2].into());
            world.sandbox(request)
        })
        .collect();
    let list = |query: SandboxQuery| world.block_on(world.service().sandboxes(me(), query));
    let found = |query: SandboxQuery| {
        let list = list(query).unwrap();
        let mut found: Vec<String> =
            list.sandboxes.into_iter().map(|it| it.name.unwrap()).collect();
        found.sort();
        found
    };
    let metadata = |key: &str, value: &str| SandboxQuery {
        metadata: [(key.to_owned(), value.to_owned())].into(),
        ..SandboxQuery::default()
    };
    assert_eq!(found(metadata("is", "odd")), ["1", "3"]);
    assert_eq!(found(metadata("number", "3")), ["3"]);
    assert!(found(metadata("other", "3")).is_empty());
    let name = Some("4".to_owned());
    assert_eq!(found(SandboxQuery { name, ..SandboxQuery::default() }), ["4"]);
    world.block_on(world.service().pause_sandbox(me(), &of_sandbox(&ids[2], None))).unwrap();
    let status = Some(SandboxStatus::Paused);
    assert_eq!(found(SandboxQuery { status, ..metadata("is", "even") }), ["2"]);
    // Pages have each once, the latest first, whatever is removed meanwhile.
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page =
            list(SandboxQuery { limit: Some(2), cursor, ..SandboxQuery::default() }).unwrap();
        assert!(page.sandboxes.is_sorted_by_key(|it| std::cmp::Reverse(it.created_at)));
        seen.extend(page.sandboxes.into_iter().map(|it| it.id));
        if seen.len() == 2 {
            world.block_on(world.service().delete_sandbox(me(), &seen[1])).unwrap();
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let mut expected = ids.clone();
    expected.sort();
    seen.sort();
    assert_eq!(seen, expected);
    for wrong in [
        SandboxQuery { limit: Some(0), ..SandboxQuery::default() },
        SandboxQuery { limit: Some(201), ..SandboxQuery::default() },
        SandboxQuery { cursor: Some("x".to_owned()), ..SandboxQuery::default() },
    ] {
        assert_eq!(kind(&list(wrong).unwrap_err()), ProblemKind::Invalid);
    }
}

#[test]
fn front_end_reaches_the_processes_of_a_sandbox_that_it_keeps() {
    let world = World::new();
    let root = RootFs::Image { reference: "debian:13".to_owned(), pull: sandbox_api::Pull::Never };
    let spec = || sandbox_api::SandboxSpec::new().root(root.clone()).processes(Processes::Kept);
    let attached =
        || world.block_on(world.service().attached_sandbox(me(), "workspace", spec)).unwrap();
    let sandbox = attached();
    assert_eq!(sandbox, attached());
    let started = world.service().start_process(me(), &sandbox, line("sleep 60"), None);
    let started = world.block_on(started).unwrap().value;
    let found = world.block_on(world.service().process(me(), &sandbox, started.id, NOW)).unwrap();
    assert_eq!((found.generation, found.value.id), (1, started.id));
    // No other subject has it, and no list.
    let list = world.block_on(world.service().sandboxes(me(), SandboxQuery::default())).unwrap();
    assert!(list.sandboxes.is_empty());
    let theirs = world.service().process(other(), &sandbox, started.id, NOW);
    assert_eq!(kind(&world.block_on(theirs).unwrap_err()), ProblemKind::NotFound);
    // As it is a use, the sandbox is not removed.
    let kept = world.service().core.kept.find_any(me(), &sandbox.id).unwrap();
    assert_eq!(kept.due(), None);
    let stop = world.service().stop_process(me(), &sandbox, started.id, TEST_TIMEOUT);
    world.block_on(stop).unwrap();
    world.until_true(|| kept.due().is_some());
}
