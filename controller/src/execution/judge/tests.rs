use sandbox_api::Status;

use super::*;

fn evidence() -> Evidence {
    Evidence {
        what: "script",
        answer: None,
        cancel: None,
        limit: None,
        our_kill: None,
        unproven: None,
        exit: None,
        limits: Limits::default(),
        stderr: String::new(),
    }
}

fn exit(code: i64, oom_killed: bool) -> Option<ExitEvidence> {
    let oom_killed = Some(oom_killed);
    Some(ExitEvidence { code: Some(code), oom_killed, ..ExitEvidence::default() })
}

fn failed(kind: ErrorKind) -> Option<AgentReport> {
    Some(AgentReport::Script(RunEnd::Failed(failure(kind, "script:1: x"))))
}

fn returned() -> Option<AgentReport> {
    Some(AgentReport::Script(RunEnd::Returned(RawValue::from_string("1".into()).unwrap())))
}

#[test]
fn evidence_decides_the_status_and_the_exit_code() {
    let interrupt = Some(CancelCause::Interrupt);
    let terminate = Some(CancelCause::Terminate);
    let breach = Some(KillReason::Breach("an unknown id".into()));
    let table = [
        // The agent's reply decides, regardless of other events.
        (Evidence { answer: returned(), ..evidence() }, Status::Ok, 0),
        (
            Evidence { answer: returned(), exit: exit(137, true), cancel: interrupt, ..evidence() },
            Status::Ok,
            0,
        ),
        (Evidence { answer: failed(ErrorKind::Runtime), ..evidence() }, Status::ScriptError, 1),
        (Evidence { answer: failed(ErrorKind::Syntax), ..evidence() }, Status::ScriptError, 1),
        (
            Evidence { answer: failed(ErrorKind::ResultNotJson), ..evidence() },
            Status::ScriptError,
            1,
        ),
        (Evidence { answer: failed(ErrorKind::PathEscape), ..evidence() }, Status::ScriptError, 1),
        (Evidence { answer: failed(ErrorKind::Protected), ..evidence() }, Status::ScriptError, 1),
        (Evidence { answer: failed(ErrorKind::Busy), ..evidence() }, Status::AgentLost, 122),
        (Evidence { answer: failed(ErrorKind::OutOfMemory), ..evidence() }, Status::Limit, 120),
        (Evidence { answer: failed(ErrorKind::WriteLimit), ..evidence() }, Status::Limit, 120),
        (Evidence { answer: failed(ErrorKind::Timeout), ..evidence() }, Status::Timeout, 124),
        (
            Evidence { answer: failed(ErrorKind::Cancelled), cancel: terminate, ..evidence() },
            Status::Cancelled,
            143,
        ),
        // It may have worked on unchecked files.
        (
            Evidence {
                answer: returned(),
                our_kill: Some(KillReason::MountLost(MountLost::made_up())),
                cancel: interrupt,
                ..evidence()
            },
            Status::Error,
            121,
        ),
        // It cannot claim an unrequested cancel, nor an error kind that no run ends with.
        (Evidence { answer: failed(ErrorKind::Cancelled), ..evidence() }, Status::AgentLost, 122),
        (Evidence { answer: failed(ErrorKind::Usage), ..evidence() }, Status::AgentLost, 122),
        // No answer: what the controller did decides.
        (
            Evidence { cancel: interrupt, our_kill: Some(KillReason::Cancel), ..evidence() },
            Status::Cancelled,
            130,
        ),
        (
            Evidence { our_kill: Some(KillReason::Deadline), exit: exit(137, false), ..evidence() },
            Status::Timeout,
            124,
        ),
        (Evidence { our_kill: breach.clone(), ..evidence() }, Status::AgentLost, 122),
        (Evidence { our_kill: breach, cancel: interrupt, ..evidence() }, Status::AgentLost, 122),
        // No answer, and nothing done by the controller: what the engine saw decides.
        (Evidence { exit: exit(137, true), ..evidence() }, Status::Limit, 120),
        (Evidence { exit: exit(137, false), ..evidence() }, Status::Killed, 137),
        (Evidence { exit: exit(159, false), ..evidence() }, Status::AgentLost, 122),
        // Without an answer, neither code 0 nor a missing code is a success.
        (Evidence { exit: exit(0, false), ..evidence() }, Status::AgentLost, 122),
        (Evidence { exit: exit(0, true), ..evidence() }, Status::AgentLost, 122),
        (Evidence { exit: Some(ExitEvidence::default()), ..evidence() }, Status::AgentLost, 122),
        (
            Evidence {
                exit: Some(ExitEvidence { removed: true, ..ExitEvidence::default() }),
                ..evidence()
            },
            Status::Killed,
            137,
        ),
        (evidence(), Status::AgentLost, 122),
    ];
    for (row, (evidence, status, code)) in table.into_iter().enumerate() {
        let text = format!("row {row}: {evidence:?}");
        let outcome = evidence.judge();
        assert_eq!((outcome.status(), outcome.exit_code()), (status, code), "{text}");
        assert_eq!(outcome.failure().is_none(), status == Status::Ok, "{text}");
        let killed = outcome.failure().is_some_and(|it| it.kind == ErrorKind::Killed);
        assert_eq!(killed, status == Status::Killed, "{text}");
    }
}

#[test]
fn a_timeout_says_if_its_kill_was_not_confirmed() {
    let our_kill = Some(KillReason::Deadline);
    let judged = |unproven| {
        let outcome = Evidence { our_kill: our_kill.clone(), unproven, ..evidence() }.judge();
        assert_eq!((outcome.status(), outcome.exit_code()), (Status::Timeout, 124));
        outcome.failure().unwrap().message.clone()
    };
    assert_eq!(judged(None), "killed: the script did not end within its 30s");
    let message = judged(Some("no answer within 10s".to_owned()));
    assert!(!message.contains("killed") && message.ends_with("yet: no answer within 10s"));
}

#[test]
fn a_kill_without_a_memory_report_has_no_certain_cause() {
    let judged = |oom_killed| {
        let exit = ExitEvidence { code: Some(KILLED), oom_killed, ..ExitEvidence::default() };
        let outcome = Evidence { exit: Some(exit), ..evidence() }.judge();
        outcome.failure().unwrap().message
    };
    assert_eq!(judged(Some(false)), "the container was killed from outside");
    assert!(judged(None).contains("memory"), "{}", judged(None));
}

#[test]
fn kill_by_the_engine_for_its_memory_is_that_limit_whatever_the_kernel_reports() {
    for oom_killed in [None, Some(false)] {
        let exit = ExitEvidence {
            code: Some(KILLED),
            oom_killed,
            over_memory: true,
            ..ExitEvidence::default()
        };
        let outcome = Evidence { exit: Some(exit), ..evidence() }.judge();
        assert_eq!((outcome.status(), outcome.exit_code()), (Status::Limit, 120));
        assert_eq!(outcome.failure().unwrap().kind, ErrorKind::OutOfMemory);
    }
}

#[test]
fn a_lost_agent_leaves_its_last_words() {
    let outcome = Evidence { stderr: "panicked\n".into(), ..evidence() }.judge();
    let failure = outcome.failure().unwrap();
    assert_eq!(failure.message, "the agent ended without an answer; agent stderr: panicked");
}

#[test]
fn a_commands_exit_is_the_exit_code() {
    assert_eq!(Outcome::Exit(Exit::Code(3)).exit_code(), 3);
    assert_eq!(Outcome::Exit(Exit::Signal(15)).exit_code(), 143);
}
