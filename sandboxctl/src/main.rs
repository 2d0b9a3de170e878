//! `sandboxctl`: runs untrusted Luau scripts and commands, each in a fresh container.

fn main() -> std::process::ExitCode {
    sandboxctl::main()
}
