//! End-to-end tests: the built `sandboxctl`, as a person calls it, on a real engine.
//! Without an engine, or without root for the embedded one, they fail; they never skip.
//!
//! One program for all engines: `SANDBOX_TEST_ENGINE` names the one that it tests
//! ([`engine::engine`]). `tests/lanes.toml` says which module runs on which engine; `scripts/test`
//! reads it. Each test is a process of its own, and what tests share is in [`shared`].
//!
//! Each test has a [`fixture::Fixture`] of its own: a working directory, a state directory and a
//! home. At its end the fixture asserts that nothing of it is left on the engine or on the disk.
//!
//! `DOCKER_HOST` and `SANDBOXCTL_ENGINE_RUNTIME` reach `sandboxctl`, so that the same tests run on
//! any engine that speaks Docker's API, and with any of its runtimes.

/// What a sandbox is, on any engine.
mod conformance;

/// Docker's alone: an engine on a socket, which can fail by itself, and which needs an image; settings
/// of such an engine.
mod cli;
mod config;
mod daemon;
mod faults;
mod image;
mod pull;

/// The embedded engine's alone: images from files, its helpers, and what they make of a
/// container.
mod archives;
mod first_process;
mod helpers;
mod launches;
mod rootless;

/// What a sandbox can read of its rules, and rules that are learnt.
mod policy;

/// What the command line makes of results: no engine matters to it.
mod front;

/// What scripts and programs reach through the controller: tools of other servers, hosts that are sent a
/// secret, and what a person permits.
mod host_tools;
mod inject;
mod learn;
mod upstream;

/// Every command that the docs show.
mod docs;
#[path = "../markdown.rs"]
#[expect(dead_code, reason = "tests/pages.rs uses the rest of it")]
mod markdown;

/// The settings of `packaging/`.
mod packaging;

/// A service that is killed under load, and several that are one.
mod cluster;
mod crashes;
mod library;
mod newcomer;

/// Functions of a program that scripts call.
mod tool_calls;

mod agent;
mod collector;
mod e2b;
mod engine;
mod engines;
mod fixture;
mod lanes;
mod rootfs;
mod servers;
mod shared;
mod tls;
