-- What a refusal was, beyond its code: `config_drift` where the caller's pinned playbook relies on the operation.
ALTER TABLE toolbelt_record ADD COLUMN refusal TEXT;
