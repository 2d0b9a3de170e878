//! End-to-end tests on the embedded engine: the conformance suite, and what is this engine's alone.
//! They need root. Without it they fail; they never skip.

/// The same tests on every engine.
mod conformance;

/// This engine's alone: images from files.
mod archives;
/// This engine's alone: its helpers.
mod helpers;

/// What no engine matters to. It is run once, here.
mod front;

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
const ENGINE: engine::Engine = engine::Engine::Embedded;
