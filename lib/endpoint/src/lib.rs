//! endpoint
