//! The agent: the only program of sandboxctl inside a sandbox.

fn main() {
    sandbox_agent::exit(sandbox_agent::main(std::env::args_os().skip(1)));
}
