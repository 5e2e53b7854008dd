//! The one binary of the host: arguments in, calls out.

fn main() {}
