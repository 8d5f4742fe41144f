-- Leads from a time to the first and the last run that was created then, in the order of id.
CREATE INDEX runs_by_creation ON runs (created_at, id);
