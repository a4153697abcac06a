//! The status file: made by `commands::run`, read by `commands::status`.
