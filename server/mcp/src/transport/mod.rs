//! How clients connect.

pub mod http;
pub mod lines;
pub mod progress;
mod sessions;
