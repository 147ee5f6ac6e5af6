//! A release and its configurations, as the programs know them.

use std::rc::Rc;

use conduit_api::Version;
use conduit_config::{ConfigService, Member, Registered, SnapshotCache, Toolset};
use conduit_toolbelt::hosted::Hosted;
use conduit_toolbelt::registry::{OperationKind, OperationSpec, Registration, Registry};
use serde_json::{Map, Value, json};

use super::{World, start};
use crate::history::{BINDINGS, Extension, Generation, Kind, SCOPES};

/// What a release has: opened once for all its histories in a row.
pub(super) struct Release {
    pub offered: Vec<Extension>,
    pub registry: Rc<Registry>,
    pub service: ConfigService,
    pub snapshots: SnapshotCache,
    pub hosted: Hosted,
}

impl Release {
    pub fn open(world: &mut World, offered: &[Extension]) -> Self {
        let registry = Rc::new(Registry::new(offered.iter().map(registration).collect()).0);
        let file = world.base.path().join("config.json");
        let references = Registered::of(registry.catalogue().clone()).executor("shell", |_, _| Vec::new());
        let service = ConfigService::new(world.state.clone(), file, Rc::new(references));
        if world.ran == 1 {
            service.start(&mut world.store, start()).expect("a first generation");
        }
        let hosted = Hosted::open(&world.state_path(), Rc::clone(&registry), format!("host {}", world.ran));
        Self {
            offered: offered.to_vec(),
            snapshots: SnapshotCache::new(registry.catalogue().clone()),
            hosted: hosted.expect("a host"),
            registry,
            service,
        }
    }
}

fn registration(offered: &Extension) -> Registration {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false});
    let operations = offered.operations.iter().map(|operation| {
        let kind = match operation.kind {
            Kind::Handler => OperationKind::Handler,
            Kind::Read => OperationKind::Read,
            Kind::Wait => OperationKind::Wait,
            Kind::Emission => OperationKind::Emission,
        };
        let spec = OperationSpec::new(operation.name.as_str(), "Do something", schema.clone()).kind(kind);
        OperationSpec { idempotent: operation.idempotent, ..spec }
    });
    let version = Version::new(1, 0, 0);
    let toolsets = offered.toolsets.iter().map(|toolset| Toolset {
        name: toolset.name.clone(),
        summary: "For a role".into(),
        operations: toolset.operations.iter().map(|name| Member::new(name.as_str(), version)).collect(),
    });
    Registration {
        always: offered.always,
        operations: operations.collect(),
        toolsets: toolsets.collect(),
        ..Registration::new(offered.name.as_str(), version, "An extension")
    }
}

/// The configuration as an operator would write it.
pub(super) fn written(generation: &Generation) -> Value {
    let families = |events: bool| if events { json!(["demo"]) } else { json!([]) };
    let extensions = generation.extensions.iter().map(|(name, said)| {
        let mut entry = json!({"enabled": said.enabled});
        if let Some(scopes) = &said.scopes {
            entry["scopes"] = scopes.iter().map(|at| SCOPES[*at]).collect();
        }
        (name.clone(), entry)
    });
    let extensions: Map<String, Value> = extensions.collect();
    let scopes: Map<String, Value> = std::iter::zip(SCOPES, &generation.scopes)
        .map(|(name, scope)| {
            let bindings: Map<String, Value> = std::iter::zip(BINDINGS, &scope.bindings)
                .map(|(name, binding)| {
                    let delegates: Vec<&str> = binding.delegates.iter().map(|at| BINDINGS[*at]).collect();
                    let value = json!({"executor": "shell", "operations": binding.operations,
                                       "events": families(binding.events), "delegates": delegates});
                    (name.to_owned(), value)
                })
                .collect();
            let value = json!({"enabled": scope.enabled, "operations": scope.operations,
                               "events": families(scope.events), "bindings": bindings});
            (name.to_owned(), value)
        })
        .collect();
    json!({"version": 1, "limits": {"causal_depth_max": 1024, "causal_per_minute": 1_000_000},
           "extensions": extensions, "scopes": scopes})
}
