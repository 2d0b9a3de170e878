//! What nodes, the database and clients say to each other, and what else happens.

use super::plan::Moment;
use super::tables::{
    Accepted, Beat, Candidate, End, Fenced, Id, NodeId, Session, Subject, Submission,
};
use crate::cluster::decide::Orphan;

/// What a node asks the database.
#[derive(Debug, Clone, Copy)]
pub enum Request {
    BeginSession,
    Beat,
    Claim(u32),
    Accept(Submission),
    LookUp(Submission),
    MarkRunning(Id),
    Log(Id),
    Finish(Id, End),
    Held,
    DeclareDead(Session, i64),
    Orphans,
    Requeue(Id, Session),
    EndOrphan(Id, Option<Session>, End),
    Cancel(Id),
    Leave,
}

/// What the database answers.
#[derive(Debug, Clone)]
pub enum Answer {
    Session(Session),
    Beat(Beat),
    Claimed(Vec<Id>),
    Accepted(Accepted),
    /// Of an execution: whether it is there, and whether this session has begun it and it has not ended.
    Found {
        is_there: bool,
        is_mine: bool,
    },
    Written(Fenced),
    Held(Vec<(Id, bool)>),
    Orphans(Vec<(Id, Option<Session>, Orphan)>),
    Done,
    /// It was not reached, or the connection is lost: what was asked may have been committed.
    Lost,
}

/// Something that happens.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request is at the database.
    Arrival(Call),
    /// The second statement of a claim.
    Take {
        call: Call,
        candidate: Candidate,
        left: u32,
        taken: Vec<Id>,
    },
    /// Of the process with this number on a node.
    ToNode(NodeId, u64, ToNode),
    Submit(Draft),
    Cancel(Id),
    Fault(Fault),
    Heal(Fault),
}

/// What a process hears.
#[derive(Debug, Clone)]
pub enum ToNode {
    Answer(u64, Answer),
    Timer(Timer),
    Submission(Draft),
    Cancellation(Id),
}

/// What a client wants to run.
#[derive(Debug, Clone, Copy)]
pub struct Draft {
    pub subject: Subject,
    pub key: Option<u64>,
    pub has_secrets: bool,
    /// It runs until it is cancelled.
    pub is_endless: bool,
}

/// A fault, of a node or of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`; heals with a new process.
    Kill(NodeId),
    /// SIGTERM; heals with a new process.
    Term(NodeId),
    /// SIGSTOP.
    Stop(NodeId),
    /// SIGSTOP just before it says that its next execution begins, and after everything that it looked at before.
    StopAtBegin(NodeId),
    /// The machine is suspended: its clock stands still too.
    Suspend(NodeId),
    /// Nothing passes between a node and the database.
    Cut(NodeId),
    /// Requests arrive and answers do not.
    Mute(NodeId),
    /// The connection is slow, up to past its timeout.
    Slow(NodeId),
    Drain(NodeId),
    /// The database is stopped and starts again.
    DatabaseStop,
    /// Its commits wait, for a synchronous standby or a disk.
    DatabaseHang,
    /// Its clock jumps.
    DatabaseClock(i64),
}

/// A request that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub node: NodeId,
    pub process: u64,
    pub number: u64,
    pub session: Session,
    pub sent: Moment,
    pub request: Request,
}

/// What a process does later.
#[derive(Debug, Clone, Copy)]
pub enum Timer {
    Timeout(u64),
    /// Asks again, in the same session.
    Again(Session, Request),
    /// Only the last one that was set counts.
    Claim(u64),
    /// Something that runs says something.
    Says(Session, Id),
    RunEnds(Session, Id),
    Sweep(Session),
}
