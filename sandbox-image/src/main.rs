//! The agent: the only program that sandboxctl runs inside a sandbox.

fn main() {
    sandbox_agent::exit(sandbox_agent::main(std::env::args_os().skip(1)));
}
