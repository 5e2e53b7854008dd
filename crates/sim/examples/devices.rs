//! Prints the tables of `docs/devices.md`.

fn main() {
    print!("{}", evenkeel_sim::describe());
}
