//! What a run socket's toolbelt promises, on a real state directory, with the time as an argument.

mod budgets;
mod declarations;
mod grants;
mod operations;
mod order;
mod replays;
mod support;
mod tokens;
