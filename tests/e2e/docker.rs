//! End-to-end tests: the built `sandboxctl`, as a person calls it, on a real Docker Engine.
//! Without an engine they fail; they never skip.
//!
//! Each test has a [`fixture::Fixture`] of its own: a working directory, a state directory and a
//! home. At its end the place asserts that nothing of it is left on the engine or on the disk.
//!
//! `DOCKER_HOST` and `SANDBOXCTL_ENGINE_RUNTIME` reach `sandboxctl`, so that the same tests run on
//! any engine that speaks Docker's API, and with any of its runtimes.

/// The same tests on every engine.
mod conformance;

/// Docker's alone: an engine on a socket, which can fail by itself, and which needs an image.
mod daemon;
mod faults;
mod image;
mod pull;

/// Settings and documents, which are run once, here.
mod cli;
mod config;
mod docs;
#[path = "../markdown.rs"]
mod markdown;

mod agent;
/// A service that is killed under load.
mod crashes;
mod engine;
mod engines;
mod fixture;
mod library;
mod newcomer;
mod rootfs;
mod tls;

/// What these tests run on.
const ENGINE: engine::Engine = engine::Engine::Docker;
