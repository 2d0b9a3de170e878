//! What the API answers where the service refuses or fails.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use axum::response::IntoResponse as _;
use sandbox_api::{ByteSize, DiskShortage, ErrorKind, Failure, LimitKey, OverCeiling};
use sandbox_http::Refusal;
use sandbox_service::ServiceError;

use super::DOCUMENT;

const BY_EXECUTION: &[&str] = &["get_execution", "cancel_execution", "get_events"];
const FILES: &[&str] = &["list_files", "get_file", "get_archive", "get_changes"];
const SUBMIT: &[&str] = &["create_execution", "run_in_sandbox"];
const CREATE: &[&str] = &["create_sandbox"];
const USE: &[&str] = &["operate", "read_file", "write_file"];
const BY_SANDBOX: &[&str] = &["get_sandbox", "delete_sandbox", "extend_sandbox", "run_in_sandbox"];

/// Each error of the service, with the routes whose calls of it can fail so; none for all that make one.
fn errors() -> Vec<(ServiceError, Vec<&'static str>)> {
    use ServiceError as Error;
    let accepting = || [SUBMIT, CREATE].concat();
    let storing = || [SUBMIT, CREATE, USE].concat();
    let by_sandbox = || [BY_SANDBOX, USE, CREATE].concat();
    let (key, asked, ceiling) = (LimitKey::Timeout, "x".to_owned(), "x".to_owned());
    let mut all = vec![
        (Error::not_found("execution", "x"), [BY_EXECUTION, FILES].concat()),
        (Error::not_found("sandbox", "x"), by_sandbox()),
        (Error::sandbox_gone("x"), by_sandbox()),
        (Error::file_not_found("x"), vec!["get_file"]),
        (Error::too_many_files("x", 1), vec!["get_archive"]),
        (Error::no_files("x"), FILES.to_vec()),
        (Error::files_lost("x"), FILES.to_vec()),
        (Error::not_ended("x"), FILES.to_vec()),
        (Error::key_reused(), SUBMIT.to_vec()),
        (Error::key_in_flight(), SUBMIT.to_vec()),
        (Error::full(1), SUBMIT.to_vec()),
        (Error::full_of_bytes(ByteSize::b(1)), SUBMIT.to_vec()),
        (Error::name_taken("x"), CREATE.to_vec()),
        (Error::stale_generation("x", 1), [&["run_in_sandbox"], USE].concat()),
        (Error::too_fast(Duration::ZERO), [SUBMIT, FILES].concat()),
        (Error::quota_exceeded("x", None), storing()),
        (Error::disk_full(DiskShortage::Bytes(1)), storing()),
        (Error::forbidden("x", "x"), storing()),
        (Error::shutting_down(), accepting()),
        (OverCeiling { key, asked, ceiling }.into(), accepting()),
        (Error::invalid("x", "x"), [SUBMIT, CREATE, &["list_executions"]].concat()),
        (Error::files(io::Error::other("x")), Vec::new()),
        (Error::internal("x"), Vec::new()),
    ];
    for kind in
        [ErrorKind::Symlink, ErrorKind::SpecialFile, ErrorKind::IsDirectory, ErrorKind::InvalidPath]
    {
        all.push((Error::file_refused("x", "x", kind), vec!["get_file"]));
    }
    let failures = ErrorKind::ALL.iter().map(|&kind| Failure::new(kind, "x", None));
    all.extend(failures.map(|it| (Error::sandbox(it), [CREATE, USE].concat())));
    all
}

#[test]
fn every_error_of_the_service_is_documented_for_each_route_that_can_answer_it() {
    let paths = DOCUMENT["paths"].as_object().unwrap().values();
    let operations: Vec<_> = paths.flat_map(|path| path.as_object().unwrap().values()).collect();
    fn name(operation: &serde_json::Value) -> &str {
        operation["operationId"].as_str().unwrap()
    }
    let mut missing = BTreeSet::new();
    for (error, routes) in errors() {
        let status = error.problem().status.to_string();
        let can_answer = |operation: &serde_json::Value| match &*routes {
            [] => !operation["security"].as_array().unwrap().is_empty(),
            routes => routes.contains(&name(operation)),
        };
        let all = operations.iter().filter(|it| can_answer(it)).collect::<Vec<_>>();
        assert!(all.len() >= if routes.is_empty() { 15 } else { routes.len() }, "{routes:?}");
        let undocumented = all.iter().filter(|it| it["responses"].get(&status).is_none());
        missing.extend(undocumented.map(|it| format!("{}: {status}", name(it))));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn error_of_the_service_has_its_status_and_when_to_try_again() {
    let soon = Duration::from_millis(2500);
    for (error, status, retry) in [
        (ServiceError::too_fast(soon), 429, Some("3")),
        (ServiceError::quota_exceeded("x", Some(soon)), 429, Some("3")),
        (ServiceError::quota_exceeded("x", None), 429, None),
        (ServiceError::full(1), 503, Some("1")),
        (ServiceError::key_in_flight(), 409, Some("1")),
        (ServiceError::forbidden("image", "no"), 403, None),
        (ServiceError::internal("oops"), 500, None),
    ] {
        let answer = Refusal::from(error).into_response();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers().get("retry-after").map(|it| it.to_str().unwrap()), retry);
    }
}
