//! How clients connect.

mod answer;
pub mod http;
pub mod lines;
pub mod progress;
mod sessions;
