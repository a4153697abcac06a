//! Table of contents.
fn main() {}
