//! What coordination promises, on a real store file, with the time as an argument.

mod claims;
mod endings;
mod model;
mod operators;
mod routing;
mod support;
mod waits;
