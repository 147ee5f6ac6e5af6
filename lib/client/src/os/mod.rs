//! The program `os`.
