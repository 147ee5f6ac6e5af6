//! executors/shell
