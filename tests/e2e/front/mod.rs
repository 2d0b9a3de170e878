//! What the command line makes of results: no engine matters to it. It runs once, on the engine
//! that starts a container fastest.

mod ci;
mod fs;
mod remote;
mod reports;
