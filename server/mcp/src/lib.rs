//! The tools of an agent, over the Model Context Protocol.

#![forbid(unsafe_code)]
