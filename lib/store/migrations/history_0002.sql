-- What a refusal was, beyond its code: `config_drift` where the caller's pinned playbook relies on the operation.
ALTER TABLE toolbelt_record ADD COLUMN refusal TEXT;
-- The registration whose gate parked or refused the call.
ALTER TABLE toolbelt_record ADD COLUMN gate TEXT;
CREATE INDEX toolbelt_record_request ON toolbelt_record (request_id, id) WHERE request_id IS NOT NULL;
