//! What the extension host promises, with extensions in this process on a real state directory.

mod budgets;
mod bypass;
mod calls;
mod doubts;
mod gates;
mod left_behind;
mod passes;
mod reads;
mod replays;
mod support;
mod translated;
