//! Executions: their events, their results, and the documents that report them.

mod capture;
mod document;
mod document_schema;
mod event;
mod kind;
mod result;

pub use self::capture::OutputCapture;
pub use self::document::{
    CommandBody, CommonMembers, DocumentBody, ExecSchema, ExecutionDocument, OutputEncoding,
    ReceiptReport, ResultSchema, ScriptBody,
};
pub use self::document_schema::{ExecDocument, ResultDocument};
pub use self::event::{
    EventRecord, EventsSchema, ExecutionEvent, OutputStream, Recorded, UnreadableEvent,
};
pub use self::kind::ExecutionKind;
pub use self::result::{
    Captured, ExecutionResult, FileOp, FilesTouched, LogEntry, LogLevel, ResultBody, TouchedFile,
    TouchedSource, UNMEASURED_PART, Usage,
};
