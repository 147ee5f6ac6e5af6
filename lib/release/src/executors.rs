//! Executors of extensions, as far as a configuration names them: a binding's `config` is held against the schema that the
//! extension registered. No process is asked.

use conduit_config::Registered;
use conduit_toolbelt::registry::{Registry, SettingsSchema};
use serde_json::Value;

/// `registered`, with the executor of every registration of `registry`.
pub fn with_executors(mut registered: Registered, registry: &Registry) -> Registered {
    for registration in registry.registrations() {
        for spec in &registration.executors {
            let schema = SettingsSchema::new(spec.config.clone());
            let field = spec.playbook_field.clone();
            let playbook = move |config: &Value| Some(config.get(field.as_ref()?)?.as_str()?.to_owned());
            registered = registered.executor_of(
                &registration.name,
                &spec.name,
                move |config, at| schema.faults(config, at),
                playbook,
            );
        }
    }
    registered
}

#[cfg(test)]
mod tests {
    use conduit_api::Version;
    use conduit_config::parse;
    use conduit_toolbelt::registry::{ExecutorSpec, ExecutorTransport, OWN_EXECUTORS, Registration};
    use serde_json::json;

    use super::*;

    fn registry() -> Registry {
        let spec = ExecutorSpec {
            name: "courier.run".into(),
            summary: "Runs errands".into(),
            config: json!({
                "type": "object", "required": ["errand"], "additionalProperties": false,
                "properties": {"errand": {"type": "string", "maxLength": 5}, "guide": {"type": "string"}},
            }),
            transport: ExecutorTransport::Toolbelt,
            resume_capable: false,
            playbook_field: Some("guide".into()),
        };
        let courier =
            Registration { executors: vec![spec], ..Registration::new("courier", Version::new(1, 0, 0), "Errands") };
        crate::registry_with(vec![courier])
    }

    fn faults(enabled: bool, executor: &str, config: Value) -> Vec<(String, String)> {
        let document = json!({
            "version": 1, "extensions": {"courier": {"enabled": enabled}},
            "scopes": {"s": {"bindings": {"b": {"executor": executor, "config": config}}}},
        });
        let references = crate::references(&registry());
        let found = parse(document.to_string().as_bytes(), &references).err().unwrap_or_default();
        found.into_iter().map(|fault| (fault.pointer, fault.code)).collect()
    }

    /// X01, C01
    #[test]
    fn a_binding_names_an_executor_of_an_extension_that_is_enabled_and_keeps_to_its_schema() {
        let fault = |at: &str, code: &str| vec![(format!("/scopes/s/bindings/b/{at}"), code.to_owned())];
        let sound = json!({"errand": "post"});
        assert_eq!(faults(true, "courier.run", sound.clone()), []);
        assert_eq!(faults(false, "courier.run", sound.clone()), fault("executor", "unknown_reference"));
        assert_eq!(faults(true, "courier.walk", sound.clone()), fault("executor", "unknown_reference"));
        assert_eq!(faults(true, "courier", sound), fault("executor", "unknown_reference"));
        assert_eq!(faults(true, "courier.run", json!({})), fault("config/errand", "missing_field"));
        assert_eq!(faults(true, "courier.run", json!({"errand": "letter"})), fault("config/errand", "invalid_value"));
        let surplus = json!({"errand": "post", "more": 1});
        assert_eq!(faults(true, "courier.run", surplus), fault("config/more", "unknown_field"));
    }

    /// S05
    #[test]
    fn the_playbook_of_a_binding_is_the_one_in_the_field_that_its_executor_declares() {
        let named = |guide: &str| faults(true, "courier.run", json!({"errand": "post", "guide": guide}));
        assert_eq!(named("os"), []);
        assert_eq!(named("nobody"), [("/scopes/s/bindings/b/config".to_owned(), "unknown_reference".to_owned())]);
    }

    /// T16
    #[test]
    fn the_suites_own_executors_are_the_names_that_no_registration_can_have() {
        assert_eq!(OWN_EXECUTORS, [conduit_executor_shell::NAME]);
    }
}
