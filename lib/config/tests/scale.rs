//! What a large configuration costs against a large release.

use std::time::{Duration, Instant};

use conduit_api::Version;
use conduit_config::{Catalogue, Listing, Member, Registered, Registry, Toolset, grant_warnings, parse};
use serde_json::{Map, Value, json};

/// A release of `extensions` extensions, each with 10 operations and 2 toolsets.
fn release(extensions: usize) -> Registered {
    let names: Vec<String> = (0..extensions).map(|i| format!("ext{i}")).collect();
    let operations: Vec<Vec<String>> =
        names.iter().map(|name| (0..10).map(|i| format!("{name}.operation{i}")).collect()).collect();
    let toolsets: Vec<Vec<Toolset>> = names
        .iter()
        .zip(&operations)
        .map(|(name, operations)| {
            let of = |role: &str, range: std::ops::Range<usize>| Toolset {
                name: format!("{name}.{role}"),
                summary: "For a role".into(),
                operations: range
                    .map(|i| Member::new(operations[i].clone(), Version::new(1, u32::try_from(i).unwrap(), 0)))
                    .collect(),
            };
            vec![of("author", 0..8), of("reviewer", 4..10)]
        })
        .collect();
    let operations: Vec<Vec<&str>> = operations.iter().map(|all| all.iter().map(String::as_str).collect()).collect();
    let listings: Vec<Listing<'_>> = (0..extensions)
        .map(|i| Listing { extension: &names[i], always: true, operations: &operations[i], toolsets: &toolsets[i] })
        .collect();
    Registered::of(Catalogue::new(&listings)).executor("shell", |_, _| Vec::new())
}

/// `scopes` scopes of a kilobyte or so each, whose lists mix names, toolsets and denials of the whole release.
fn document(scopes: usize, extensions: usize) -> Vec<u8> {
    let list = |from: usize| -> Value {
        let entries = (0..20).map(|i| {
            let extension = (from * 7 + i) % extensions;
            match i % 4 {
                0 => format!("@ext{extension}.author"),
                1 => format!("ext{extension}.operation{}", i % 10),
                2 => format!("@ext{extension}.reviewer"),
                _ => format!("!ext{extension}.operation9"),
            }
        });
        entries.collect()
    };
    let scopes: Map<String, Value> = (0..scopes)
        .map(|i| {
            let binding = json!({"executor": "shell", "operations": list(i)});
            (format!("s{i}"), json!({"operations": list(i), "bindings": {"b": binding}}))
        })
        .collect();
    json!({"version": 1, "scopes": scopes}).to_string().into_bytes()
}

/// The shortest of a few: what else the machine does only adds.
fn cost(scopes: usize, extensions: usize) -> Duration {
    let (release, document) = (release(extensions), document(scopes, extensions));
    let once = || {
        let start = Instant::now();
        let checked = parse(&document, &release).unwrap();
        let _ = grant_warnings(&checked.config, release.catalogue());
        start.elapsed()
    };
    (0..5).map(|_| once()).min().unwrap()
}

/// C01, S01
#[test]
fn the_cost_of_validating_grows_with_the_document_and_hardly_with_the_release() {
    let (small, large) = (cost(50, 100), cost(400, 100));
    assert!(large < small * 8 * 2, "8 times the document costs {large:?} instead of {small:?}");
    let wide = cost(400, 1000);
    assert!(wide < large * 6, "10 times the release costs {wide:?} instead of {large:?}");
}

/// Run with `--release -- --ignored --nocapture` to see the time.
#[test]
#[ignore = "a time, for a release build on a quiet machine; the scale tests above assert ratios"]
fn a_configuration_of_one_mebibyte_against_a_thousand_operations() {
    let mut scopes = 1000;
    while document(scopes, 100).len() > 1 << 20 {
        scopes -= 10;
    }
    println!("{} bytes: {:?}", document(scopes, 100).len(), cost(scopes, 100));
}
