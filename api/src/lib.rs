//! The types of sandboxctl's requests and results, as plain data: limits, specs, scripts, file
//! operations, results. Used by command lines, servers, workers and clients.

#![forbid(unsafe_code)]

pub mod artifacts;
pub mod attach;
pub mod changes;
mod command;
mod disk;
mod disk_reserve;
mod encoding;
mod engine_kind;
mod execution;
mod failure;
pub mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod host_tools;
pub mod hosts;
mod images;
pub mod injection;
mod json;
mod language;
mod limits;
mod message_id;
mod message_lines;
mod named;
pub mod network;
mod notes;
pub mod operation;
mod outcome;
mod ports;
mod previews;
mod problem;
pub mod process;
pub mod receipt;
mod sandboxes;
pub mod schema;
mod secrets;
pub mod service;
mod setters;
mod spec;
mod stats;
mod test_cases;
pub mod time;
mod timing;
mod watch;
mod wildcard;
mod workload;

pub use artifacts::ArtifactsReport;
pub use command::{Command, CommandLine, DEFAULT_COLLECTED_BYTES, Stdin};
pub use disk::{Disk, DiskBackend, DiskBound};
pub use disk_reserve::{DiskReserve, DiskReserveError, DiskShortage};
pub use encoding::{Encoding, EncodingError, UnknownEncoding, decode_percent, encode_percent};
pub use engine_kind::{EngineInfo, EngineKind};
pub use execution::{
    Captured, CommandBody, CommonMembers, DocumentBody, EventRecord, EventsSchema, ExecDocument,
    ExecSchema, ExecutionDocument, ExecutionEvent, ExecutionResult, FileOp, FilesTouched, LogEntry,
    LogLevel, OutputCapture, OutputEncoding, OutputStream, ReceiptReport, Recorded, ResultBody,
    ResultDocument, ResultSchema, ScriptBody, TouchedFile, TouchedSource, UNMEASURED_PART,
    UnreadableEvent, Usage,
};
pub use failure::{Failure, causes, exit_code, failure_hint, operation_hint};
pub use host_tools::{
    HostTool, NoToolRule, RESERVED_NAMES, ToolCall, ToolEffect, ToolOutcome, ToolRule,
};
pub use images::{ImageInfo, ProgramImage, image_matches, is_image_reference};
pub use injection::{InjectError, InjectRule, Injection};
pub use json::strict;
pub use language::Language;
pub use limits::{
    Bounds, ByteSize, Ceiling, Cpus, LimitKey, LimitParseError, LimitValue, Limits, LimitsRequest,
    OverCeiling, processors,
};
pub use message_id::IdReader;
pub use message_lines::{MessageLine, MessageLines};
pub use network::{ContactedHost, Network, RefusedHost};
pub use notes::{KernelEvents, Note, NoteEvidence, NoteKind};
pub use operation::{Envelope, Operation, OperationRequest};
pub use outcome::{CancelCause, Exit, KilledBy, Outcome, Status, failure};
pub use ports::{ListeningPort, PortList, Ports};
pub use previews::{PORT_TOKEN, Preview, PreviewRequest, TCP_PROTOCOL};
pub use problem::{InvalidMember, Problem, ProblemKind, UnknownProblemKind};
pub use process::{
    ProcessCommand, ProcessEnd, ProcessList, ProcessRequest, ProcessState, ProcessStop,
    ProcessView, PtyRequest, ReadFrom, ReadMode, SignalRequest, TerminalError, TerminalSize,
};
pub use sandbox_protocol::message::FileScope;
pub use sandbox_protocol::message::{
    Access, AllowedPath, Confinement, IoErrors, Pty, ScriptError, Sign, SignalName, SignalTarget,
    TestCase, TestStatus, UnixSockets,
};
pub use sandbox_protocol::path::GuestPath;
pub use sandbox_protocol::{
    Base64, ErrorKind, User, UserError, WireError, WireString, without_bom, words,
};
pub use sandboxes::{
    CommitConflicts, Force, GcFailure, GcMode, GcOptions, GcReport, LeftStage, SandboxState,
    SandboxSummary, SomePaths, Stores, generation_id, generation_of,
};
pub use secrets::{SecretError, SecretValue, Secrets};
pub use spec::{
    DEFAULT_IDLE_LIMIT, DEFAULT_LIFETIME, DEFAULT_PROTECTED, Input, InputSource, Lifespan,
    PrivateIo, Processes, Pull, RootFs, SandboxSpec, Script, SpecError,
};
pub use stats::SandboxStats;
pub use test_cases::test_failure;
pub use time::millis;
pub use timing::{StartKind, Timing};
pub use watch::{FileChange, FileEvent, WatchRecord, WatchRequest};
pub use workload::{Workload, WorkloadError};

/// Whether a value, which is left out of JSON then, is the default of its type.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
