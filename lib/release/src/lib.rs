//! What this release has: the one list of extensions, executors and playbooks, which every program reads alike.
//!
//! Data and checks of configurations stand here, and the reads that a worker carries out itself. What carries every other
//! operation out is linked by the program that does so.
#![forbid(unsafe_code)]

mod executors;
pub mod playbooks;
pub mod reference;

use conduit_config::Registered;
use conduit_toolbelt::reader::Readers;
use conduit_toolbelt::registry::{Registration, Registry, SettingsSchema};

/// The extensions that come with the suite, in any order.
pub fn bundled() -> Vec<Registration> {
    vec![conduit_extension_human::registration(), conduit_extension_introspection::registration()]
}

/// Every operation of this release and of the packages that are `installed`. A package that breaks a rule is left out and
/// said to the log; its installation refused it.
pub fn registry_with(installed: Vec<Registration>) -> Registry {
    let (registry, refused) = Registry::new(bundled().into_iter().chain(installed).collect());
    for refused in refused {
        tracing::error!(code = refused.code().as_str(), %refused, "an extension is not registered");
    }
    registry
}

/// Every operation of this release. What breaks a rule is left out and said to the log; a test sees to it that nothing does.
pub fn registry() -> Registry {
    let (registry, refused) = Registry::new(bundled());
    for refused in refused {
        tracing::error!(code = refused.code().as_str(), %refused, "an extension of this release is not registered");
    }
    registry
}

/// The reads of these extensions that a process with a view of the store carries out itself.
pub fn readers() -> Readers {
    Readers::new(conduit_extension_introspection::readers())
}

/// What a configuration may refer to: the operations, toolsets and extensions of `registry`, the executors and the playbooks.
pub fn references(registry: &Registry) -> Registered {
    let registered = Registered::of(registry.catalogue().clone()).executor_with_playbook(
        conduit_executor_shell::NAME,
        conduit_executor_shell::validate,
        |config| conduit_executor_shell::playbook(config).map(str::to_owned),
    );
    let catalogue = registry.catalogue().clone();
    let registered = registered
        .extension_of_document(conduit_extension_human::NAME, move |config, pointer, document| {
            conduit_extension_human::validate(config, pointer, &catalogue, document)
        });
    let registered = registry.registrations().iter().fold(registered, |registered, registration| {
        let Some(schema) = registration.settings.clone().map(SettingsSchema::new) else { return registered };
        registered.extension(&registration.name, move |settings, pointer| schema.faults(settings, pointer))
    });
    let registered = executors::with_executors(registered, registry);
    let bundled = playbooks::bundled().into_iter();
    let extensions = registry.registrations().iter().flat_map(|registration| registration.playbooks.clone());
    bundled.chain(extensions).fold(registered, Registered::playbook)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_toolbelt::registry::OperationKind;

    /// T16, S04
    #[test]
    fn every_bundled_registration_is_registered_and_each_of_its_schemas_is_one() {
        let (registry, refused) = Registry::new(bundled());
        assert_eq!(refused, []);
        for registration in registry.registrations() {
            for spec in &registration.operations {
                let known = registry.operation(&spec.name).unwrap();
                assert!(known.violations(&serde_json::json!({})).is_ok(), "{}", spec.name);
            }
        }
    }

    /// T16
    #[test]
    fn what_a_worker_reads_by_itself_is_a_read_in_the_registry_and_no_read_of_the_suite_is_left_out() {
        let registry = registry();
        let specs = registry.registrations().iter().flat_map(|registration| &registration.operations);
        let mut reads: Vec<&str> =
            specs.filter(|spec| spec.kind == OperationKind::Read).map(|spec| spec.name.as_str()).collect();
        reads.sort_unstable();
        assert_eq!(readers().names().collect::<Vec<_>>(), reads);
    }

    /// S05
    #[test]
    fn every_bundled_playbook_lists_operations_of_this_release() {
        let registry = registry();
        for (name, text) in playbooks::TEXTS {
            let playbook = conduit_config::Playbook::read(text).unwrap();
            assert_eq!(playbook.name, name);
            assert!(!playbook.operations.is_empty());
            for operation in &playbook.operations {
                assert!(registry.operation(operation).is_some(), "{name} uses {operation}");
            }
        }
    }
}
